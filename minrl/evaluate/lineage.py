"""The runs among the models, and the runs whose models these started or learned from."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minrl.config import TaskOptions, TrainerConfig
from minrl.evaluate.config import API
from minrl.run.checkpoint import STATE
from minrl.run.folder import CONFIG, RunFolder, model_folder
from minrl.run.setup import START, TEACHER
from minrl.types import UserError
from minrl.utils.cli import from_dict
from minrl.utils.settings import converted
from minrl.utils.task_names import data_by_task, option_keys, split_tool, task_key, weights_of


class TrainedRun(RunFolder):
    """A run among the models, and what its config.json says of its tasks."""

    @property
    def task(self) -> str:
        """The task that it was trained on, as its user named it; empty if there is none."""
        return self.config.get("task", "")

    @property
    def task_names(self) -> dict[str, str]:
        """The tasks that it was trained on, by `task_key`."""
        return {task_key(name): name for name in weights_of(self.task)}

    def setting(self, name: str, hint: Any, default: Any) -> Any:  # noqa: ANN401 - types are data here
        """A setting, refused if it is of another type."""
        try:
            return converted(name, hint, self.config.get(name, default))
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from error

    def data_path(self, key: str) -> str:
        """The local file with its examples of a task."""
        alone = self.config.get("data_path", "") if self.task_of(key) else ""
        return data_by_task(self.config.get("task_data_path", "")).get(split_tool(key)[0], alone)

    def task_of(self, key: str) -> str | None:
        """The task that it was trained on under this key, with a tool or without; None if there is none."""
        own = {split_tool(trained)[0]: name for trained, name in self.task_names.items()}
        return own.get(split_tool(key)[0])

    def options(self, names: Sequence[str]) -> TaskOptions:
        """The run's options of the tasks."""
        stored = self.config.get("tasks", {})
        chosen = {key: stored[key] for name in names for key in option_keys(name) if key in stored}
        try:
            return from_dict({"tasks": chosen}, TrainerConfig, names)[1]
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from error


def find_runs(names: Sequence[str], runs_dir: str = "runs") -> tuple[list[TrainedRun], list[str]]:
    """The runs of the models, each once, and a note for each checkpoint whose run is missing. A model may be a run, a
    checkpoint of one, or the base model made for one.
    """
    found: dict[Path, TrainedRun] = {}
    notes = []
    for name in names:
        if name.startswith(API):
            continue
        run = RunFolder.find(name, runs_dir)
        kept = model_folder(name, runs_dir) if run is None else None
        if kept is not None:
            run = _run_of(kept)
            if run is None:
                notes.append(f"{name}: its run is not there, so that nobody knows which problems it was trained on")
        elif run is None:
            run = _run_that_made(Path(name).resolve(), runs_dir)
        if run is not None:
            found.setdefault(run.path.resolve(), TrainedRun(run.path.resolve()))
    return list(found.values()), notes


def _run_of(checkpoint: Path) -> RunFolder | None:
    """The run of a checkpoint, or of a folder of checkpoints."""
    kept = checkpoint.resolve()
    return RunFolder.of_checkpoints(kept.parent if _is_checkpoint(kept) else kept)


def _run_that_made(model: Path, runs_dir: str) -> RunFolder | None:
    """A run for which an embedded base model was made, from the same problems with the same options."""
    for runs in (model.parent.parent / "runs", Path(runs_dir)):
        for run in (run for run in map(RunFolder, sorted(runs.glob("*/"))) if run.exists):
            start = run.record.get("models", {}).get(START, {}).get("path", "")
            if not run.config.get("model_id") and Path(start) == model:
                return run
    return None


def _is_checkpoint(path: Path) -> bool:
    """Whether a path is a run's checkpoint, or was one by its name."""
    return (path / STATE).exists() or re.fullmatch(r"step_\d+", path.name) is not None


BEHIND = {START: ("started from", "model_id"), TEACHER: ("learned from", "teacher_id")}
"""The models that a run's own comes from: how, and the setting that names one."""


def lineage(run: TrainedRun, notes: list[str]) -> Iterator[TrainedRun]:
    """The run, those that made its start model and its teacher, and so on. A missing one is noted."""
    seen, left = set(), [run]
    for one in left:  # which grows
        if one.path not in seen:
            seen.add(one.path)
            yield one
            left += [made for role in BEHIND if (made := _run_behind(one, role, notes)) is not None]


def _run_behind(run: TrainedRun, role: str, notes: list[str]) -> TrainedRun | None:
    """The run that made this model of the run's."""
    came, setting = BEHIND[role]
    model = Path(run.record.get("models", {}).get(role, {}).get("path", ""))
    found = _run_of(model) if _is_checkpoint(model) else None
    unknown = "nobody knows which problems that was trained on"
    if found is None and (model / STATE).exists():
        notes.append(f"{run.path.name} {came} {model}, whose run is not there, so that {unknown}")
    elif model.is_absolute() and not model.exists() and (_is_checkpoint(model) or run.config.get(setting)):
        known = unknown if found is None else f"{found.path} is taken for its run"
        notes.append(f"{run.path.name} {came} {model}, which is not there any more: {known}")
    return None if found is None else TrainedRun(found.path.resolve())
