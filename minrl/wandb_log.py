"""A run in Weights & Biases, beside TensorBoard: `--logger wandb`.

Project, entity and mode are W&B's own variables: WANDB_PROJECT (else `minrl`), WANDB_ENTITY, WANDB_MODE (`offline`
writes to the run's folder, for `wandb sync` later). wandb is imported when a run asks for it.

Each step stands once. W&B refuses steps that it has; a run that goes on sends those of metrics.jsonl that it lacks. An
offline run cannot be continued, so it is written anew from metrics.jsonl.
"""

import html
import importlib
import importlib.util
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from minrl.types import UserError

LOG_IN = "log in with `wandb login`, set WANDB_MODE=offline, or leave --logger wandb out"


def require_wandb() -> None:
    """Refuse to begin without the package. A folder `wandb` of an earlier run is not the package."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:
        raise UserError(
            "--logger wandb needs the package wandb: `make setup EXTRA=wandb`, or `pip install wandb`; "
            "without it leave --logger out"
        )


def require_login() -> None:
    """Refuse to begin where the package, or a key for W&B's server, is missing. Nothing is sent."""
    require_wandb()
    import wandb

    if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
        raise UserError(f"--logger wandb finds no key of W&B: {LOG_IN}")


class WandbLog:
    """One run on W&B's side. `earlier` are the lines of metrics.jsonl up to where the run goes on."""

    def __init__(
        self,
        folder: Path,
        tasks: Sequence[str],
        settings: Mapping[str, object] | None,
        earlier: Sequence[Mapping[str, Any]],
    ) -> None:
        require_wandb()
        import wandb

        self._wandb = wandb
        options = wandb.Settings(console="off", silent=True)
        mode: Any = os.environ.get("WANDB_MODE", "online")
        if mode == "offline":
            shutil.rmtree(folder / "wandb", ignore_errors=True)
        try:
            self._run = wandb.init(
                mode=mode,
                project=os.environ.get("WANDB_PROJECT", "minrl"),
                name=folder.name,
                id=_run_id(folder),
                dir=str(folder),
                config=dict(settings or {}),
                tags=list(tasks),
                resume="allow",
                settings=options,
            )
        except wandb.errors.Error as error:
            raise UserError(f"W&B did not begin the run: {' '.join(str(error).split())}; {LOG_IN}") from error
        if importlib.util.find_spec("pandas"):  # else W&B imports it within the first text or histogram: seconds
            importlib.import_module("pandas")
        self._next = self._run.step
        for line in earlier:
            self.scalars(line["step"], {tag: value for tag, value in line.items() if tag != "step"})
        offline = f"offline, to be sent with: wandb sync {folder}/wandb/offline-run-*"
        logger.info(f"W&B: {offline if self._run.offline else self._run.url}")

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step's numbers; a step that W&B has is not sent again."""
        self._send(step, metrics)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Readable text, in which nothing is markup."""
        self._send(step, {tag: self._wandb.Html(f"<pre>{html.escape(markdown)}</pre>", inject=False)})

    def histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """How values are spread."""
        self._send(step, {f"{tag}_spread": self._wandb.Histogram(values.tolist())})

    def flush(self) -> None:
        """W&B's own process writes everything by itself."""

    def close(self, finished: bool) -> None:
        """Hand over what is left; a run that did not come to its end is marked as failed."""
        self._run.finish(exit_code=0 if finished else 1)

    def _send(self, step: int, values: Mapping[str, Any]) -> None:
        if step >= self._next:
            self._run.log(dict(values), step=step)


def _run_id(folder: Path) -> str:
    """The run's identity at W&B: made once, and kept in the run's folder."""
    path = folder / "wandb_id.txt"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()
