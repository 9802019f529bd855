"""Where numbers go: TensorBoard, W&B, metrics.jsonl, metrics.csv and rollouts.

A step is one line of metrics.jsonl with every scalar that TensorBoard gets. After a resume, what was written beyond
the checkpoint is cut away, so each step stands once.
"""

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from loguru import logger

from minrl.record.tensorboard import TensorBoardLog, cut_events
from minrl.record.wandb import WandbLog
from minrl.system.disk import writing
from minrl.system.files import whole
from minrl.system.json_text import json_text
from minrl.viewer.lines import ROLLOUT_SCHEMA

TAGS = (
    "reward/mean",
    "reward/std",
    "reward/solved_frac",
    "reward/unscorable_frac",
    "reward/zero_spread_group_frac",
    "reward/solve_none_group_frac",
    "reward/solve_some_group_frac",
    "reward/solve_all_group_frac",
    "rollout/completion_tokens_mean",
    "rollout/completion_tokens_max",
    "rollout/completion_tokens_solved_mean",
    "rollout/completion_tokens_unsolved_mean",
    "rollout/limit_frac",
    "rollout/truncated_frac",
    "rollout/entropy",
    "rollout/temperature",
    "rollout/prompt_tokens_mean",
    "policy/loss",
    "policy/entropy",
    "policy/grad_norm",
    "policy/clip_low_frac",
    "policy/clip_high_frac",
    "policy/ratio_max",
    "policy/learning_rate",
    "policy/ref_kl",
    "policy/optimizer_steps",
    "policy/skipped_steps",
    "policy/trained_token_frac",
    "engine/logprob_gap_mean",
    "engine/logprob_gap_max",
    "engine/kl",
    "engine/importance_cap_frac",
    "engine/ess",
    "engine/importance_weight_mean",
    "engine/importance_weight_min",
    "engine/importance_weight_max",
    "engine/prompt_reuse_frac",
    "engine/sync_gap_max",
    "engine/sync_checked_tensors",
    "update/computed_tokens",
    "sft/loss",
    "sft/entropy",
    "sft/tokens",
    "sft/epoch",
    "sft/optimizer_steps",
    "sft/held_out_loss",
    "sft/held_out_entropy",
    "expert/kept",
    "expert/kept_frac",
    "expert/solved_examples",
    "time/rollout_s",
    "time/reward_s",
    "time/compare_s",
    "time/update_s",
    "time/sync_s",
    "time/eval_s",
    "time/log_s",
    "time/save_s",
    "time/other_s",
    "time/step_s",
    "speed/tokens_per_s",
    "speed/rollout_tokens_per_s",
    "speed/update_tokens_per_s",
    "memory/peak_gib",
    "memory/rollout_gib",
    "memory/update_gib",
    "memory/sync_gib",
    "memory/eval_gib",
)
"""Every fixed tag. The seconds of a step are the sum of its phases' (`minrl.record.clock`)."""

HISTOGRAMS = ("engine/importance_weight", "rollout/completion_tokens", "reward/value")
"""What is shown as a distribution, where rollouts are written: raw weights of tokens, lengths, rewards."""

OPEN_PREFIXES = ("reward/part/", "reward/role/", "eval/", "baseline/")
"""Prefixes under which names come from tasks."""


