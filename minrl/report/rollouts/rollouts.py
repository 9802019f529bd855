"""The command that makes the page in which a run's rollouts are read, or serves it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from minrl.report.rollouts.build import Limits, make_page
from minrl.report.rollouts.serve import open_server
from minrl.run.folder import RunFolder
from minrl.types import require
from minrl.utils.cli import Command
from minrl.utils.loopback import LOOPBACK
from minrl.utils.settings import Bound

PORT = 8765
"""Where --serve listens unless the user says otherwise."""


@dataclass(frozen=True, kw_only=True)
class RolloutsConfig(Limits):
    """Make the page in which a run's rollouts are read.

    python -m minrl rollouts runs/countdown-grpo-seed0
    python -m minrl rollouts countdown-grpo-seed0 --tokens-per-step 0 --max-steps 0
    python -m minrl rollouts countdown-grpo-seed0 --serve
    """

    first = "run"

    run: str = ""
    """The run: its folder, or its name. The flag itself may be left out."""
    runs_dir: str = "runs"
    """Where runs are that are named without a folder."""
    output: str = ""
    """The file to write. Empty: rollouts.html in the run's folder."""
    serve: bool = False
    """Serve the page to browsers of this machine in place of writing it: it follows a run that is going on."""
    port: Annotated[int, Bound(least=1, most=65535, zero="any free one")] = PORT
    """Port of 127.0.0.1 on which --serve listens. 0: any free one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.serve or self.port == PORT, "--port is where --serve listens: add --serve")
        require(not (self.serve and self.output), "--serve writes no file: leave --output or --serve out")


def main(command: Command[RolloutsConfig]) -> int:
    """Write the page and say where it is."""
    config = command.config
    require(bool(config.run), "name the run whose rollouts are to be read: minrl rollouts runs/NAME")
    folder = RunFolder.open(config.run, config.runs_dir).path
    if config.serve:
        return _serve(folder, config)
    page = make_page(folder, Path(config.output) if config.output else None, config)
    sys.stdout.write(f"{page}\n")
    return 0


def _serve(folder: Path, config: RolloutsConfig) -> int:
    """Serve until a signal comes."""
    with open_server(folder, config, config.port) as server:
        sys.stdout.write(f"http://{LOOPBACK}:{server.server_port}/ follows {folder}; Ctrl-C ends it\n")
        sys.stdout.flush()
        server.serve_forever()
    return 0
