"""The files of a run's numbers: metrics.jsonl, metrics.csv, fingerprints.jsonl and rollouts/step_*.jsonl.gz.

A line of metrics.jsonl has all scalars of one step; metrics.csv is made of it. A line of fingerprints.jsonl has hashes
of what the step sampled, was rewarded and compared, and of the files of its checkpoint, so that a step can be checked
by repeating it. A resume removes what was written after its checkpoint, so each step is there once.
"""

import gzip
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from torch import Tensor

from minrl.report.rollouts.chunk import ROLLOUT_SCHEMA
from minrl.run.checkpoint import HASHES, read_state
from minrl.run.folder import FINGERPRINTS, METRICS, RunFolder, has_step
from minrl.types import Rollout
from minrl.utils.files import append_jsonl, cut_jsonl, fsync, whole, write_csv, writing
from minrl.utils.text import json_text

PARTS = ("ids", "rewards", "advantages")
"""The hashes of every step, in the order in which one follows from the other."""

NUMBERED = re.compile(r"(?:step|round)_(\d+)\.jsonl(?:\.gz)?")
"""Files of a step in the folders `rollouts` and `samples`. Others are the user's."""


class RunFiles:
    """Writes the files. `cut_after` first removes everything after that step (-1: all)."""

    def __init__(self, folder: Path, cut_after: int | None = None) -> None:
        self.folder = folder
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        if cut_after is not None:
            cut_after_step(folder, cut_after)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's scalars."""
        append_jsonl(self.folder / METRICS, [{"step": step, **metrics}])

    def fingerprint(self, step: int, hashes: Mapping[str, Any]) -> None:
        """Write hashes of the step."""
        append_jsonl(self.folder / FINGERPRINTS, [{"step": step, **hashes}])

    def rollouts(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write a step's rollouts as compressed JSON lines, whole or not at all."""
        path = self.folder / "rollouts" / f"step_{step:06d}.jsonl.gz"
        with whole(path, "wb") as raw, gzip.open(raw, "wb", compresslevel=3) as file:
            for line in lines:
                file.write(f"{json_text({'schema': ROLLOUT_SCHEMA, 'step': step, **line})}\n".encode())

    def flush(self) -> None:
        """Put everything on disk, and write metrics.csv anew."""
        with writing(self.folder):
            for path in (self.folder / METRICS, self.folder / FINGERPRINTS):
                if path.exists():
                    fsync(path)
        lines = read_metrics(self.folder)
        write_csv(self.folder / "metrics.csv", list(dict.fromkeys(tag for line in lines for tag in line)), lines)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return RunFolder(folder).metrics


def cut_after_step(folder: Path, step: int) -> None:
    """Remove metrics, fingerprints, rollouts and samples of later steps, and lines that a power failure damaged."""

    def damaged(line: object) -> None:
        logger.warning(f"a damaged line is removed: {str(line)[:40]!r}")

    for name in (METRICS, FINGERPRINTS):
        cut_jsonl(folder / name, lambda line: has_step(line) and line["step"] <= step, damaged)
    for path in (*(folder / "rollouts").glob("*"), *(folder / "samples").glob("*")):
        number = NUMBERED.fullmatch(path.name)
        if number and int(number[1]) > step:
            path.unlink()


def hashes_of_step(rollouts: Sequence[Rollout], advantages: Tensor) -> dict[str, str]:
    """Hashes of the step's N rollouts and their advantages (N,)."""
    ids = (np.array([len(one.ids), *one.ids, *one.loss_mask], dtype="<i8") for one in rollouts)
    rewards = np.array([one.reward.value if one.reward else np.nan for one in rollouts], dtype="<f8")
    compared = advantages.detach().double().cpu().numpy().astype("<f8")
    return dict(zip(PARTS, map(_digest, (ids, [rewards], [compared])), strict=True))


def hashes_of_checkpoint(checkpoint: Path) -> dict[str, str]:
    """The hashes of its weights and moments, which were saved with them."""
    return read_state(checkpoint)[HASHES]


def read_fingerprints(folder: Path) -> dict[int, dict[str, Any]]:
    """The hashes of each step of a run, by step."""
    return RunFolder(folder).fingerprints


def _digest(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()
