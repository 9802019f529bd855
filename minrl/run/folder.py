"""The folders of a run: what is in them, and what names them.

`runs/NAME` holds a run's settings, records and rollouts, `checkpoints/NAME` its checkpoints. config.json names the one
and each checkpoint's trainer.json the other, by relative paths: the project may be moved.
"""

import difflib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minrl.dataflow import UserError, require
from minrl.tasks import is_of_the_program
from minrl.utils.files import read_json, read_jsonl, read_record

CONFIG, SUMMARY, METRICS, FINGERPRINTS = "config.json", "summary.json", "metrics.jsonl", "fingerprints.jsonl"
STATE = "trainer.json"
"""The file of a checkpoint that is written last."""
CHECKPOINTS, RUN = "checkpoints", "run"
"""The entries of config.json and of trainer.json that name the other folder."""
EVAL_BEFORE = "eval_before.json"
"""The held-out figures before the first step."""
ROLLOUTS, EVALUATIONS = "rollouts", "evaluations"
"""Folders of step_*.jsonl.gz: what a step sampled, and the results of its evaluation problem by problem."""
ROLLOUT_SCHEMA = 2
"""Version of a line in rollouts/step_*.jsonl.gz. 2: the text of each token, the turns of the whole episode."""
AT_BEST = "@best"
"""Ends the name of a run whose best checkpoint is meant."""