class Board(Protocol):
    """Where curves are looked at."""

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step's numbers."""

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Readable text."""

    def histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """How values are spread."""

    def flush(self) -> None:
        """Everything on the disk."""

    def close(self, finished: bool) -> None:
        """Release the files; `finished` says that the run came to its end."""


LOGGERS: Mapping[str, Sequence[Callable[..., Board]]] = {
    "tensorboard": (TensorBoardLog,),
    "wandb": (TensorBoardLog, WandbLog),
}
"""What `--logger` may say. metrics.jsonl and metrics.csv are always written."""


class MetricsLog:
    """The files of one run. `cut_after` removes what lies beyond a step, before anything new is written.

    `tasks` and `settings` are for the page and the hyperparameters that TensorBoard shows.
    """

    def __init__(
        self,
        folder: Path,
        cut_after: int | None = None,
        tasks: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        logger: str = "tensorboard",
    ) -> None:
        self.folder = folder
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        if cut_after is not None:
            cut_metrics(folder, cut_after)
            cut_events(folder, cut_after)
        earlier = read_metrics(folder)
        self._boards = [board(folder, tasks, settings, earlier) for board in LOGGERS[logger]]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step's scalars, everywhere."""
        check_tags(metrics)
        with writing(self.folder):
            for board in self._boards:
                board.scalars(step, metrics)
            with (self.folder / "metrics.jsonl").open("a") as file:
                file.write(json_text({"step": step, **metrics}) + "\n")

    def text(self, tag: str, text: str, step: int) -> None:
        """Readable text."""
        with writing(self.folder):
            for board in self._boards:
                board.text(tag, text, step)

    def histograms(self, step: int, distributions: Mapping[str, np.ndarray]) -> None:
        """How values are spread, by tag; a tag without values is left out."""
        for tag, values in distributions.items():
            assert tag in HISTOGRAMS, f"a histogram that metrics.HISTOGRAMS does not list: {tag}"
            with writing(self.folder):
                for board in self._boards if len(values) else ():
                    board.histogram(tag, values, step)

    def rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """The rollouts of a step as compressed JSON lines, in a file that appears when it is whole."""
        path = self.folder / "rollouts" / f"step_{step:06d}.jsonl.gz"
        with whole(path, "wb") as raw, gzip.open(raw, "wb", compresslevel=3) as file:
            for line in lines:
                file.write(f"{json_text({'schema': ROLLOUT_SCHEMA, 'step': step, **line})}\n".encode())

    def flush(self) -> None:
        """Everything on disk, and metrics.csv made anew."""
        with writing(self.folder):
            for board in self._boards:
                board.flush()
            with (self.folder / "metrics.jsonl").open("a") as file:
                os.fsync(file.fileno())  # a checkpoint that is on the disk has its step's line there
            write_csv(self.folder)

    def close(self, finished: bool = False) -> None:
        """Flush and release the files. `finished` says that the run came to its end."""
        self.flush()
        for board in self._boards:
            board.close(finished)


def check_tags(metrics: Mapping[str, float]) -> None:
    """A tag that is on no list would be a curve that nobody documented."""
    unknown = [tag for tag in metrics if tag not in TAGS and not tag.startswith(OPEN_PREFIXES)]
    assert not unknown, f"tags that metrics.TAGS does not list: {unknown}"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl: a line that was cut off while being written is left out, and so is a number
    that was not finite (null).
    """
    return [{tag: value for tag, value in line.items() if value is not None} for line in _written_lines(folder)]


def _written_lines(folder: Path) -> list[dict[str, Any]]:
    return [_parsed(line) for line in _whole_lines(folder)]


def _whole_lines(folder: Path) -> list[str]:
    path = folder / "metrics.jsonl"
    return path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []


def _parsed(line: str) -> dict[str, Any]:
    return json.loads(line, parse_constant=lambda name: None)


def _is_json(line: str) -> bool:
    """Whether a line is one; a power failure may have left something else, which the run that goes on writes again."""
    try:
        _parsed(line)
    except ValueError:
        logger.warning(f"a line of metrics.jsonl is no JSON and is cut away: {line[:40]!r}")
        return False
    return True


def cut_metrics(folder: Path, step: int) -> None:
    """Keep metrics up to the step, and rollouts and the samples of rounds likewise."""
    kept = [line for line in map(_parsed, filter(_is_json, _whole_lines(folder))) if line["step"] <= step]
    with whole(folder / "metrics.jsonl") as file:
        file.writelines(json_text(line) + "\n" for line in kept)
    written = (*(folder / "rollouts").glob("step_*.jsonl.gz"), *(folder / "samples").glob("round_*.jsonl"))
    for path in written:
        number = path.name.partition("_")[2].partition(".")[0]
        if number.isdecimal() and int(number) > step:  # other files are the user's
            path.unlink()


def write_csv(folder: Path) -> None:
    """metrics.csv with the same numbers, one column for each tag."""
    lines = read_metrics(folder)
    columns = list(dict.fromkeys(key for line in lines for key in line))
    with whole(folder / "metrics.csv") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(lines)
