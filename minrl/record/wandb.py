"""A run in Weights & Biases, beside TensorBoard: `--logger wandb`.

Project, entity and mode are W&B's own variables: WANDB_PROJECT (else `minrl`), WANDB_ENTITY, WANDB_MODE (`offline`
writes to the run's folder, for `wandb sync` later). wandb is imported when a run asks for it.

Each step stands once. W&B refuses steps that it has; a run that goes on sends those of metrics.jsonl that it lacks. An
offline run cannot be continued, so it is written anew, from metrics.jsonl and from wandb_media.jsonl, which keeps what
no number is: samples and distributions.
"""

import html
import importlib
import importlib.util
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from minrl.run.folder import MEDIA
from minrl.system.files import whole
from minrl.system.json_text import json_text
from minrl.types import UserError

BARS = 64
"""Of a distribution, as W&B itself would take."""

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
        self._media = folder / MEDIA if self._run.offline else None
        media = [] if self._media is None else _cut_media(self._media, earlier)
        for line in earlier:
            for shown in (one for one in media if one["step"] == line["step"]):
                self._send(shown["step"], {shown["tag"]: self._readable(shown["value"])})
            self.scalars(line["step"], {tag: value for tag, value in line.items() if tag != "step"})
        offline = f"offline, to be sent with: wandb sync {folder}/wandb/offline-run-*"
        logger.info(f"W&B: {offline if self._run.offline else self._run.url}")

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step's numbers; a step that W&B has is not sent again."""
        self._send(step, metrics)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Readable text, in which nothing is markup."""
        self._show(step, tag, markdown)

    def histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """How values are spread."""
        counts, edges = np.histogram(values, bins=BARS)
        self._show(step, f"{tag}_spread", [counts.tolist(), edges.tolist()])

    def flush(self) -> None:
        """W&B's own process writes everything by itself."""

    def close(self, finished: bool) -> None:
        """Hand over what is left; a run that did not come to its end is marked as failed."""
        self._run.finish(exit_code=0 if finished else 1)

    def _show(self, step: int, tag: str, value: str | list[Any]) -> None:
        """Send what no number is, and keep it where the run may have to be written anew."""
        if self._media is not None:
            with self._media.open("a", encoding="utf-8") as file:
                file.write(json_text({"step": step, "tag": tag, "value": value}) + "\n")
        self._send(step, {tag: self._readable(value)})

    def _readable(self, value: str | list[Any]) -> Any:  # noqa: ANN401 - W&B's own kinds
        """A text, in which nothing is markup, or a distribution by counts and edges, as W&B shows them."""
        if isinstance(value, str):
            return self._wandb.Html(f"<pre>{html.escape(value)}</pre>", inject=False)
        return self._wandb.Histogram(np_histogram=(np.asarray(value[0]), np.asarray(value[1])))

    def _send(self, step: int, values: Mapping[str, Any]) -> None:
        if step >= self._next:
            self._run.log(dict(values), step=step)


def _cut_media(path: Path, earlier: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What an offline run showed up to the last of the steps that it goes on from; the rest is cut away, and with it
    what a power failure left in place of a line.
    """
    last, kept = max((line["step"] for line in earlier), default=-1), []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.exists() else []:
        with suppress(ValueError):
            kept.append(json.loads(line))
    kept = [shown for shown in kept if shown["step"] <= last]
    with whole(path) as file:
        file.writelines(json_text(line) + "\n" for line in kept)
    return kept


def _run_id(folder: Path) -> str:
    """The run's identity at W&B: made once, and kept in the run's folder."""
    path = folder / "wandb_id.txt"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()
