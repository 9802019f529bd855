"""A run in Weights & Biases, in addition to TensorBoard: `--logger wandb`.

W&B's own variables name project (WANDB_PROJECT, default `minrl`), entity (WANDB_ENTITY) and mode (WANDB_MODE; `offline`
writes to the run's folder, for a later `wandb sync`). wandb is imported when a run asks for it.

Each step is logged once. W&B refuses steps that it has, and a resumed run sends the steps of metrics.jsonl that it
lacks. An offline run cannot be resumed: it is rewritten from metrics.jsonl and wandb_media.jsonl, which keeps samples
and distributions.
"""

import importlib
import importlib.util
import os
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from minrl.run.folder import MEDIA
from minrl.types import UserError
from minrl.utils.files import append_jsonl, cut_jsonl, write_text
from minrl.utils.text import html_text

BARS = 64
"""Bins of a distribution: W&B's own default."""

LOG_IN = "log in with `wandb login`, set WANDB_MODE=offline, or leave --logger wandb out"


def require_wandb() -> None:
    """Raise `UserError` without the package. A folder `wandb` of an earlier run is not the package."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:
        raise UserError(
            "--logger wandb needs the package wandb: `make setup EXTRA=wandb`, or `pip install wandb`; "
            "without it leave --logger out"
        )


def require_login() -> None:
    """Raise `UserError` without the package, or without a key for W&B's server. Nothing is sent."""
    require_wandb()
    import wandb

    if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
        raise UserError(f"--logger wandb finds no key of W&B: {LOG_IN}")


class WandbLog:
    """One run at W&B. `earlier` are the lines of metrics.jsonl up to the step from which the run resumes."""

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
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            raise UserError(f"W&B did not begin the run: {' '.join(str(error).split())}; {LOG_IN}") from error
        if importlib.util.find_spec("pandas"):  # which else takes seconds within the first text or histogram
            importlib.import_module("pandas")
        self._next = self._run.step
        self._media = folder / MEDIA if self._run.offline else None
        media = [] if self._media is None else _cut_media(self._media, earlier)
        for line in earlier:
            for shown in (one for one in media if one["step"] == line["step"]):
                self._send(shown["step"], {shown["tag"]: self._readable(shown["value"])})
            self._send(line["step"], {tag: value for tag, value in line.items() if tag != "step"})
        offline = f"offline, to be sent with: wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*"
        logger.info(f"W&B: {offline if self._run.offline else self._run.url}")

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send a step's scalars, unless W&B has the step."""
        self._send(step, metrics)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Show a text literally."""
        self._show(step, tag, markdown)

    def histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """Show the distribution of values."""
        counts, edges = np.histogram(values, bins=BARS)
        self._show(step, f"{tag}_spread", [counts.tolist(), edges.tolist()])

    def flush(self) -> None:
        """Do nothing: W&B's own process writes."""

    def close(self, finished: bool) -> None:
        """Send what is left. A run that did not finish is marked as failed."""
        self._run.finish(exit_code=0 if finished else 1)

    def _show(self, step: int, tag: str, value: str | list[Any]) -> None:
        """Send a text or a distribution, and keep it if the run may have to be rewritten."""
        if self._media is not None:
            append_jsonl(self._media, [{"step": step, "tag": tag, "value": value}])
        self._send(step, {tag: self._readable(value)})

    def _readable(self, value: str | list[Any]) -> Any:  # noqa: ANN401 - W&B's own kinds
        """W&B's object for a literal text, or for a distribution given by counts and edges."""
        if isinstance(value, str):
            return self._wandb.Html(f"<pre>{html_text(value)}</pre>", inject=False)
        return self._wandb.Histogram(np_histogram=(np.asarray(value[0]), np.asarray(value[1])))

    def _send(self, step: int, values: Mapping[str, Any]) -> None:
        if step >= self._next:
            self._run.log(dict(values), step=step)


def _cut_media(path: Path, earlier: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The samples and distributions up to the last earlier step. Later ones and damaged lines are removed."""
    last = max((line["step"] for line in earlier), default=-1)
    return cut_jsonl(path, lambda shown: shown["step"] <= last, damaged=lambda line: None)


def _run_id(folder: Path) -> str:
    """The run's id at W&B, created once and kept in the run's folder."""
    path = folder / "wandb_id.txt"
    if not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text()
