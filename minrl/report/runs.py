"""Runs as their folders describe them, even while they are running or after they were killed, and groups of seeds."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minrl.config import HOUSEKEEPING
from minrl.dataflow import require
from minrl.run.folder import METRICS, RunFolder, without_nulls
from minrl.run.stopping import Score, best_of
from minrl.utils.files import read_line, whole_lines
from minrl.utils.task_names import task_key

REPORTS = "report"
"""The folder beside the runs that holds a report of several."""

SMOOTHING = 0.6
"""Weight of the past in curves, unless the user says otherwise."""

T975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The 97.5 % quantile of Student's t distribution with 1 to 10 degrees of freedom. The last is taken beyond them, where
it is at most 14 % too large.
"""


def metrics(run: str, runs_dir: str = "runs") -> list[dict[str, float]]:
    """The curves of a run, by its name or folder: for each step a dict of tags and values. `minrl.metrics`.

    Raises `UserError` if there is no such run.
    """
    return RunFolder.open(run, runs_dir).metrics


class RunCurves(RunFolder):
    """A run's curves and held-out scores."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.resolve().name

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Its numbers, step by step."""
        return self.metrics

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its settings by flag, without those that change no curve; those of its tasks as `task.option`."""
        values = {name: value for name, value in self.config.items() if name not in HOUSEKEEPING}
        chosen = values.pop("tasks", {})
        own = {f"{task}.{name}": value for task in self.tasks for name, value in chosen.get(task, {}).items()}
        return {**values, **own}

    @cached_property
    def tasks(self) -> list[str]:
        """The evaluated tasks, the trained one first."""
        found = [tag[len("eval/") : -len("/pass@1")] for line in self.lines for tag in line if tag.endswith("/pass@1")]
        return sorted(dict.fromkeys(found), key=lambda task: task != self.trained)

    @property
    def last_step(self) -> int:
        """The last step that was written; 0 before the first."""
        return self.lines[-1]["step"] if self.lines else 0

    @cached_property
    def trained(self) -> str:
        """The task that is trained, or without one the file of rows."""
        name = str(self.summary.get("task") or task_key(str(self.config.get("task", ""))))
        return name or Path(str(self.config.get("data", ""))).name

    def curve(self, tag: str) -> dict[int, float]:
        """The values of a tag, by step."""
        return {line["step"]: float(line[tag]) for line in self.lines if tag in line}

    def positions(self, axis: str) -> dict[int, float]:
        """Where each step is on an axis: step, tokens or seconds. The latter add up from step 1, 0 where unknown."""
        passed, places = 0.0, {}
        for line in self.lines:
            took = line.get("time/step_s", 0.0) if line["step"] else 0.0
            tokens = line.get("speed/tokens_per_s", 0.0) * took or line.get("sft/tokens", 0.0)  # sampled, else read
            passed += {"step": 0.0, "tokens": tokens, "seconds": took}[axis]
            places[line["step"]] = float(line["step"]) if axis == "step" else passed
        return places

    def scores(self, task: str) -> list[Score]:
        """The held-out scores of a task over the run."""
        tag, rewards = f"eval/{task}/pass@1", self.curve(f"eval/{task}/reward_mean")
        low, high = self.curve(f"{tag}_low"), self.curve(f"{tag}_high")
        return [Score(n, value, low[n], high[n], rewards.get(n, 0.0)) for n, value in self.curve(tag).items()]

    def before_and_after(self, task: str) -> tuple[Score | None, Score | None]:
        """The score of a task before the first step, and the last one after it; None where not measured."""
        scores = self.scores(task)
        before = next((score for score in scores if score.step == 0), None)
        return before, next((score for score in reversed(scores) if score.step > 0), None)

    def best(self, task: str) -> Score | None:
        """The best score after a step, if the last one is worse."""
        scores = [score for score in self.scores(task) if score.step > 0]
        best = best_of(scores)
        return best if best and best.step < scores[-1].step else None

    def mean(self, tag: str) -> float | None:
        """The mean of a tag over the steps that have it, the step-0 evaluation left out."""
        values = [value for step, value in self.curve(tag).items() if step > 0]
        return sum(values) / len(values) if values else None

    def seconds_by_phase(self) -> dict[str, float]:
        """Mean seconds of each phase per step, without the time before the first step."""
        steps = [line for line in self.lines if line["step"] > 0]
        tags = dict.fromkeys(tag for line in steps for tag in line if tag.startswith("time/") and tag != "time/step_s")
        phases = {tag: sum(line.get(tag, 0.0) for line in steps) / len(steps) for tag in tags}
        return {tag.removeprefix("time/").removesuffix("_s"): value for tag, value in phases.items()}


def read_runs(names: Sequence[str], runs_dir: Path) -> list[RunCurves]:
    """The runs at these folders, or of these names in `runs_dir`. Raises `UserError` in one line."""
    runs = [name for name in names if len(names) == 1 or Path(name).name != REPORTS]  # which runs/* names too
    return [read_run(RunFolder.open(name, runs_dir).path) for name in runs]


def read_run(folder: Path) -> RunCurves:
    """A run from its files. Raises `UserError` in one line if one is missing or torn."""
    run = RunCurves(folder)
    run.checked()
    require(bool(run.lines), f"run {folder} has no step yet: wait for its first line in metrics.jsonl")
    return run


def read_ends(folder: Path) -> RunCurves:
    """As `read_run`, but of its steps, which may be none yet, those that were evaluated and the last only."""
    run = RunCurves(folder)
    run.checked()
    whole = whole_lines(folder / METRICS)
    chosen = [line for line in whole[:-1] if b'/pass@1"' in line] + whole[-1:]
    vars(run)["lines"] = [without_nulls(read_line(line)) for line in chosen]
    return run


def differences(runs: Sequence[RunCurves]) -> dict[str, list[Any]]:
    """The settings in which the runs differ, with a value for each run (None where a run lacks it)."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """An exponential moving average with TensorBoard's debiasing.

    >>> smoothed([1.0, 1.0, 4.0], 0.5)
    [1.0, 1.0, 2.7142857142857144]
    """
    last, averages = 0.0, []
    for number, value in enumerate(values, 1):
        last = weight * last + (1 - weight) * value
        averages.append(last / (1 - weight**number))
    return averages


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only, or a single run."""

    runs: Sequence[RunCurves]

    @property
    def name(self) -> str:
        """The run's name, or what the names have in common without the seed, and how many seeds there are."""
        if len(self.runs) == 1:
            return self.runs[0].name
        names = {re.sub(r"-?seed\d+(-\d+)?$", "", run.name) for run in self.runs}
        return f"{names.pop() if len(names) == 1 else f'{self.runs[0].name} and others'}, {len(self.runs)} seeds"


def groups_of(runs: Sequence[RunCurves]) -> list[Group]:
    """The runs in groups, in their order. Two runs of the same seed are never in one: they are no two samples."""
    found: dict[tuple[str, int], dict[object, RunCurves]] = {}
    for run in runs:
        config = {name: value for name, value in run.settings.items() if name != "seed"}
        same, seed, number = json.dumps(config, sort_keys=True), run.settings.get("seed"), 0
        while seed in found.setdefault((same, number), {}):
            number += 1
        found[same, number][seed] = run
    return [Group(list(members.values())) for members in found.values()]


def mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the ends of Student's t interval at 95 %, which assumes that seeds scatter normally; of one value
    the value itself.

    >>> [round(one, 4) for one in mean([0.0, 2.0])]
    [1.0, -11.7062, 13.7062]
    """
    centre, free = sum(values) / len(values), len(values) - 1
    if not free:
        return centre, centre, centre
    deviation = math.sqrt(sum((value - centre) ** 2 for value in values) / free)
    half = T975[min(free, len(T975)) - 1] * deviation / math.sqrt(len(values))
    return centre, centre - half, centre + half
