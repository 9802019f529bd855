"""A run as its folder describes it, even while it is going on or after it was killed."""

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minrl.record.metrics import read_metrics
from minrl.types import UserError, require

NOT_SETTINGS = ("resume", "runs_dir", "checkpoints_dir", "quiet", "preflight", "preflight_only", "logger")
"""Settings that do not affect what is learned."""


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
    """A run: its name, config.json, metrics and summary.json (empty before the end)."""

    name: str
    record: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """Settings by flag; those of its trained and evaluated tasks as `task.option`."""
        values = {name: value for name, value in self.record["config"].items() if name not in NOT_SETTINGS}
        chosen = values.pop("tasks", {})
        own = {f"{task}.{name}": value for task in self.tasks for name, value in chosen.get(task, {}).items()}
        return {**values, **own}

    @property
    def tasks(self) -> list[str]:
        """The evaluated tasks, the trained one first."""
        trained = self.summary.get("task") or str(self.record["config"].get("task", "")).rpartition(":")[2]
        found = [tag[len("eval/") : -len("/pass@1")] for line in self.lines for tag in line if tag.endswith("/pass@1")]
        return sorted(dict.fromkeys(found), key=lambda task: task != trained)

    @property
    def unfinished(self) -> str:
        """A remark on a run that has not ended; empty for one that has."""
        if self.summary:
            return ""
        return f"{self.name} has no summary.json: it is still going on, or was stopped, after step {self.last_step}"

    @property
    def last_step(self) -> int:
        """The last step that was written."""
        return self.lines[-1]["step"]

    def curve(self, tag: str) -> tuple[list[float], list[float]]:
        """Steps and values of a tag, where it has one."""
        lines = [line for line in self.lines if tag in line]
        return [float(line["step"]) for line in lines], [float(line[tag]) for line in lines]

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
        bool(names), "name one or more runs: python -m minrl.report RUN [RUN ...], such as runs/countdown-grpo-seed0"
    )
    found = [read_run(_folder(name, runs_dir)) for name in names]
    for name, count in sorted(Counter(run.name for run in found).items()):
        require(count == 1, f"two of the runs are called {name}: name each once, or rename one of the folders")
    return found


def read_run(folder: Path) -> RunData:
    """A run from its files. Raises `UserError` in one line if one is missing or torn."""
    record = _json(folder / "config.json")
    summary = _json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    require(isinstance(record.get("config"), dict), f"{folder}/config.json is not a run's: it has no `config`")
    try:
        lines = read_metrics(folder)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{folder}/metrics.jsonl is damaged: a line is not JSON ({error.msg}: {error.doc[:40]!r})"
        ) from error
    require(bool(lines), f"run {folder} has no step yet: wait for its first line in metrics.jsonl")
    return RunData(folder.resolve().name, record, lines, summary)


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


def _folder(name: str, runs_dir: Path) -> Path:
    for folder in (Path(name), runs_dir / name):
        if (folder / "config.json").exists():
            return folder
    known = sorted(path.parent.name for path in runs_dir.glob("*/config.json"))
    close = difflib.get_close_matches(Path(name).name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"{runs_dir}/ has {', '.join(known[:5]) or 'none'}"
    raise UserError(f"no run {name}: neither it nor {runs_dir / name} holds a config.json; {hint}")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    require(isinstance(value, dict), f"{path} is damaged: it holds no object")
    return value
