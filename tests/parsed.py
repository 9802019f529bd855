"""What the command line of a program says: its config and the options of the tasks named."""

from minrl.config import TrainerConfig
from minrl.run.defaults import with_defaults
from minrl.utils.cli import parse


def parsed(words, cls=TrainerConfig):
    command = parse(cls, words)
    return command.config, command.options


def parse_run(cls, words):
    """With the defaults that depend on what is trained."""
    command = with_defaults(parse(cls, words))
    return command.config, command.options
