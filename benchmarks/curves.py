"""Training runs side by side and their held-out scores over what they spent: what benchmarks of learning share.

Seconds are of processor time, without evaluations: others on the machine change them little.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from harness import ROOT, doing

from minrl.run.folder import RunFolder

FLAGS = "--threads 1 --rollouts-every 0 --save-every 0 --no-keep-best --no-preflight --quiet"


class Point(NamedTuple):
    """An evaluation: what was spent on training until then, and the held-out score."""

    step: float
    tokens: float
    seconds: float
    solved: float


def train(options: argparse.Namespace, name: str, flags: Sequence[str]) -> None:
    """One run of Countdown in `options.folder`, unless it is complete."""
    if (options.folder / name / "summary.json").exists():
        return
    doing(f"training, {options.at_once} at once; {name} began last")
    folders = ["--runs-dir", str(options.folder), "--checkpoints-dir", str(options.folder / "checkpoints")]
    command = [sys.executable, str(ROOT / "train.py"), *flags, *FLAGS.split(), "--run-name", name, *folders]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def curve(folder: Path) -> list[Point]:
    """The evaluations of a run."""
    config = json.loads((folder / "config.json").read_text())["config"]
    completions, cores = config["prompts_per_step"] * config["group_size"], len(os.sched_getaffinity(0))
    points, tokens, seconds = [], 0.0, 0.0
    for line in RunFolder(folder).metrics:
        if line["step"]:
            tokens += completions * line["rollout/completion_tokens_mean"]
            training = line["time/step_s"] - line.get("time/eval_s", 0.0)
            seconds += training * cores * line["system/cpu_percent"] / 100
        if "eval/countdown/pass@1" in line:
            points.append(Point(line["step"], tokens, seconds, line["eval/countdown/pass@1"]))
    return points


def mean(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean over the seeds at each evaluation."""
    return [Point(*map(statistics.mean, zip(*points, strict=True))) for points in zip(*curves, strict=True)]


def reached(points: Sequence[Point], goal: float) -> Point | None:
    """Where a line through the evaluations first has the goal; None if it never has."""
    if points[0].solved >= goal:
        return points[0]
    for before, after in pairwise(points):
        if after.solved >= goal:
            part = (goal - before.solved) / (after.solved - before.solved)
            return Point(*(a + part * (b - a) for a, b in zip(before, after, strict=True)))
    return None
