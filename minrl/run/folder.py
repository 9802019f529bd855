"""The folder of a run: what is in it, and where its checkpoints are.

`runs/NAME` holds the records of a run, `checkpoints/NAME` its checkpoints and a `run.json` that leads back to it.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minrl.dataflow import UserError, require
from minrl.tasks import is_of_the_program
from minrl.utils.files import read_json, read_jsonl, read_record

CONFIG, SUMMARY, METRICS, FINGERPRINTS = "config.json", "summary.json", "metrics.jsonl", "fingerprints.jsonl"
EVAL_BEFORE = "eval_before.json"
"""The held-out figures before the first step."""
ROLLOUTS, EVALUATIONS = "rollouts", "evaluations"
"""Folders of step_*.jsonl.gz: what a step sampled, and the results of its evaluation problem by problem."""
ROLLOUT_SCHEMA = 2
"""Version of a line in rollouts/step_*.jsonl.gz. 2: the text of each token, the turns of the whole episode."""
OWNER = "run.json"
"""The file beside the checkpoints that names the run."""
AT_BEST = "@best"
"""Ends the name of a run whose best checkpoint is meant."""


@dataclass(frozen=True)
class RunFolder:
    """What is in a run's folder, also while the run is going on or after it was killed."""

    path: Path

    @classmethod
    def find(cls, name: str, runs_dir: str | Path = "runs") -> "RunFolder | None":
        """The run of this path, or of this name in `runs_dir`; None if there is none."""
        below = [Path(runs_dir) / name] if Path(name).name == name else []
        return next((run for run in map(cls, [Path(name), *below]) if run.exists), None)

    def require_own_tasks(self, names: Iterable[str]) -> None:
        """Refuse to go on with tasks that only the program that made the run has: another one of that name is another
        task.
        """
        lost = [name for name in self.record.get("in_program", ()) if name in names and not is_of_the_program(name)]
        made = f"run {self.path} was made by a program with a task {''.join(lost[:1])!r} of its own"
        require(not lost, f"{made}: resume and evaluate it in that program, with the task in TASK_DEFINITIONS")

    @classmethod
    def open(cls, name: str, runs_dir: str | Path = "runs") -> "RunFolder":
        """The same, or a `UserError` with the runs that there are."""
        for run in (cls(Path(name)), cls(Path(runs_dir) / name)):
            if (run.path / CONFIG).exists():
                return run.checked()
        close, known = _close_run(Path(name).name, runs_dir), ", ".join(_names_of_runs(runs_dir)[:5])
        hint = f"did you mean {close}?" if close else f"{runs_dir}/ has {known or 'none'}"
        raise UserError(f"no run {name}: neither it nor {Path(runs_dir) / name} holds a {CONFIG}; {hint}")

    @classmethod
    def of_checkpoints(cls, folder: Path) -> "RunFolder | None":
        """The run with these checkpoints: in `runs` beside the folder of all checkpoints, or where it began."""
        owner, beside = read_record(folder / OWNER), folder.absolute().parent.parent / "runs" / folder.name
        found = (run for run in map(cls, (beside, Path(owner.get("folder", beside)))) if run.exists)
        return next((run for run in found if run.owns(folder)), None)

    def checked(self) -> "RunFolder":
        """Itself. Raises `UserError` if it is not the folder of a run."""
        require((self.path / CONFIG).exists(), f"{self.path} holds no {CONFIG}")
        require(self.exists, f"{self.path / CONFIG} is damaged or not a run's")
        return self

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

    def steps_at(self, step: int) -> int:
        """The `steps` that the run had when it made a step: a resume may have raised them since."""
        resumed = [one for one in self.record.get("resumed", []) if one["after"] >= step]
        return int((resumed or [self.config])[0]["steps"])

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints: where config.json says, or in `checkpoints` beside the folder of runs. Raises
        `UserError` if they are not there, or are those of another run.
        """
        recorded = Path(self.config.get("checkpoints_dir", "checkpoints")) / self.record["minrl_run"]
        beside = self.path.absolute().parent.parent / "checkpoints" / recorded.name
        found = next((folder for folder in (recorded, beside) if self.owns(folder)), None)
        if found is None:
            raise UserError(
                f"the checkpoints of run {self.path} are not in {recorded}: name the folder that holds "
                f"{recorded.name} with --checkpoints-dir (if that is it, its {OWNER} is of another run, or damaged)"
            )
        return found

    def owns(self, folder: Path) -> bool:
        """Whether the folder holds checkpoints of this run."""
        known = self.record.get("id")
        return folder.is_dir() and read_record(folder / OWNER).get("id", known) == known

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json; empty before the end."""
        return read_record(self.path / SUMMARY)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without numbers that were not finite (null) and without a torn last line."""
        lines = read_jsonl(self.path / METRICS)
        for number, line in enumerate(lines, 1):
            message = f"{self.path / METRICS} is damaged: line {number} is not that of a step: {line!r:.40}"
            require(has_step(line), message)
        return list(map(without_nulls, lines))

    @property
    def fingerprints(self) -> dict[int, dict[str, Any]]:
        """The hashes of each step, by step."""
        steps: dict[int, dict[str, Any]] = defaultdict(dict)
        for line in filter(has_step, read_jsonl(self.path / FINGERPRINTS)):
            steps[line["step"]].update(line)
        return dict(steps)

    @property
    def rollouts(self) -> dict[int, Path]:
        """The files of rollouts, by step."""
        return self._by_step(ROLLOUTS)

    @property
    def evaluations(self) -> dict[int, Path]:
        """The files of evaluations, by step, in order."""
        return dict(sorted(self._by_step(EVALUATIONS).items()))

    def _by_step(self, folder: str) -> dict[int, Path]:
        """The files of steps in a folder. Others are the user's."""
        found = {path: re.fullmatch(r"step_(\d+)\.jsonl\.gz", path.name) for path in (self.path / folder).glob("*")}
        return {int(match[1]): path for path, match in found.items() if match}

    @property
    def last_written(self) -> float:
        """When the run itself last wrote something; a report or a page of it does not count."""
        own = [self.path / name for name in (CONFIG, METRICS, "log.txt")]
        return max(path.stat().st_mtime for path in own if path.exists())


