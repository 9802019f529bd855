"""What each step of docs/one_file.md changes: training rewards of docs/one_file.py, from REINFORCE to GRPO.

    python docs/one_file_curves.py checkpoints/base-countdown-* --steps 40 --max-tokens 48

A finished run is kept in runs/one_file/; when all are there, docs/one_file.png is drawn.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from statistics import fmean

from torch import Tensor

from minrl.report.charts import color, picture
from minrl.report.runs import smoothed

HERE = Path(__file__).parent
RUNS = Path("runs/one_file")
SEEDS = (0, 1)


def reward_itself(rewards: Tensor) -> Tensor:
    """REINFORCE's advantage."""
    return rewards.flatten()


def reward_less_1(rewards: Tensor) -> Tensor:
    """The same for rewards of -1 to 0, which rank completions in the same way."""
    return rewards.flatten() - 1


def reinforce_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sampled: Tensor) -> Tensor:
    """The loss without a ratio: -A log π."""
    return -((logprobs * advantages[:, None] * sampled).sum(1) / sampled.sum(1)).mean()


VARIANTS = {
    "REINFORCE": ({"advantages_of": reward_itself, "grpo_loss": reinforce_loss}, 1),
    "REINFORCE, each reward 1 less": ({"advantages_of": reward_less_1, "grpo_loss": reinforce_loss}, 1),
    "minus the group's mean": ({"grpo_loss": reinforce_loss}, 1),
    "two updates, no ratio": ({"grpo_loss": reinforce_loss}, 2),
    "two updates, ratio and clip": ({}, 2),
}
"""What replaces functions of docs/one_file.py, and the number of optimizer steps on each batch."""

CHARTS = {
    "the baseline": ["REINFORCE", "REINFORCE, each reward 1 less", "minus the group's mean"],
    "the ratio": ["minus the group's mean", "two updates, no ratio", "two updates, ratio and clip"],
}

COLOURS = dict(zip(VARIANTS, (0, 1, 3, 5, 4), strict=True))


def trained(model: str, name: str, seed: int, flags: list[str]) -> dict[str, list[float]]:
    """The mean reward of each step, and the greedy held-out scores (%) before and after."""
    path = RUNS / f"{name}, seed {seed}.json"
    if not path.exists():
        spec = importlib.util.spec_from_file_location("one_file", HERE / "one_file.py")
        assert spec is not None and spec.loader is not None
        one_file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(one_file)
        parts, updates = VARIANTS[name]
        vars(one_file).update(parts)
        sys.argv = ["one_file.py", model, "--updates", str(updates), "--seed", str(seed), *flags]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            one_file.main()
        found = {"rewards": r"reward (\S+),", "greedy": r"greedy: (\S+)%"}
        figures = {key: [float(one) for one in re.findall(form, printed.getvalue())] for key, form in found.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures))
    return json.loads(path.read_text())


def draw(curves: dict[str, list[list[float]]], target: Path) -> None:
    """Each variant's mean over its seeds, smoothed."""
    with picture(target, 8, 3, columns=len(CHARTS)) as (_, axes):
        for (title, names), own in zip(CHARTS.items(), axes, strict=True):
            for name in names:
                average = smoothed([fmean(step) for step in zip(*curves[name], strict=True)], 0.8)
                steps = range(1, len(average) + 1)
                own.plot(steps, average, color=color(COLOURS[name]), label=name)
            own.set(title=title, xlabel="step", ylabel="mean reward", ylim=(0, 0.8))
            own.legend(frameon=False, loc="lower left", fontsize=8)


def main() -> None:
    """Train what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the small base model's folder")
    parser.add_argument("--only", choices=VARIANTS, nargs="+", default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    config, flags = parser.parse_known_args()  # the others are those of docs/one_file.py
    curves = {
        name: [trained(config.model, name, seed, flags)["rewards"] for seed in config.seeds] for name in config.only
    }
    if list(curves) == list(VARIANTS):
        draw(curves, HERE / "one_file.png")


if __name__ == "__main__":
    main()
