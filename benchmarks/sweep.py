"""Every algorithm on the default task, three seeds each: does each row learn?

    python benchmarks/sweep.py

Trains each row of `ALGORITHMS` for 30 steps, one run for each core at a time, and writes docs/algorithms_measured.md
(held-out pass@1 before and after) and docs/algorithms.png (rewards). A run that is complete is not repeated. Needs
matplotlib (the charts extra). About 25 minutes on two cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import doing

from minrl.algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parent.parent
FLAGS = "--prompts-per-step 24 --eval-every 0 --rollouts-every 0 --no-preflight --quiet"
SMOOTHING = 5
"""Steps in the moving mean of the picture."""


def parse() -> argparse.Namespace:
    """Which rows, how long, and where to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "sweep")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="runs side by side")
    return parser.parse_args()


def main() -> None:
    """Train what is missing, then write the table and the picture."""
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    names, started = options.algorithms, time.perf_counter()
    todo = [(name, seed) for seed in options.seeds for name in names if not summary(options, name, seed).exists()]
    if todo:
        train(options, *todo.pop(0))  # alone, because it makes the base model that the others find in the cache
    with ThreadPoolExecutor(options.at_once) as pool:
        for pair, seconds in zip(todo, pool.map(lambda pair: train(options, *pair), todo), strict=True):
            print(f"{pair[0]} seed {pair[1]}: {seconds:.0f} s", flush=True)
    print(f"{len(todo)} runs in {time.perf_counter() - started:.0f} s")
    (ROOT / "docs" / "algorithms_measured.md").write_text(table(options))
    draw(options, ROOT / "docs" / "algorithms.png")


def run_folder(options: argparse.Namespace, name: str, seed: int) -> Path:
    """Where train.py puts the run."""
    return options.folder / f"countdown-{name}-seed{seed}"


def summary(options: argparse.Namespace, name: str, seed: int) -> Path:
    """What train.py writes when a run is complete."""
    return run_folder(options, name, seed) / "summary.json"


def train(options: argparse.Namespace, name: str, seed: int) -> float:
    """One run with one thread for each of those side by side; its seconds."""
    threads = max(1, len(os.sched_getaffinity(0)) // options.at_once)
    folders = ["--runs-dir", str(options.folder), "--checkpoints-dir", str(options.folder / "checkpoints")]
    flags = ["--algorithm", name, "--seed", str(seed), "--steps", str(options.steps), "--threads", str(threads)]
    flags += ["--run-name", run_folder(options, name, seed).name]
    doing(f"training, {options.at_once} at once; {name} seed {seed} began last")
    started = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *flags, *FLAGS.split(), *folders], check=True, env=environment
    )
    return time.perf_counter() - started


def figures(options: argparse.Namespace, name: str) -> list[dict[str, dict[str, float]]]:
    """The summaries of an algorithm's seeds."""
    return [json.loads(summary(options, name, seed).read_text()) for seed in options.seeds]


def table(options: argparse.Namespace) -> str:
    """Markdown: before and after, over the seeds."""
    before = [one["eval_before"]["pass@1"] for name in options.algorithms for one in figures(options, name)]
    samples = figures(options, options.algorithms[0])[0]["eval_after"]["n"]
    lines = [
        "# Each algorithm learns",
        "",
        f"`python benchmarks/sweep.py`: {options.steps} steps of Countdown with 24 prompts and groups of 8, each other",
        f"setting at its default, seeds {', '.join(map(str, options.seeds))}. pass@1 of held-out problems, {samples}",
        "samples at temperature 1 for each figure: the mean over the seeds, and the lowest and the highest.",
        f"Before training it is {statistics.mean(before):.1%} ({min(before):.1%} to {max(before):.1%}) for all, which",
        f"start from the same base model. {time.strftime('%Y-%m-%d')}.",
        "",
        "A step makes one update, so every ratio is 1 and no bound is met: rows that differ in nothing else (`grpo`",
        "and `dual_clip`, `dapo` and `cispo`) are the same to the last digit, as they must be.",
        "",
        "| algorithm | after | greedy | entropy of the last five steps, nats per token |",
        "|---|---|---|---|",
    ]
    for name in options.algorithms:
        after = [one["eval_after"]["pass@1"] for one in figures(options, name)]
        greedy = statistics.mean(one["eval_after"]["pass@1_greedy"] for one in figures(options, name))
        entropy = statistics.mean(
            statistics.mean(curve(options, name, seed, "policy/entropy")[-5:]) for seed in options.seeds
        )
        lines.append(
            f"| `{name}` | {statistics.mean(after):.1%} ({min(after):.1%} to {max(after):.1%}) | {greedy:.1%} "
            f"| {entropy:.3f} |"
        )
    lines += ["", "![Mean reward of each algorithm, three seeds](algorithms.png)", ""]
    return "\n".join(lines).replace("%", " %")


def curve(options: argparse.Namespace, name: str, seed: int, tag: str) -> list[float]:
    """A scalar's values, by step."""
    lines = (run_folder(options, name, seed) / "metrics.jsonl").read_text().splitlines()
    return [line[tag] for line in map(json.loads, lines) if tag in line]


def smooth(values: list[float]) -> list[float]:
    """The mean of each value and the ones before it."""
    return [statistics.mean(values[max(0, end - SMOOTHING) : end]) for end in range(1, len(values) + 1)]


def draw(options: argparse.Namespace, path: Path) -> None:
    """One panel for each algorithm, the others in grey behind it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = {n: [smooth(curve(options, n, seed, "reward/mean")) for seed in options.seeds] for n in options.algorithms}
    means = {name: [statistics.mean(step) for step in zip(*of_it, strict=True)] for name, of_it in curves.items()}
    columns = 5
    rows = -(-len(curves) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(12, 2.3 * rows), sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for panel, (name, of_it) in zip(panels, curves.items(), strict=False):
        for mean in means.values():
            panel.plot(mean, color="0.85", linewidth=0.8)
        for seed in of_it:
            panel.plot(seed, color="#0072b2", linewidth=0.8, alpha=0.5)
        panel.plot(means[name], color="#0072b2", linewidth=2)
        panel.set_title(name, fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    figure.supxlabel("step", fontsize=11)
    figure.supylabel(f"mean reward, over {SMOOTHING} steps", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