@dataclass(frozen=True)
class RunFolder:
    """What is in a run's folder, also while it is running or after it was killed."""

    path: Path

    @classmethod
    def find(cls, name: str, runs_dir: str | Path = "runs") -> "RunFolder | None":
        """The run of this path, or of this name in `runs_dir`, or the one that made this checkpoint or folder of
        checkpoints, which also `@best` may end; None if there is none.
        """
        return next((run for run in map(cls, _places(name, runs_dir)) if run.exists), None)

    @classmethod
    def open(cls, name: str, runs_dir: str | Path = "runs") -> "RunFolder":
        """The same, or a `UserError` with the runs that there are."""
        found = cls.find(name, runs_dir)
        if found is None:
            places = [cls(Path(name)), cls(Path(runs_dir) / name)]
            for damaged in (run for run in places if (run.path / CONFIG).exists()):
                damaged.checked()
            known = sorted(path.parent.name for path in Path(runs_dir).glob(f"*/{CONFIG}"))
            close = difflib.get_close_matches(Path(name).name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"{runs_dir}/ has {', '.join(known[:5]) or 'none'}"
            raise UserError(f"no run {name}: neither it nor {places[1].path} holds a {CONFIG}; {hint}")
        return found

    def checked(self) -> "RunFolder":
        """Itself. Raises `UserError` if it is not the folder of a run."""
        require((self.path / CONFIG).exists(), f"{self.path} holds no {CONFIG}")
        require(self.exists, f"{self.path / CONFIG} is damaged or not a run's")
        return self

    def require_own_tasks(self, names: Iterable[str]) -> None:
        """Refuse tasks that only the program that made the run has: another one of that name is another task."""
        lost = [name for name in self.record.get("in_program", ()) if name in names and not is_of_the_program(name)]
        made = f"run {self.path} was made by a program with a task {''.join(lost[:1])!r} of its own"
        require(not lost, f"{made}: resume and evaluate it in that program, with the task in TASK_DEFINITIONS")

    @property
    def exists(self) -> bool:
        """Whether this is the folder of a run."""
        found = read_json(self.path / CONFIG)
        record = found if isinstance(found, dict) else {}
        return isinstance(record.get("minrl_run"), str) and isinstance(record.get("config"), dict)

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """The content of config.json."""
        return read_record(self.path / CONFIG)

    @property
    def config(self) -> Mapping[str, Any]:
        """The run's settings by flag name."""
        return self.record["config"]

    @property
    def program(self) -> str:
        """The command that made the run."""
        return self.record.get("program", "train")

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return (self.path / self.record.get(CHECKPOINTS, f"../../checkpoints/{self.path.name}")).resolve()

    @property
    def models(self) -> dict[str, dict[str, str]]:
        """Its models beside the policy: of each the path or the name at the hub, the hash of its weights, and the run
        that made it, if one did.
        """
        found = self.record.get("models", {})
        return {role: {key: _from(self.path, one[key]) for key in one} for role, one in found.items()}

    def steps_at(self, step: int) -> int:
        """The `steps` that the run had when it made a step: a resume may have raised them since."""
        resumed = [one for one in self.record.get("resumed", []) if one["after"] >= step]
        return int((resumed or [self.config])[0]["steps"])

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json; empty before the end."""
        return read_record(self.path / SUMMARY)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The numbers of each step, without those that were not finite (null) and without a torn last line. An
        evaluation that a resume has made up for is a line of its own in the file.
        """
        return list(self._lines_by_step(METRICS).values())

    @property
    def fingerprints(self) -> dict[int, dict[str, Any]]:
        """The hashes of each step, by step."""
        return self._lines_by_step(FINGERPRINTS)

    def _lines_by_step(self, file: str) -> dict[int, dict[str, Any]]:
        steps: dict[int, dict[str, Any]] = defaultdict(dict)
        for number, line in enumerate(read_jsonl(self.path / file), 1):
            message = f"{self.path / file} is damaged: line {number} is not that of a step: {line!r:.40}"
            require(has_step(line), message)
            steps[line["step"]].update(without_nulls(line))
        return dict(steps)

    @property
    def rollouts(self) -> dict[int, Path]:
        """The files of rollouts, by step."""
        return self._files_by_step(ROLLOUTS)

    @property
    def evaluations(self) -> dict[int, Path]:
        """The files of evaluations, by step, in order."""
        return dict(sorted(self._files_by_step(EVALUATIONS).items()))

    def _files_by_step(self, folder: str) -> dict[int, Path]:
        """The files of steps in a folder. Others are the user's."""
        found = {path: re.fullmatch(r"step_(\d+)\.jsonl\.gz", path.name) for path in (self.path / folder).glob("*")}
        return {int(match[1]): path for path, match in found.items() if match}

    @property
    def last_written(self) -> float:
        """When the run itself last wrote something; a report or a page of it does not count."""
        own = [self.path / name for name in (CONFIG, METRICS, "log.txt")]
        return max((path.stat().st_mtime for path in own if path.exists()), default=0.0)


def _places(name: str, runs_dir: str | Path) -> Iterator[Path]:
    """Where the folder of a run may be that is named by itself or by its checkpoints."""
    path = Path(name if Path(name).exists() else name.removesuffix(AT_BEST))
    yield path
    if path.name == str(path):
        yield Path(runs_dir) / path
    others = by_step(path) or (by_step(path.parent) if is_step(path) else [])  # one that was removed since names it too
    for checkpoint in (path, *reversed(others)):
        state = read_json(checkpoint / STATE)
        if isinstance(state, dict) and RUN in state:
            yield (checkpoint / state[RUN]).resolve()


def relative(path: str | Path, folder: Path) -> str:
    """A local path as a file of a folder names it, such that both may be moved together."""
    return os.path.relpath(Path(path).resolve(), folder.resolve())


def _from(folder: Path, path: str) -> str:
    """What `relative` gave, as an absolute path; the name of a hub's model as it is."""
    return str((folder / path).resolve()) if path.startswith("..") else path


def has_step(line: object) -> bool:
    """Whether a line of JSONL is that of a step."""
    return isinstance(line, dict) and isinstance(line.get("step"), int)


def without_nulls(line: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a line that were finite."""
    return {tag: value for tag, value in line.items() if value is not None}


# Checkpoints by their names


def step_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step_{step:06d}"


def is_step(checkpoint: Path) -> bool:
    """Whether a path has the name of a checkpoint."""
    return re.fullmatch(r"step_\d+", checkpoint.name) is not None


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was saved after, from its name."""
    return int(checkpoint.name.removeprefix("step_"))


def by_step(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    names = os.listdir(folder) if folder.is_dir() else []  # a glob would hide a folder that cannot be read
    found = (folder / name for name in names)
    return sorted((path for path in found if is_step(path) and path.is_dir()), key=step_of)


def resolve_model(name: str, runs_dir: str | Path = "runs") -> str:
    """Where the named model is: a checkpoint; the newest whole one of a run or of a folder of checkpoints, or with
    `@best` the best; any other name is one that transformers may know.
    """
    from minrl.run.checkpoint import best_in, is_whole, newest  # which imports torch: a report does without

    path, found = Path(name), None
    best = name.endswith(AT_BEST) and not path.exists()
    kept = Path(name.removesuffix(AT_BEST)) if best else path
    if (path / STATE).exists():
        found = path
    else:
        run = None if by_step(kept) else RunFolder.find(name, runs_dir)
        if run is None and not by_step(kept):
            require(not best, f"{name}: there is no such run; name a run, runs/NAME or a checkpoint")
            return name
        folder = kept if run is None else run.checkpoints
        found = best_in(folder) if best else newest(folder)
        what = "that an evaluation has scored" if best else "that is whole"
        require(found is not None, f"{name}: no checkpoint {what} is in {folder}")
    assert found is not None
    require(is_whole(found), f"checkpoint {found} is damaged: name the one before it")
    return str(found)
