"""Runs as their folders describe them, even while they are going on or after they were killed, and groups of seeds."""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minrl.config import HOUSEKEEPING
from minrl.dataflow import require
from minrl.run.folder import METRICS, RunFolder, without_nulls
from minrl.utils.files import read_line, whole_lines
from minrl.utils.task_names import task_key

REPORTS = "report"
"""The folder beside the runs that holds reports of several."""

SMOOTHING = 0.6
"""Weight of the past in curves, unless the user says otherwise."""

AXES = ("step", "tokens", "seconds")
"""What curves may be drawn over."""

Z975 = 1.959963984540054
T975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The 97.5 % quantile of Student's t distribution with 1 to 10 degrees of freedom."""


@dataclass(frozen=True)
class Score:
    """Held-out pass@1 at a step, with its 95 % interval, and the greedy one (None: nothing could be scored)."""

    step: int
    pass_at_1: float
    low: float
    high: float
    greedy: float | None


@dataclass(frozen=True)
class RunData:
    """A run: its name, config.json, metrics, summary.json (empty before the end), and the files of its evaluations."""

    name: str
    record: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    evaluations: Mapping[int, Path] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """Settings by flag; those of its trained and evaluated tasks as `task.option`."""
        values = {name: value for name, value in self.record["config"].items() if name not in HOUSEKEEPING}
        chosen = values.pop("tasks", {})
        own = {f"{task}.{name}": value for task in self.tasks for name, value in chosen.get(task, {}).items()}
        return {**values, **own}

    @property
    def tasks(self) -> list[str]:
        """The evaluated tasks, the trained one first."""
        found = [tag[len("eval/") : -len("/pass@1")] for line in self.lines for tag in line if tag.endswith("/pass@1")]
        return sorted(dict.fromkeys(found), key=lambda task: task != self.trained)

    @property
    def unfinished(self) -> str:
        """A remark on a run that has not ended; empty for one that has."""
        if self.summary:
            return ""
        return f"{self.name} has no summary.json: it is still going on, or was stopped, after step {self.last_step}"

    @property
    def last_step(self) -> int:
        """The last step that was written; 0 before the first."""
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def trained(self) -> str:
        """The task that is trained, or without one the file of rows."""
        config = self.record["config"]
        name = str(self.summary.get("task") or task_key(str(config.get("task", ""))))
        return name or Path(str(config.get("data", ""))).name

    @property
    def model(self) -> str:
        """The model that is trained: a hub's name, or the path of a local one, as short as it can be written here."""
        name = str(self.record["config"].get("model_id", "")) or "own base model"
        return os.path.relpath(name) if os.path.isabs(name) and Path(name).is_relative_to(Path.cwd()) else name

    def curve(self, tag: str) -> tuple[list[float], list[float]]:
        """Steps and values of a tag, where it has one."""
        lines = [line for line in self.lines if tag in line]
        return [float(line["step"]) for line in lines], [float(line[tag]) for line in lines]

    def positions(self, axis: str) -> dict[float, float]:
        """Where each step is on an axis of `AXES`; tokens and seconds add up from step 1, 0 where they are unknown."""
        passed, places = 0.0, {}
        for line in self.lines:
            took = line.get("time/step_s", 0.0) if line["step"] else 0.0
            tokens = line.get("speed/tokens_per_s", 0.0) * took or line.get("sft/tokens", 0.0)  # sampled, else read
            passed += {"step": 0.0, "tokens": tokens, "seconds": took}[axis]
            places[float(line["step"])] = float(line["step"]) if axis == "step" else passed
        return places

    def scores(self, task: str) -> list[Score]:
        """The held-out scores of a task over the run."""
        name = f"eval/{task}/pass@1"
        return [
            Score(line["step"], line[name], line[f"{name}_low"], line[f"{name}_high"], line.get(f"{name}_greedy"))
            for line in self.lines
            if name in line
        ]

    def before_and_after(self, task: str) -> tuple[Score | None, Score | None]:
        """The score of a task before the first step, and the last one after it; None where not measured."""
        scores = self.scores(task)
        before = next((score for score in scores if score.step == 0), None)
        return before, next((score for score in reversed(scores) if score.step > 0), None)

    def best(self, task: str) -> Score | None:
        """The score with the highest lower bound after a step, or one of 1, if the last one is worse."""
        scores = [score for score in self.scores(task) if score.step > 0]
        places = [(score.pass_at_1 >= 1, score.low) for score in scores]
        return scores[places.index(max(places))] if places and max(places) > places[-1] else None

    def mean(self, tag: str) -> float | None:
        """The mean of a tag over the steps that have it, the step-0 evaluation left out."""
        values = [line[tag] for line in self.lines if tag in line and line["step"] > 0]
        return sum(values) / len(values) if values else None

    def seconds_by_phase(self) -> dict[str, float]:
        """Mean seconds of each phase per step, without the time before the first step."""
        steps = [line for line in self.lines if line["step"] > 0]
        tags = dict.fromkeys(tag for line in steps for tag in line if tag.startswith("time/") and tag != "time/step_s")
        phases = {tag: sum(line.get(tag, 0.0) for line in steps) / len(steps) for tag in tags}
        return {tag.removeprefix("time/").removesuffix("_s"): value for tag, value in phases.items()}


