"""The config and options of a command line, and of a run of it."""

from minrl.config import TrainerConfig
from minrl.run.sizes import with_sizes
from minrl.utils.cli import parse


def parsed(words, cls=TrainerConfig):
    """The config and the options that the words say."""
    command = parse(cls, words)
    return command.config, command.options


def parse_run(cls, words):
    """The same as a run has them: with the sizes of its model."""
    command = parse(cls, words)
    return with_sizes(command.config)[0], command.options


def sized(**settings):
    """A config as a run has it."""
    return with_sizes(TrainerConfig(**settings))[0]
