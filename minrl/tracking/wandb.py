"""A run in Weights & Biases, in addition to TensorBoard: `--logger wandb`.

W&B's own variables name project (WANDB_PROJECT, default `minrl`), entity and mode (WANDB_MODE; `offline` writes to the
run's folder, for a later `wandb sync`). W&B refuses steps that it has: a resumed run sends the lines of metrics.jsonl
that it lacks. An offline run cannot be resumed, and is written again with all lines, without earlier histograms.
"""

import importlib.util
import os
import secrets
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from minrl.types import UserError, require
from minrl.utils.files import write_text

LOG_IN = "log in with `wandb login`, set WANDB_MODE=offline, or leave --logger wandb out"


def require_wandb() -> None:
    """Raise `UserError` without the package, or without a key for W&B's server. Nothing is sent."""
    found = importlib.util.find_spec("wandb")
    installed = found is not None and found.origin is not None  # else it is a folder `wandb` of an earlier run
    require(installed, "--logger wandb needs the package: `make setup EXTRA=wandb`, or `pip install wandb`")
    import wandb

    online = os.environ.get("WANDB_MODE", "online") == "online"
    require(not online or wandb.login(prompt=False), f"--logger wandb finds no key of W&B: {LOG_IN}")


class Wandb:
    """One run at W&B, with the same methods as `minrl.tracking.tensorboard.TensorBoard`."""

    def __init__(
        self, folder: Path, tasks: Sequence[str], settings: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]
    ) -> None:
        import wandb

        self._wandb, mode, identity = wandb, os.environ.get("WANDB_MODE", "online"), folder / "wandb_id.txt"
        if mode == "offline":
            shutil.rmtree(folder / "wandb", ignore_errors=True)
        if not identity.exists():
            write_text(identity, secrets.token_hex(8))
        options: Any = {"config": dict(settings), "tags": list(tasks), "dir": folder, "mode": mode, "resume": "allow"}
        options |= {"project": os.environ.get("WANDB_PROJECT", "minrl"), "name": folder.name}
        quiet = wandb.Settings(console="off", silent=True)
        try:
            self._run = wandb.init(id=identity.read_text(), settings=quiet, **options)
        except wandb.errors.Error as error:
            raise UserError(f"W&B did not begin the run: {' '.join(str(error).split())}; {LOG_IN}") from error
        self._next = self._run.step
        for line in earlier:
            self.scalars(line["step"], {tag: value for tag, value in line.items() if tag != "step"})
        offline = f"offline, to be sent with: wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*"
        logger.info(f"W&B: {offline if self._run.offline else self._run.url}")

    def scalars(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send a step's values, unless W&B has the step."""
        if step >= self._next:
            self._run.log(dict(metrics), step=step)

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Show the distribution of values."""
        self.scalars(step, {f"{tag}_spread": self._wandb.Histogram(np_histogram=np.histogram(values, bins=64))})

    def close(self, step: int, finished: bool) -> None:
        """Send what is left. A run that did not finish is marked as failed."""
        self._run.finish(exit_code=0 if finished else 1)
