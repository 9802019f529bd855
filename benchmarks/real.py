"""How varied a pretrained model writes, before and after `make real`; `minrl report` has its scores and its entropy.

    python benchmarks/real.py runs/sentences-grpo-seed0 ...
    python benchmarks/real.py RUN ... --picture docs/real.png     their training rewards as curves

Variety is the share of distinct openings (first three words) among the completions of the first and of the last steps
whose rollouts were written.
"""

import argparse
import gzip
import json
from pathlib import Path

OPENING = 3
"""Words of an opening."""

STEPS = 3
"""First and last written steps that are compared."""


def written(run: Path) -> list[list[dict]]:
    """The trained completions of each step whose rollouts were written, in order."""
    steps = []
    for path in sorted((run / "rollouts").glob("step_*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            steps.append([one for one in map(json.loads, lines) if one.get("purpose") == "train"])
    return steps


def distinct_openings(completions: list[dict]) -> float:
    """Distinct openings over completions."""
    return len({" ".join(one["text"].split()[:OPENING]).lower() for one in completions}) / len(completions)


def draw(runs: list[Path], picture: Path) -> None:
    """Draw the mean reward of each training step, one panel a task and one line a run."""
    from matplotlib.figure import Figure

    by_task: dict[str, list[Path]] = {}
    for run in runs:
        by_task.setdefault(json.loads((run / "summary.json").read_text())["task"], []).append(run)
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, (task, own) in zip(figure.subplots(1, len(by_task), squeeze=False)[0], by_task.items(), strict=True):
        for number, run in enumerate(own):
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            curve = [(line["step"], line["reward/mean"]) for line in lines if "reward/mean" in line]
            axes.plot(*zip(*curve, strict=True), label=f"seed {number}")
        axes.set(title=f"{task}, SmolLM2-135M-Instruct", xlabel="step", ylabel="mean reward", ylim=(0, 1.02))
        axes.legend(frameon=False, loc="lower right")
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Print the variety of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--picture", type=Path, help="file for the curves of the training reward")
    options = parser.parse_args()
    if options.picture:
        draw(options.runs, options.picture)
    for run in options.runs:
        steps = written(run)
        if not any(steps):
            parser.error(f"{run} has no rollouts")
        first, last = ([one for step in part for one in step] for part in (steps[:STEPS], steps[-STEPS:]))
        print(f"{run.name}: distinct openings {distinct_openings(first):.0%} -> {distinct_openings(last):.0%}")


if __name__ == "__main__":
    main()