def has_step(line: object) -> bool:
    """Whether a line of JSONL is that of a step."""
    return isinstance(line, dict) and isinstance(line.get("step"), int)


def without_nulls(line: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a line that were finite."""
    return {tag: value for tag, value in line.items() if value is not None}


def resolve_model(name: str, runs_dir: str | Path = "runs") -> str:
    """Where the named model is: a checkpoint, a folder of them, a run, or a name that transformers knows."""
    from minrl.run.checkpoint import find_checkpoint  # which imports torch: a report does without

    folder = model_folder(name, runs_dir)
    if folder is None and "/" not in name and not Path(name).exists() and (close := _close_run(name, runs_dir, 0.85)):
        raise UserError(f"no run {name}: did you mean {close}? A model of the hub is named OWNER/NAME")
    return name if folder is None else str(find_checkpoint(folder))


def _names_of_runs(runs_dir: str | Path) -> list[str]:
    return sorted(path.parent.name for path in Path(runs_dir).glob(f"*/{CONFIG}"))


def _close_run(name: str, runs_dir: str | Path, cutoff: float = 0.6) -> str:
    """The run in `runs_dir` whose name is most like this one; empty if none is."""
    return "".join(difflib.get_close_matches(name, _names_of_runs(runs_dir), n=1, cutoff=cutoff))


def model_folder(name: str, runs_dir: str | Path = "runs") -> Path | None:
    """The checkpoint, or folder of checkpoints, that is named by its path or its run; None if it is neither.
    `RUN@best` is the run's best checkpoint.
    """
    from minrl.run.checkpoint import STATE, best_in

    if name.endswith(AT_BEST) and not Path(name).exists():
        folder = model_folder(name.removesuffix(AT_BEST), runs_dir)
        require(folder is not None, f"{name}: there is no such run; name a run, runs/NAME or a checkpoint")
        best = best_in(folder) if folder is not None else None
        require(best is not None, f"{name}: {folder} names no best checkpoint: no evaluation came after a step")
        return best
    if Path(name).is_dir() and (any(Path(name).glob("step_*")) or (Path(name) / STATE).exists()):
        return Path(name)
    run = RunFolder.find(name, runs_dir)
    return None if run is None else run.checkpoints
