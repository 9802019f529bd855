"""Hashes of what each step sampled, was rewarded, compared and saved, so that a step can be checked by repeating it.

A line of fingerprints.jsonl is `{"step": 3, "ids": ..., "rewards": ..., "advantages": ...}`, and for a saved step
`{"step": 3, "files": {...}}` with the hashes of the checkpoint's weights and moments.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from minrl.run.checkpoint import MANIFEST
from minrl.types import Rollout
from minrl.utils.files import cut_jsonl, read_jsonl

FILE = "fingerprints.jsonl"

PARTS = ("ids", "rewards", "advantages")
"""What every step has, in the order in which one follows from the other."""


def of_step(rollouts: Sequence[Rollout], advantages: Tensor) -> dict[str, str]:
    """Hashes of the step's N rollouts and their advantages (N,)."""
    ids = (np.array([len(one.ids), *one.ids, *one.loss_mask], dtype="<i8") for one in rollouts)
    rewards = np.array([one.reward.value if one.reward else np.nan for one in rollouts], dtype="<f8")
    compared = advantages.detach().double().cpu().numpy().astype("<f8")
    return dict(zip(PARTS, map(_digest, (ids, [rewards], [compared])), strict=True))


def of_checkpoint(checkpoint: Path) -> dict[str, str]:
    """The hashes of its weights and moments, from its manifest."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    return {name: digest for name, digest in sorted(manifest.items()) if name.endswith(".safetensors")}


def read_fingerprints(folder: Path) -> dict[int, dict[str, Any]]:
    """The hashes of each step of a run, by step."""
    steps: dict[int, dict[str, Any]] = defaultdict(dict)
    for line in read_jsonl(folder / FILE):
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            steps[line["step"]].update(line)
    return dict(steps)


def cut_fingerprints(folder: Path, step: int) -> None:
    """Remove those of later steps."""
    cut_jsonl(folder / FILE, lambda line: isinstance(line, dict) and line.get("step", 0) <= step)


def _digest(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()
