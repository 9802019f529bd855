"""What step 10,000 costs against the first ones: seconds, memory, files, the rollouts page and a resume.

    python benchmarks/long_run.py                        10,000 steps of a small model: about 15 minutes of a core
    python benchmarks/long_run.py --steps 1000

One run with the defaults of everything that writes: metrics, curves, rollouts and their page, checkpoints. Seconds and
memory are the run's own curves. Files are measured as it runs. The page is compared with that of a run of a tenth of
the steps, and so are the processor seconds of a resume that takes one further step.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness import ROOT, Row, doing, save

from minrl.report.rollouts import PAGE, packed_steps
from minrl.run.folder import RunFolder

MODEL = "--base-hidden-size 64 --base-heads 2 --base-layers 1 --base-steps 300 --base-batch-size 32"
WORK = "--prompts-per-step 4 --group-size 4 --max-tokens 48 --threads 1 --device cpu"
SAME = "--schedule constant --learning-rate 1e-9"  # work in each step
EVALUATION = "--no-preflight --no-eval-first --eval-every 0 --eval-examples 4 --eval-samples 1"
FLAGS = [*MODEL.split(), *WORK.split(), *SAME.split(), *EVALUATION.split(), "--quiet"]

BOUNDED = {"page": "a step on the page", "checkpoints": "the checkpoints"}
"""What must not grow with the steps."""


def train(folder: Path, *flags: str) -> subprocess.Popen:
    """A run in the folder."""
    folders = ["--runs-dir", str(folder / "runs"), "--checkpoints-dir", str(folder / "checkpoints")]
    command = [sys.executable, str(ROOT / "train.py"), *flags, *folders]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder)


def sizes(folder: Path, name: str) -> dict[str, int]:
    """Bytes of what a run has written: what grows with it, what its checkpoints take, and a step on the page, which has
    at most 64.
    """
    run, kept = folder / "runs" / name, folder / "checkpoints" / name
    page = run / PAGE
    shown = len(packed_steps(page))
    files = [path.stat().st_size for path in run.rglob("*") if path.is_file() and path != page]
    return {
        "files": sum(files),
        "page": page.stat().st_size // shown if shown else 0,
        "checkpoints": sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()),
    }


def watched(folder: Path, name: str, steps: int) -> list[tuple[int, dict[str, int]]]:
    """Train, and measure the files at about each tenth of the run: the steps that were done, and the bytes."""
    run, seen = train(folder, *FLAGS, "--run-name", name, "--steps", str(steps)), []
    metrics = folder / "runs" / name / "metrics.jsonl"
    while run.poll() is None:
        time.sleep(1)
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if done >= steps // 10 * (len(seen) + 1):
            seen.append((done, sizes(folder, name)))
            doing(f"step {done} of {steps}")
    assert run.returncode == 0, run.returncode
    return [*seen, (steps, sizes(folder, name))]


def resumed(folder: Path, name: str, steps: int) -> float:
    """Processor seconds of a process that takes one further step."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert train(folder, "--resume", name, "--steps", str(steps + 1), "--quiet").wait() == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def curves(lines: Sequence[dict]) -> list[Row]:
    """Means of the last tenth of the steps over those of the first, without the first few, which warm up."""
    part = len(lines) // 10
    rows = []
    for name in ("time/step_s", "time/rollout_s", "time/log_s", "system/memory_gb"):
        first, last = (
            statistics.mean(line[name] for line in some if name in line)
            for some in (lines[part // 10 : part], lines[-part:])
        )
        rows.append(row(f"{name}: the last tenth of {len(lines):,} steps over the first", [last / first]))
    return rows


def files(seen: Sequence[tuple[int, dict[str, int]]], tenth: dict[str, int]) -> list[Row]:
    """Bytes that a step adds to the run, and of what must not grow: the page and the kept checkpoints."""
    (early_at, early), (half_at, half), (end_at, end) = seen[0], seen[len(seen) // 2], seen[-1]
    added = (end["files"] - half["files"]) / (end_at - half_at) / (early["files"] / early_at)
    return [
        row("bytes of a run's files for each step: the second half over the first tenth", [added]),
        *(
            row(f"bytes of {what} over those of a tenth of the run", [end[name] / tenth[name]])
            for name, what in BOUNDED.items()
        ),
    ]


def row(what: str, ratios: list[float]) -> Row:
    """A ratio that may be 15 % above 1."""
    return Row(what, "1", 1.15, 1.0, ratios)


def main() -> None:
    """A row for each thing that could grow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    few = options.steps // 10
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        doing(f"a run of {few} steps")
        tenth = watched(folder, "few", few)[-1][1]
        seen = watched(folder, "long", options.steps)
        lines = [line for line in RunFolder(folder / "runs" / "long").metrics if line["step"]]
        doing("resuming both")
        early = [resumed(folder, "few", few + turn) for turn in range(3)]
        late = [resumed(folder, "long", options.steps + turn) for turn in range(3)]
    print(f"a resume: {statistics.median(early):.1f} s at step {few}, {statistics.median(late):.1f} at {options.steps}")
    print("bytes by step:", *(f"{step}: {bytes_}" for step, bytes_ in seen), sep="\n", flush=True)
    ratios = [end / start for start, end in zip(early, late, strict=True)]
    resume = row(f"processor seconds of a resume: at step {options.steps:,} over step {few:,}", ratios)
    save("long_run", [*curves(lines), *files(seen, tenth), resume])


if __name__ == "__main__":
    main()
