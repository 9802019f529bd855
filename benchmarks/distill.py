"""A Countdown student of half the width: from a trained teacher, from rewards, and from both.

    python benchmarks/distill.py

Trains a teacher (`train.py` with GRPO), then a student of half the width from the same warm start, from rewards and
from the teacher (`--ways grpo distill both`: from both too), three seeds each, and prints a table.
docs/distillation.png shows held-out pass@1 over sampled tokens and over seconds of a core. Seconds are of processor
time, without evaluations: others on the machine change them little. A run that is complete is not repeated. Needs
matplotlib (the charts extra). About 15 minutes on two cores.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from curves import Point, curve, mean, train
from harness import ROOT, doing

HALF = "--base-hidden-size 96 --base-heads 2"
WAYS = {
    "grpo": "--algorithm grpo",
    "distill": "--algorithm distill --teacher-id {teacher}",
    "both": "--algorithm grpo --teacher-id {teacher}",
}
"""What each student learns from: rewards, a teacher, or both."""
COLOURS = {"grpo": "#0072b2", "distill": "#d55e00", "both": "#009e73"}


def parse() -> argparse.Namespace:
    """How long, which seeds, and where to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher-steps", type=int, default=80)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--until", type=int, default=0, help="compare up to this step of all; 0: the last")
    parser.add_argument("--ways", nargs="+", default=["grpo", "distill"], choices=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "distill")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="runs side by side")
    return parser.parse_args()


def main() -> None:
    """Train what is missing, and show it."""
    options = parse()
    doing("the base model, which is made once, and the first run")
    teacher = ["--steps", str(options.teacher_steps), "--eval-every", "0"]
    train(options, "teacher", teacher)
    held = next((options.folder / "checkpoints" / "teacher").glob("step_*"))
    todo = [(way, seed) for seed in options.seeds for way in options.ways]
    start(options, held, *todo[0])  # alone, because it makes the base model that the others find in the cache
    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(lambda pair: start(options, held, *pair), todo[1:]))
    show(options)


def show(options: argparse.Namespace) -> None:
    """Print the table, draw the picture."""
    last = options.until or options.steps
    curves = {
        way: [[p for p in curve(options.folder / f"{way}-seed{seed}") if p.step <= last] for seed in options.seeds]
        for way in options.ways
    }
    print(table(options, curves))
    draw(curves, ROOT / "docs" / "distillation.png")


def start(options: argparse.Namespace, teacher: Path, way: str, seed: int) -> None:
    """One student."""
    flags = [*WAYS[way].format(teacher=teacher).split(), *HALF.split(), "--seed", str(seed)]
    flags += ["--steps", str(options.steps), "--eval-every", str(options.eval_every)]
    train(options, f"{way}-seed{seed}", flags)


def table(options: argparse.Namespace, curves: dict[str, list[list[Point]]]) -> str:
    """Markdown: mean, lowest and highest over the seeds, and when each is as good as the first is in the end."""
    teacher = curve(options.folder / "teacher")[-1]
    goal = mean(curves[options.ways[0]])[-1].solved
    lines = [
        f"Teacher: {teacher.step} steps of GRPO, {teacher.tokens / 1e6:.2f} million tokens, "
        f"{teacher.seconds:.0f} s of a core, pass@1 {teacher.solved:.1%}.",
        "",
        f"| learns from | before | after {options.until or options.steps} steps | tokens, millions | seconds of a core "
        f"| as good as `{options.ways[0]}` then ({goal:.1%}) |",
        "|---|---|---|---|---|---|",
    ]
    for way, of_it in curves.items():
        average = mean(of_it)
        reached = next((point for point in average if point.solved >= goal), None)
        when = "never" if reached is None else f"step {reached.step:.0f}, {reached.tokens / 1e6:.2f} million, "
        when += "" if reached is None else f"{reached.seconds:.0f} s"
        ends = [points[-1].solved for points in of_it]
        lines.append(
            f"| `{way}` | {average[0].solved:.1%} | {average[-1].solved:.1%} ({min(ends):.1%} to {max(ends):.1%}) "
            f"| {average[-1].tokens / 1e6:.2f} | {average[-1].seconds:.0f} | {when} |"
        )
    every = " ".join(
        f"{way}: " + ", ".join(f"{point.solved:.1%}" for point in mean(of_it)) + "." for way, of_it in curves.items()
    )
    return "\n".join([*lines, "", f"Mean at each evaluation. {every}"])


def draw(curves: dict[str, list[list[Point]]], path: Path) -> None:
    """Held-out pass@1 over tokens and over seconds: each seed, and the mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = {"grpo": "rewards (GRPO)", "distill": "a teacher (distill)", "both": "both"}
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    spent = {
        "sampled tokens, millions": lambda point: point.tokens / 1e6,
        "seconds of a core": lambda point: point.seconds,
    }
    for panel, (label, measure) in zip(panels, spent.items(), strict=True):
        for way, of_it in curves.items():
            for points in of_it:
                panel.plot(
                    [*map(measure, points)], [p.solved for p in points], color=COLOURS[way], alpha=0.3, linewidth=0.8
                )
            average = mean(of_it)
            panel.plot(
                [*map(measure, average)], [p.solved for p in average], color=COLOURS[way], linewidth=2, label=names[way]
            )
        panel.set_xlabel(label)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("held-out pass@1")
    panels[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
