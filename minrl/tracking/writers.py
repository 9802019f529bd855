"""Where a run's numbers are written: metrics.jsonl and metrics.csv, rollouts, evaluations, hashes; and the boards that
show them: TensorBoard, Weights & Biases, trackio.

Every writer takes any tag. What the tags are, and where a new curve goes, is in `minrl.tracking.metrics`.

A line of metrics.jsonl has all scalars of one step; metrics.csv is made of it. A line of fingerprints.jsonl has hashes
of what the step sampled, was rewarded and compared, and of the files of its checkpoint, so that a step can be checked
by repeating it. A resume removes what was written after its checkpoint, so each step is there once; only a step that
was stopped before its evaluation has a second line, with all of the first one's numbers, when that is made.
"""

import hashlib
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from torch import Tensor

from minrl.config import TrainerConfig
from minrl.dataflow import Rollout, require
from minrl.run.folder import EVALUATIONS, FINGERPRINTS, METRICS, ROLLOUT_SCHEMA, ROLLOUTS, RunFolder, has_step
from minrl.tracking.metrics import CHARTS
from minrl.tracking.samples import COLUMNS, Row, markdown, settings_table
from minrl.utils.files import append_jsonl, cut_jsonl, fsync, write_csv, write_packed, write_text, writing
from minrl.utils.text import one_line

EVENTS = "events.out.tfevents.*"
"""TensorBoard's files in a run's folder."""

PARTS = ("ids", "rewards", "advantages")
"""The hashes of every step, in the order in which one follows from the other."""

NUMBERED = re.compile(r"(?:step|round)_(\d+)\.jsonl(?:\.gz)?")
"""Files of a step in these folders. Others are the user's."""

FOLDERS = (ROLLOUTS, EVALUATIONS, "samples")


