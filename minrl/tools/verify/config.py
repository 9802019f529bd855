"""The settings of `minrl verify`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minrl.config import TrainerConfig
from minrl.utils.cli import Command, parse
from minrl.utils.settings import Natural, Settings


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(Settings):
    """Repeat a step of a run from the checkpoint before it, and compare. The run comes first, by folder or by name.
    With --fork RUN@STEP a new run begins there instead, with what further flags of `minrl train` change.

    python -m minrl verify countdown-grpo-seed0 --step 120
    python -m minrl verify --fork countdown-grpo-seed0@120
    """

    first = "run"
    often = ("run", "step", "fork", "output")

    run: str = ""
    """The run. The flag itself may be left out."""
    runs_dir: str = "runs"
    """Where runs are that are named without a folder."""
    step: Natural = 0
    """The step. 0: the last one."""
    fork: str = ""
    """RUN@STEP or RUN@best: begin a new run there, on the same random numbers. Other flags are those of train."""
    output: str = ""
    """File for the result as JSON. Empty: none."""
    scratch: str = ""
    """Folder for the copy and its checkpoints, which are removed. Empty: that of the system (TMPDIR)."""


def parse_verify(arguments: Sequence[str]) -> Command[VerifyConfig]:
    """The command line. With --fork, `arguments` of the result are the flags of `minrl train`, which were checked."""
    words = [word for one in arguments for word in (one.split("=", 1) if one.startswith("--fork=") else [one])]
    if "--fork" not in words:
        return parse(VerifyConfig, words)
    place = words.index("--fork")
    flags = (*words[:place], *words[place + 2 :])
    parse(TrainerConfig, flags)
    return replace(parse(VerifyConfig, words[place : place + 2]), arguments=flags)