def read_runs(names: Sequence[str], runs_dir: Path) -> list[RunData]:
    """The runs at these folders, or of these names in `runs_dir`. Raises `UserError` in one line."""
    require(
        bool(names), "name one or more runs: python -m minrl report RUN [RUN ...], such as runs/countdown-grpo-seed0"
    )
    found = [
        read_run(RunFolder.open(name, runs_dir).path) for name in names if len(names) == 1 or not is_report(Path(name))
    ]
    for name, count in sorted(Counter(run.name for run in found).items()):
        require(count == 1, f"two of the runs are called {name}: name each once, or rename one of the folders")
    return found


def is_report(folder: Path) -> bool:
    """Whether a folder, which `runs/*` names too, has the reports of several runs."""
    return folder.name == REPORTS and not (folder / "config.json").exists()


def read_run(folder: Path) -> RunData:
    """A run from its files. Raises `UserError` in one line if one is missing or torn."""
    run = RunFolder(folder).checked()
    lines = run.metrics
    require(bool(lines), f"run {folder} has no step yet: wait for its first line in metrics.jsonl")
    return RunData(folder.resolve().name, run.record, lines, run.summary, run.evaluations)


def read_ends(folder: Path) -> RunData:
    """As `read_run`, but of its steps, which may be none yet, those that were evaluated and the last only."""
    run, path = RunFolder(folder).checked(), folder / METRICS
    whole = whole_lines(path)
    chosen = [line for line in whole[:-1] if b'/pass@1"' in line] + whole[-1:]
    lines = [without_nulls(read_line(line)) for line in chosen]
    return RunData(folder.resolve().name, run.record, lines, run.summary)


def differences(runs: Sequence[RunData]) -> dict[str, list[Any]]:
    """The settings in which the runs differ, with a value for each run (None where a run lacks it)."""
    configs = [run.config for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    values = {name: [config.get(name) for config in configs] for name in names}
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


# Runs that differ in nothing but their seed


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only, or a single run."""

    runs: Sequence[RunData]

    @property
    def name(self) -> str:
        """The run's name, or what the names have in common without the seed, and how many seeds there are."""
        if len(self.runs) == 1:
            return self.runs[0].name
        names = {re.sub(r"-?seed\d+(-\d+)?$", "", run.name) for run in self.runs}
        return f"{names.pop() if len(names) == 1 else f'{self.runs[0].name} and others'}, {len(self.runs)} seeds"


@dataclass(frozen=True)
class Mean:
    """The mean of a few values and the ends of its 95 % interval, which one value has not."""

    value: float
    low: float | None = None
    high: float | None = None


def groups_of(runs: Sequence[RunData]) -> list[Group]:
    """The runs in groups, in their order. Two runs of the same seed are never in one: they are no two samples."""
    found: dict[tuple[str, int], dict[object, RunData]] = {}
    for run in runs:
        config = {name: value for name, value in run.config.items() if name != "seed"}
        same, seed, number = json.dumps(config, sort_keys=True), run.config.get("seed"), 0
        while seed in found.setdefault((same, number), {}):
            number += 1
        found[same, number][seed] = run
    return [Group(list(members.values())) for members in found.values()]


def mean(values: Sequence[float]) -> Mean:
    """The mean with Student's t interval at 95 %, which assumes that seeds scatter normally.

    >>> mean([0.0, 2.0])
    Mean(value=1.0, low=-11.7062, high=13.7062)
    """
    centre, free = sum(values) / len(values), len(values) - 1
    if not free:
        return Mean(centre)
    half = student(free) * math.sqrt(sum((value - centre) ** 2 for value in values) / free / len(values))
    return Mean(centre, centre - half, centre + half)


def student(free: int) -> float:
    """The 97.5 % quantile of Student's t distribution: from the table, or beyond it by Fisher's expansion (Abramowitz
    and Stegun 26.7.5), which is right to four digits there.
    """
    if free <= len(T975):
        return T975[free - 1]
    z = Z975
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / free**power for power, term in enumerate(terms, 1))
