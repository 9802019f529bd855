"""Where a run's numbers are written: metrics.jsonl and metrics.csv, rollouts, hashes, TensorBoard, Weights & Biases.

Every writer takes any tag. What the tags are, and where a new curve goes, is in `minrl.tracking.metrics`.

A line of metrics.jsonl has all scalars of one step; metrics.csv is made of it. A line of fingerprints.jsonl has hashes
of what the step sampled, was rewarded and compared, and of the files of its checkpoint, so that a step can be checked
by repeating it. A resume removes what was written after its checkpoint, so each step is there once.
"""

import gzip
import hashlib
import importlib.util
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from torch import Tensor

from minrl.config import LoggingConfig
from minrl.dataflow import Rollout, UserError, require
from minrl.run.folder import FINGERPRINTS, METRICS, ROLLOUT_SCHEMA, RunFolder, has_step
from minrl.tracking.metrics import CHARTS
from minrl.utils.files import append_jsonl, atomic_write, cut_jsonl, fsync, write_csv, write_text, writing
from minrl.utils.text import json_text

EVENTS = "events.out.tfevents.*"
"""TensorBoard's files in a run's folder."""

PARTS = ("ids", "rewards", "advantages")
"""The hashes of every step, in the order in which one follows from the other."""

NUMBERED = re.compile(r"(?:step|round)_(\d+)\.jsonl(?:\.gz)?")
"""Files of a step in the folders `rollouts` and `samples`. Others are the user's."""


class RunFiles:
    """The files of MinRL's own. `cut_after` first removes everything after that step (-1: all, None: nothing)."""

    def __init__(self, folder: Path, cut_after: int | None = None) -> None:
        self.folder = folder
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        if cut_after is not None:
            self._cut(cut_after)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars."""
        append_jsonl(self.folder / METRICS, [{"step": step, **metrics}])

    def fingerprint(self, step: int, hashes: Mapping[str, Any]) -> None:
        """Write hashes of the step."""
        append_jsonl(self.folder / FINGERPRINTS, [{"step": step, **hashes}])

    def rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write a step's rollouts as compressed JSON lines, whole or not at all."""
        path = self.folder / "rollouts" / f"step_{step:06d}.jsonl.gz"
        with atomic_write(path, "wb") as raw, gzip.open(raw, "wb", compresslevel=3) as file:
            for line in lines:
                file.write(f"{json_text({'schema': ROLLOUT_SCHEMA, 'step': step, **line})}\n".encode())

    def flush(self) -> None:
        """Put everything on disk, and write metrics.csv anew."""
        with writing(self.folder):
            for path in (self.folder / METRICS, self.folder / FINGERPRINTS):
                if path.exists():
                    fsync(path)
        lines = RunFolder(self.folder).metrics
        write_csv(self.folder / "metrics.csv", list(dict.fromkeys(tag for line in lines for tag in line)), lines)

    def _cut(self, step: int) -> None:
        """Remove what is of later steps, and lines that a power failure damaged. Report steps without a line."""

        def damaged(line: object) -> None:
            logger.warning(f"a damaged line is removed: {str(line)[:40]!r}")

        cut = partial(cut_jsonl, keeps=lambda line: has_step(line) and line["step"] <= step, damaged=damaged)
        cut(self.folder / FINGERPRINTS)
        written = {line["step"] for line in cut(self.folder / METRICS)}
        missing = sorted({*range(1, step)} - written) if written else []  # the last may wait for its evaluation
        if missing:
            logger.warning(f"{self.folder / METRICS} has no line of step {', '.join(map(str, missing[:5]))}")
        for path in (*(self.folder / "rollouts").glob("*"), *(self.folder / "samples").glob("*")):
            number = NUMBERED.fullmatch(path.name)
            if number and int(number[1]) > step:
                path.unlink()


def hashes_of_step(rollouts: Sequence[Rollout], advantages: Tensor) -> dict[str, str]:
    """Hashes of the step's N rollouts and their advantages (N,)."""
    ids = (np.array([len(one.ids), *one.ids, *one.loss_mask], dtype="<i8") for one in rollouts)
    rewards = np.array([one.reward.value if one.reward else np.nan for one in rollouts], dtype="<f8")
    compared = advantages.detach().double().cpu().numpy().astype("<f8")
    return dict(zip(PARTS, map(_digest, (ids, [rewards], [compared])), strict=True))


def _digest(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


class TensorBoard:
    """Scalars, histograms, settings (tab HPARAMS) and `CHARTS` (tab CUSTOM SCALARS) of one run. `cut_after` is the step
    after which events are purged (-1: all, None: nothing).
    """

    def __init__(self, folder: Path, tasks: Sequence[str], settings: Mapping[str, Any], cut_after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        for old in folder.glob(EVENTS) if cut_after == -1 else ():
            old.unlink()
        # A restart purges only what follows an earlier start: a new run says that it starts at step 0.
        self._writer = SummaryWriter(str(folder), purge_step=0 if cut_after is None else cut_after + 1)
        scores = [f"eval/{task}/pass@1" for task in tasks]
        if cut_after in (None, -1):  # TensorBoard shows the settings of the first start
            plain = {name: one if type(one) in (int, float) else str(one) for name, one in settings.items()}
            for summary in hparams(plain, dict.fromkeys(["reward/mean", *scores], 0.0))[:2]:
                self._writer._get_file_writer().add_summary(summary, 0)
        layout = {row: {chart: ["Multiline", tags] for chart, tags in charts.items()} for row, charts in CHARTS.items()}
        intervals = {score: ["Margin", [score, f"{score}_low", f"{score}_high"]] for score in scores}
        self._writer.add_custom_scalars({**layout, "Held-out score of each task with its 95 % interval": intervals})

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars, on disk at once."""
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Write the distribution of values (tab HISTOGRAMS)."""
        if len(values):
            self._writer.add_histogram(tag, values, step, bins=64)

    def close(self, step: int, finished: bool) -> None:
        """Close the file."""
        self._writer.close()


LOG_IN = "log in with `wandb login`, set WANDB_MODE=offline, or leave --logger wandb out"


def require_logger(config: LoggingConfig) -> None:
    """Raise `UserError` if W&B is to log and has no package, or no key for its server. Nothing is sent."""
    if config.logger != "wandb":
        return
    found = importlib.util.find_spec("wandb")
    installed = found is not None and found.origin is not None  # else it is a folder `wandb` of an earlier run
    require(installed, "--logger wandb needs the package: `make setup EXTRA=wandb`, or `pip install wandb`")
    import wandb

    online = os.environ.get("WANDB_MODE", "online") == "online"
    require(not online or wandb.login(prompt=False), f"--logger wandb finds no key of W&B: {LOG_IN}")


class Wandb:
    """One run at Weights & Biases, with the methods of `TensorBoard`.

    W&B's own variables name project (WANDB_PROJECT, default `minrl`), entity and mode (WANDB_MODE; `offline` writes to
    the run's folder, for a later `wandb sync`). W&B refuses steps that it has: a resumed run sends the lines of
    metrics.jsonl that it lacks. An offline run cannot be resumed, and is written again, without earlier histograms.
    """

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
