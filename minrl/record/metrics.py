"""Writes metrics to TensorBoard, W&B, metrics.jsonl and metrics.csv, and rollouts to their own files.

A line of metrics.jsonl has all scalars of one step. A resume removes what was written after the checkpoint, so each
step is there once.
"""

import gzip
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from loguru import logger

from minrl.record.fingerprints import FILE as FINGERPRINTS
from minrl.record.fingerprints import cut_fingerprints
from minrl.types import require
from minrl.utils.files import append_csv, append_jsonl, cut_csv, cut_jsonl, fsync, read_jsonl, whole, write_csv, writing
from minrl.utils.text import json_text
from minrl.viewer.chunk import ROLLOUT_SCHEMA

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
    "teacher/kl",
    "teacher/preferred_frac",
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
    "taught/agreement",
    "taught/agreement_by_chance",
    "taught/alignment",
    "taught/change_mean",
    "taught/spill_over",
    "taught/engine_lag",
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
    "system/memory_gb",
    "system/cpu_percent",
    "system/device_memory_gb",
)
"""All fixed tags. A step's seconds are the sum of its phases' (`minrl.record.clock`)."""

HISTOGRAMS = ("engine/importance_weight", "rollout/completion_tokens", "reward/value")
"""Distributions of the steps whose rollouts are written: raw weights of tokens, lengths, rewards."""

OPEN_PREFIXES = ("reward/part/", "reward/role/", "eval/", "baseline/", "task/")
"""Prefixes of tags that tasks name. `task/NAME/` precedes the tags of rewards and rollouts of one of several tasks."""


@runtime_checkable
class Board(Protocol):
    """A viewer of curves, such as TensorBoard."""

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars."""

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Show a text."""

    def histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """Show the distribution of values."""

    def flush(self) -> None:
        """Write what is buffered."""

    def close(self, finished: bool) -> None:
        """Close the files. `finished`: the run reached its last step."""


Lines = Sequence[Mapping[str, Any]]


def _tensorboard(folder: Path, tasks: Sequence[str], settings: Mapping[str, object] | None, earlier: Lines) -> Board:
    from minrl.record.tensorboard import TensorBoardLog

    return TensorBoardLog(folder, tasks, settings, earlier)


def _wandb(folder: Path, tasks: Sequence[str], settings: Mapping[str, object] | None, earlier: Lines) -> Board:
    from minrl.record.wandb import WandbLog

    return WandbLog(folder, tasks, settings, earlier)


LOGGERS: Mapping[str, Sequence[Callable[..., Board]]] = {
    "tensorboard": (_tensorboard,),
    "wandb": (_tensorboard, _wandb),
}
"""The values of `--logger`. metrics.jsonl and metrics.csv are always written."""


