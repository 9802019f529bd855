"""Seconds until the default task is learned: the defaults against refills, curriculum, temperature and other settings.

    python benchmarks/reach.py
    python benchmarks/reach.py --settings default rate_6e-4 --seeds 0 --goal 0.95

Trains `train.py` with each setting and seed, and prints a table of when the held-out score first reached the goal:
steps, sampled tokens and seconds of a core (without evaluations), between evaluations by a straight line. A run that is
complete is not repeated. About 4 minutes of a core for each run.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

from curves import curve, reached, train
from harness import ROOT, doing

from minrl.run.folder import RunFolder

SETTINGS = {
    "default": "",
    "refill_1": "--refill-rounds 1",
    "refill_2": "--refill-rounds 2",
    "curriculum": "--curriculum",
    "cool": "--temperature 0.8",
    "warm": "--temperature 1.2",
    "adapted": "--target-reward-std 0.35",
    "drop_equal": "--drop-equal-groups",
    "rate_6e-4": "--learning-rate 6e-4",
    "rate_1e-3": "--learning-rate 1e-3",
    "minibatches_2": "--minibatches-per-pass 2",
    "minibatches_4": "--minibatches-per-pass 4",
    "curriculum_minibatches_2": "--curriculum --minibatches-per-pass 2",
    "passes_2": "--passes-per-step 2",
    "few": "--prompts-per-step 24",
    "few_rate_6e-4": "--prompts-per-step 24 --learning-rate 6e-4",
    "group_16": "--prompts-per-step 24 --group-size 16",
}

SHOWN = ["default", "refill_1", "warm", "cool", "curriculum"]


def parse() -> argparse.Namespace:
    """Which settings, how long, and where to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=SHOWN, choices=SETTINGS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--goal", type=float, default=0.85)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "reach")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="runs side by side")
    return parser.parse_args()


def main() -> None:
    """Train what is missing, and show it."""
    options = parse()
    length = ["--steps", str(options.steps), "--eval-every", str(options.eval_every)]

    def start(setting: str, seed: int) -> None:
        train(options, f"{setting}-seed{seed}", [*SETTINGS[setting].split(), "--seed", str(seed), *length])

    doing("the base model, which is made once, and the first run")
    todo = [(setting, seed) for seed in options.seeds for setting in options.settings]
    start(*todo[0])  # alone, because it makes the base model that the others find in the cache
    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(lambda pair: start(*pair), todo[1:]))
    print(table(options))


def table(options: argparse.Namespace) -> str:
    """Markdown: medians over the seeds, and each seed's seconds."""
    lines = [
        f"| setting | steps to {options.goal:.0%} | tokens, millions | seconds of a core | of each seed "
        f"| seconds a step | tokens that teach | after {options.steps} steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting in options.settings:
        folders = [options.folder / f"{setting}-seed{seed}" for seed in options.seeds]
        curves = [curve(folder) for folder in folders]
        goals = [reached(points, options.goal) for points in curves]
        taught = [
            line["policy/trained_token_frac"]
            for folder in folders
            for line in RunFolder(folder).metrics
            if line["step"]
        ]
        cells = [
            f"`{SETTINGS[setting] or 'default'}`",
            _median([goal and goal.step for goal in goals], 0),
            _median([goal and goal.tokens / 1e6 for goal in goals], 2),
            _median([goal and goal.seconds for goal in goals], 0),
            ", ".join(f"{goal.seconds:.0f}" if goal else "never" for goal in goals),
            f"{statistics.median(points[-1].seconds / points[-1].step for points in curves):.2f}",
            f"{statistics.mean(taught):.0%}",
            ", ".join(f"{points[-1].solved:.1%}" for points in curves),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(values: Sequence[float | None], digits: int) -> str:
    """A run that never reached the goal counts as the slowest."""
    middle = statistics.median(inf if value is None else value for value in values)
    return "never" if middle == inf else f"{middle:.{digits}f}"


if __name__ == "__main__":
    main()