class RunFiles:
    """The files of MinRL's own, and the boards. `cut_after` first removes everything after that step (-1: all, None:
    nothing).
    """

    def __init__(self, folder: Path, cut_after: int | None = None) -> None:
        self.folder, self._cut_after = folder, cut_after
        self._boards: dict[str, Any] = {}
        self._warned = set[str]()
        (folder / ROLLOUTS).mkdir(parents=True, exist_ok=True)
        if cut_after is not None:
            self._cut(cut_after)

    def open_boards(
        self, name: str, tasks: Sequence[str], settings: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]
    ) -> None:
        """Open TensorBoard and the board of this name, which may lack `earlier` lines of metrics."""
        with self.showing("tensorboard"):
            self._boards["tensorboard"] = TensorBoard(self.folder, tasks, settings, self._cut_after)
        if name != "tensorboard":
            with self.showing(name):
                self._boards[name] = Board(name, self.folder, tasks, settings, self._cut_after, earlier)

    def show(self, method: str, *what: object) -> None:
        """Call the method of this name of each board."""
        for name, board in self._boards.items():
            with self.showing(name):
                getattr(board, method)(*what)

    @contextmanager
    def showing(self, name: str) -> Iterator[None]:
        """Whatever is raised inside costs a warning, the first time: what only shows a run must not end it."""
        try:
            yield
        except Exception as error:
            if name not in self._warned:
                what = one_line(f"{type(error).__name__}: {error}")
                logger.warning(f"{name} lacks something, metrics.jsonl has all numbers; the run continues: {what}")
            self._warned.add(name)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars."""
        append_jsonl(self.folder / METRICS, [{"step": step, **metrics}])

    def fingerprint(self, step: int, hashes: Mapping[str, Any]) -> None:
        """Write hashes of the step."""
        append_jsonl(self.folder / FINGERPRINTS, [{"step": step, **hashes}])

    def rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write a step's rollouts as compressed JSON lines, whole or not at all."""
        records = ({"schema": ROLLOUT_SCHEMA, "step": step, **line} for line in lines)
        write_packed(self.folder / ROLLOUTS / f"step_{step:06d}.jsonl.gz", records)

    def evaluation(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write the results of an evaluation problem by problem, whole or not at all."""
        write_packed(self.folder / EVALUATIONS / f"step_{step:06d}.jsonl.gz", ({"step": step, **one} for one in lines))

    def flush(self) -> None:
        """Put everything on disk, and write metrics.csv anew."""
        with writing(self.folder):
            for path in (self.folder / METRICS, self.folder / FINGERPRINTS):
                if path.exists():
                    fsync(path)
        with self.showing("metrics.csv"):
            lines = RunFolder(self.folder).metrics
            write_csv(self.folder / "metrics.csv", list(dict.fromkeys(tag for line in lines for tag in line)), lines)

    def _cut(self, step: int) -> None:
        """Remove what is of later steps."""
        for name in (FINGERPRINTS, METRICS):
            cut_jsonl(self.folder / name, lambda line: has_step(line) and line["step"] <= step)
        for path in (path for name in FOLDERS for path in (self.folder / name).glob("*")):
            number = NUMBERED.fullmatch(path.name)
            if number and int(number[1]) > step:
                path.unlink()


def hashes_of_step(rollouts: Sequence[Rollout], advantages: Tensor) -> dict[str, str]:
    """Hashes of the step's N rollouts and their advantages (N,), or those of their turns (N, K)."""
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
    """Scalars, samples and settings (tab TEXT) and `CHARTS` (tab CUSTOM SCALARS) of one run. `cut_after` is the step
    after which events are purged (-1: all, None: nothing).
    """

    def __init__(self, folder: Path, tasks: Sequence[str], settings: Mapping[str, Any], cut_after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for old in folder.glob(EVENTS) if cut_after == -1 else ():
            old.unlink()
        while any(f"tfevents.{int(time.time())}." in old.name for old in folder.glob(EVENTS)):
            time.sleep(0.05)  # files are read in the order of their names, in which those of one second are unordered
        # A restart purges only what follows an earlier start: a new run says that it starts at step 0.
        self._writer = SummaryWriter(str(folder), purge_step=0 if cut_after is None else cut_after + 1)
        if cut_after in (None, -1):  # TensorBoard shows the settings of the first start
            self._writer.add_text("settings", settings_table(settings), 0)
        layout = {row: {chart: ["Multiline", tags] for chart, tags in charts.items()} for row, charts in CHARTS.items()}
        scores = [f"eval/{task}/pass@1" for task in tasks]
        intervals = {score: ["Margin", [score, f"{score}_low", f"{score}_high"]] for score in scores}
        self._writer.add_custom_scalars({**layout, "Held-out score of each task with its 95 % interval": intervals})

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars, on disk at once."""
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def samples(self, step: int, tag: str, rows: Sequence[Row]) -> None:
        """Write completions as text."""
        self._writer.add_text(tag, markdown(rows), step)

    def close(self, step: int, finished: bool) -> None:
        """Close the file."""
        self._writer.close()


def require_logger(config: TrainerConfig) -> None:
    """Raise `UserError` if the package of the board is missing, or W&B has no key for its server. Nothing is sent."""
    name = config.logger
    if name == "tensorboard":
        return
    found = importlib.util.find_spec(name)
    installed = found is not None and found.origin is not None  # else it is a folder `wandb` of an earlier run
    require(installed, f"--logger {name} needs the package: `make setup EXTRA={name}`, or `pip install {name}`")
    if name == "wandb" and os.environ.get("WANDB_MODE", "online") == "online":
        remedy = "log in with `wandb login`, set WANDB_MODE=offline, or leave --logger wandb out"
        require(import_module(name).login(prompt=False), f"--logger wandb finds no key of W&B: {remedy}")


class Board:
    """One run at Weights & Biases or in trackio, which has W&B's API, with the methods of `TensorBoard`.

    The project is WANDB_PROJECT or TRACKIO_PROJECT (default `minrl`); their other variables hold too, such as
    WANDB_MODE (`offline` writes to the run's folder, for a later `wandb sync`) and TRACKIO_SPACE_ID. W&B refuses steps
    that it has, and trackio would show them twice: a resumed run sends the lines of metrics.jsonl that are missing
    there. An offline run of W&B cannot be resumed, and is written again, without earlier samples.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        tasks: Sequence[str],
        settings: Mapping[str, Any],
        cut_after: int | None,
        earlier: Iterable[Mapping[str, Any]],
    ) -> None:
        self._package, self._wandb = import_module(name), name == "wandb"
        options: dict[str, Any] = {"project": os.environ.get(f"{name.upper()}_PROJECT", "minrl"), "name": folder.name}
        options |= {"config": dict(settings), "resume": "allow" if self._wandb or cut_after is not None else "never"}
        self._run = self._package.init(**options, **(self._of_wandb(folder, tasks) if self._wandb else OF_TRACKIO))
        self._next = self._run.step if self._wandb else self._run._next_step  # trackio has no public name for it
        for line in earlier:
            self.scalars(line["step"], {tag: value for tag, value in line.items() if tag != "step"})
        if self._wandb:
            offline = f"offline, to be sent with: wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*"
            logger.info(f"W&B: {offline if self._run.offline else self._run.url}")

    def _of_wandb(self, folder: Path, tasks: Sequence[str]) -> dict[str, Any]:
        """The options that trackio lacks: it knows a run by its name alone."""
        mode, identity = os.environ.get("WANDB_MODE", "online"), folder / "wandb_id.txt"
        if mode == "offline":
            shutil.rmtree(folder / "wandb", ignore_errors=True)
        if not identity.exists():
            write_text(identity, secrets.token_hex(8))
        quiet = self._package.Settings(console="off", silent=True)
        return {"id": identity.read_text(), "tags": list(tasks), "dir": folder, "mode": mode, "settings": quiet}

    def scalars(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send a step's values, unless the board has the step."""
        if step >= self._next:
            self._run.log(dict(metrics), step=step)

    def samples(self, step: int, tag: str, rows: Sequence[Row]) -> None:
        """Send completions as a table."""
        self.scalars(step, {tag: self._package.Table(columns=list(COLUMNS), data=[list(row) for row in rows])})

    def close(self, step: int, finished: bool) -> None:
        """Send what is left. A run of W&B that did not finish is marked as failed."""
        self._run.finish(**({"exit_code": 0 if finished else 1} if self._wandb else {}))


OF_TRACKIO = {"embed": False, "auto_log_cpu": False}
"""No dashboard inside a notebook, and no second measurement of the processor."""