class MetricsLog:
    """The metrics files of one run, and its fingerprints. `cut_after` first removes everything after that step.

    `tasks` and `settings` are for TensorBoard's page and hyperparameters.
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
        if cut_after is None:
            earlier = read_metrics(folder)
        else:
            from minrl.record.tensorboard import cut_events

            earlier = cut_metrics(folder, cut_after)
            cut_fingerprints(folder, cut_after)
            cut_events(folder, cut_after)
        self.last = [line for line in earlier if line["step"] == cut_after]
        """The line of the step from which the run goes on, if it was logged."""
        self._columns = cut_csv(folder / "metrics.csv", [str(line["step"]) for line in earlier])
        self._new: list[Mapping[str, float]] = []  # lines that metrics.csv lacks
        self._boards = [board(folder, tasks, settings, earlier) for board in LOGGERS[logger]]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars everywhere."""
        check_tags(metrics)
        with writing(self.folder):
            for board in self._boards:
                board.scalars(step, metrics)
            append_jsonl(self.folder / "metrics.jsonl", [{"step": step, **metrics}])
        self._new.append({"step": step, **{tag: value for tag, value in metrics.items() if math.isfinite(value)}})

    def fingerprint(self, step: int, hashes: Mapping[str, Any]) -> None:
        """Write hashes of the step."""
        with writing(self.folder):
            append_jsonl(self.folder / FINGERPRINTS, [{"step": step, **hashes}])

    def text(self, tag: str, text: str, step: int) -> None:
        """Show a text on every board."""
        with writing(self.folder):
            for board in self._boards:
                board.text(tag, text, step)

    def histograms(self, step: int, distributions: Mapping[str, np.ndarray]) -> None:
        """Show distributions by tag; a tag without values is left out."""
        for tag, values in distributions.items():
            assert tag in HISTOGRAMS, f"a histogram that metrics.HISTOGRAMS does not list: {tag}"
            with writing(self.folder):
                for board in self._boards if len(values) else ():
                    board.histogram(tag, values, step)

    def rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write a step's rollouts as compressed JSON lines, whole or not at all."""
        path = self.folder / "rollouts" / f"step_{step:06d}.jsonl.gz"
        with whole(path, "wb") as raw, gzip.open(raw, "wb", compresslevel=3) as file:
            for line in lines:
                file.write(f"{json_text({'schema': ROLLOUT_SCHEMA, 'step': step, **line})}\n".encode())

    def flush(self) -> None:
        """Put everything on disk, and the new lines into metrics.csv."""
        with writing(self.folder):
            for board in self._boards:
                board.flush()
            append_jsonl(self.folder / "metrics.jsonl", [])
            for path in (self.folder / "metrics.jsonl", self.folder / FINGERPRINTS):
                if path.exists():
                    fsync(path)  # before the checkpoint of the step
        self._write_table()

    def _write_table(self) -> None:
        """Append the new lines to metrics.csv. It is written anew where they have a new column, and where it was not
        written by this object, or not whole.
        """
        table, columns, self._columns = self.folder / "metrics.csv", self._columns, []
        if columns and table.exists() and set().union(*self._new) <= set(columns):
            append_csv(table, columns, self._new)
        else:
            lines = read_metrics(self.folder)
            columns = list(dict.fromkeys(key for line in lines for key in line))
            write_csv(table, columns, lines)
        self._columns, self._new = columns, []

    def close(self, finished: bool = False) -> None:
        """Flush and close the files. `finished`: the run reached its last step."""
        self.flush()
        for board in self._boards:
            board.close(finished)


def check_tags(metrics: Mapping[str, float]) -> None:
    """Refuse tags that no list documents."""
    unknown = [tag for tag in metrics if tag not in TAGS and not tag.startswith(OPEN_PREFIXES)]
    assert not unknown, f"tags that metrics.TAGS does not list: {unknown}"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without numbers that were not finite (null) and without a torn last line."""
    lines = read_jsonl(folder / "metrics.jsonl")
    for number, line in enumerate(lines, 1):
        require(
            _has_step(line), f"{folder}/metrics.jsonl is damaged: line {number} is not that of a step: {line!r:.40}"
        )
    return _finite(lines)


def _finite(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without numbers that were not finite."""
    return [{tag: value for tag, value in line.items() if value is not None} for line in lines]


def _has_step(line: object) -> bool:
    return isinstance(line, dict) and isinstance(line.get("step"), int)


def cut_metrics(folder: Path, step: int) -> list[dict[str, Any]]:
    """Remove metrics, rollouts and samples of rounds after the step. Returns the metrics that stay."""

    def say(line: str) -> None:
        logger.warning(f"a line of metrics.jsonl is no JSON and is cut away: {line[:40]!r}")

    def keeps(line: Any) -> bool:  # noqa: ANN401 - whatever the line holds
        if not _has_step(line):
            say(repr(line))
            return False
        return line["step"] <= step

    lines = cut_jsonl(folder / "metrics.jsonl", keeps, damaged=say)
    written = (*(folder / "rollouts").glob("step_*.jsonl.gz"), *(folder / "samples").glob("round_*.jsonl"))
    for path in written:
        number = path.name.partition("_")[2].partition(".")[0]
        if number.isdecimal() and int(number) > step:  # other files are the user's
            path.unlink()
    return _finite(lines)
