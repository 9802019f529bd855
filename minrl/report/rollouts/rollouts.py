"""The command that makes the page in which a run's rollouts are read."""

import sys
from dataclasses import dataclass
from pathlib import Path

from minrl.report.rollouts.build import Limits, make_page
from minrl.run.folder import RunFolder
from minrl.types import require
from minrl.utils.cli import Command


@dataclass(frozen=True, kw_only=True)
class RolloutsConfig(Limits):
    """Make the page in which a run's rollouts are read.

    python -m minrl rollouts runs/countdown-grpo-seed0
    python -m minrl rollouts countdown-grpo-seed0 --tokens-per-step 0 --max-steps 0
    """

    first = "run"

    run: str = ""
    """The run: its folder, or its name. The flag itself may be left out."""
    runs_dir: str = "runs"
    """Where runs are that are named without a folder."""
    output: str = ""
    """The file to write. Empty: rollouts.html in the run's folder."""


def main(command: Command[RolloutsConfig]) -> int:
    """Write the page and say where it is."""
    config = command.config
    require(bool(config.run), "name the run whose rollouts are to be read: minrl rollouts runs/NAME")
    folder = RunFolder.open(config.run, config.runs_dir).path
    page = make_page(folder, Path(config.output) if config.output else None, config)
    sys.stdout.write(f"{page}\n")
    return 0
