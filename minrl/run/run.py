"""A run from its settings to its folders: a new one, or the one of --resume.

`open_run` says which run is meant and changes nothing. `owned` claims and locks its folders before anything slow: those
of a free name, or its own with the checkpoint from which it resumes.
"""

import itertools
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.config import ENDS, OptionsByTask, TrainerConfig
from minrl.dataflow import UserError, require
from minrl.models.distributed import Processes
from minrl.run.checkpoint import has_moments, is_whole, newest
from minrl.run.folder import AT_BEST, RUN, STATE, RunFolder, by_step, is_step, step_of
from minrl.run.sizes import with_sizes
from minrl.tasks import is_of_the_program
from minrl.utils.cli import from_dict, near, to_dict, typed
from minrl.utils.files import LOCK, holder, lock, names_in, read_json, writing
from minrl.utils.settings import flag_of
from minrl.utils.text import one_line

AUTO, LATEST = "auto", "latest"
"""The --resume that continues the run of --run-name if there is one, and else begins it, and that of the last run."""

CHANGEABLE = (*ENDS, "engine_urls", "engine_weights_dir", "push_to_hub", "quiet")
"""What a resume may change, beside what the program's config names in `extends`: servers may have moved."""


@dataclass(frozen=True)
class Run:
    """A run's folders, its settings, and the checkpoint from which it resumes (None: from the start).

    `named` is the checkpoint that the user named, `stored` the content of config.json (empty: a new run). `models` are
    those of the run beside its policy: for each its path and the hash of its weights. `by_size` names the settings that
    were None, and follow from the model's size.
    """

    folder: Path
    checkpoints: Path
    settings: Any
    options: OptionsByTask
    checkpoint: Path | None = None
    named: Path | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, str]] = field(default_factory=dict)
    by_size: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folders."""
        return self.folder.name

    @property
    def config(self) -> TrainerConfig:
        """The settings as a `TrainerConfig`."""
        return self.settings.trainer

    @property
    def step(self) -> int:
        """The step after which it resumes; 0 from the start."""
        return step_of(self.checkpoint) if self.checkpoint else 0

    @property
    def extended(self) -> bool:
        """Whether a resume gave it another end."""
        had = self.stored.get("config", {})
        return any(had.get(name) != getattr(self.settings, name) for name in self.settings.extends)

    @property
    def in_program(self) -> str:
        """The name of a task that only the program that called `train` has; empty where all have names."""
        return min(filter(is_of_the_program, self.config.task_weights), default="")

    @property
    def resume_command(self) -> str:
        """The command that resumes the run, or what to call where its task is one of the program that calls `train`."""
        if self.in_program:
            named = f"resume={near(self.folder)!r}, task={self.config.task!r}"
            return f"train(TrainerConfig({named})) in the program of this task"
        return f"{typed(self.settings.program)} --resume {shlex.quote(near(self.folder))}"


# Which run is meant


def open_run(settings: Any, options: OptionsByTask, given: AbstractSet[str]) -> Run:  # noqa: ANN401 - of any program
    """A new run, or the one that --resume names, with its stored settings except those that are `given` by name and
    may change.
    """
    settings.check()  # again: it may have been edited since it was made
    settings, by_size = with_sizes(settings)
    empty = "resume" in given and not settings.resume.strip()
    also = "as an unset variable is: name `latest`, runs/NAME or a checkpoint, or leave it out for a new run"
    require(not empty, f"--resume is empty, {also}")
    if settings.resume == AUTO:  # the same command begins and resumes: every setting must be the run's, given or not
        require(bool(settings.run_name), "--resume auto resumes the run of --run-name, or begins it: give --run-name")
        run, given = RunFolder(Path(settings.runs_dir) / settings.run_name), by_name(settings, options).keys()
        settings = replace(settings, resume=str(run.path) if run.exists else "")
    if settings.resume:
        return _stored_run(settings, options, given)
    name = settings.run_name or f"{settings.what}-seed{settings.seed}"
    folders = Path(settings.runs_dir) / name, Path(settings.checkpoints_dir) / name
    return Run(*folders, settings, options, by_size=by_size)


def _stored_run(settings: Any, options: OptionsByTask, given: AbstractSet[str]) -> Run:  # noqa: ANN401
    """The run that --resume names, with its stored settings except those that are given and may change."""
    run, named = _named_run(settings)
    run.require_own_tasks(run.record.get("in_program", ()))
    stored, kept = from_dict(run.config, type(settings))
    had, asked, ends = by_name(stored, kept), by_name(settings, options), (*settings.extends, *ENDS)
    fixed = given - {*CHANGEABLE, *settings.extends, "resume", "runs_dir", "checkpoints_dir"}
    other = [name for name, value in asked.items() if name in fixed and value != had.get(name)]
    refused = [f"{flag_of(one)} {_short(asked[one])} (it has {_short(had.get(one))})" for one in other]
    refused += ["--config"] if "config" in given else []
    *first, last = map(flag_of, ends)
    require(
        not refused,
        f"a resumed run keeps its config and only {', '.join(first)} and {last} may change, got {'; '.join(refused)}; "
        f"to change more, start a new run from its weights: model_id={run.path.name!r}, "
        f"--model-id {shlex.quote(run.path.name)}",
    )
    new = {name: getattr(settings, name) for name in CHANGEABLE if name in given}
    if not given.isdisjoint(settings.extends):
        new |= {name: getattr(settings, name) for name in settings.extends}  # of two one wins
    elsewhere = Path(settings.checkpoints_dir) / run.path.name
    checkpoints = elsewhere if "checkpoints_dir" in given else run.checkpoints
    if "checkpoints_dir" not in given:
        _refuse_a_copy(run.path, checkpoints)
    places = {"runs_dir": str(run.path.parent), "checkpoints_dir": str(checkpoints.parent)}
    return Run(
        run.path,
        checkpoints,
        stored.with_settings(**new, **places),
        kept,
        named=named,
        stored=run.record,
        models=run.models,
        by_size=tuple(run.record.get("by_size", ())),
    )


def _refuse_a_copy(folder: Path, checkpoints: Path) -> None:
    """Refuse a copy of a run's folder without its checkpoints: it would write over those of the run itself."""
    state = read_json(by_step(checkpoints)[-1] / STATE) if by_step(checkpoints) else None
    owner = (by_step(checkpoints)[-1] / state[RUN]).resolve() if isinstance(state, dict) and RUN in state else folder
    require(
        owner == folder.resolve() or not RunFolder(owner).exists,
        f"{near(folder)} is a copy of {near(owner)}, and the checkpoints in {near(checkpoints)} are that one's: copy "
        f"them too, to OTHER/{folder.name}, and give --checkpoints-dir OTHER",
    )


def _named_run(settings: Any) -> tuple[RunFolder, Path | None]:  # noqa: ANN401 - of any program
    """The run of --resume, and the checkpoint if one was named; absolute paths."""
    name, runs, program = settings.resume, Path(os.path.abspath(settings.runs_dir)), settings.program
    if name == LATEST:
        found = [run for run in map(RunFolder, runs.glob("*/")) if run.exists and run.program == program]
        require(bool(found), f"--resume latest finds no run in {runs}/: start one with {typed(program)}")
        return max(found, key=lambda run: run.last_written), None
    path = Path(os.path.abspath(name))
    require(
        path.exists() or not name.endswith(AT_BEST),
        f"a run resumes from its last checkpoint: --resume {shlex.quote(name.removesuffix(AT_BEST))}; to start a new "
        f"run from the best: --model-id {shlex.quote(name)}",
    )
    saved = (path / STATE).exists() or by_step(path)
    lost = f"the run of {name} is not there: put its folder back, or start a new run from these weights: --model-id"
    require(not saved or RunFolder.find(name, runs) is not None, f"{lost} {shlex.quote(name)}")
    run = RunFolder.open(name, runs)
    command = f"{typed(run.program)} --resume {shlex.quote(str(run.path))}"
    require(run.program == program, f"run {run.path} is not one of minrl {program}: continue it with {command}")
    return RunFolder(Path(os.path.abspath(run.path))), path if is_step(path) else None


def by_name(settings: Any, options: OptionsByTask) -> dict[str, Any]:  # noqa: ANN401 - of any program
    """Every setting by its name; a task's option is `hanoi.skill`."""
    values = to_dict(settings, options)
    tasks = values.pop("tasks")
    return {**values, **{f"{key}.{name}": value for key, own in tasks.items() for name, value in own.items()}}


def _short(value: object) -> str:
    """A value in one line; a prompt of a teacher is long."""
    return one_line(str(value))[:200]


# Folders of its own


@contextmanager
def owned(run: Run, processes: Processes) -> Iterator[Run]:
    """The run with its folders, locked until the caller is done. A claim is released if the run ends before it wrote
    anything. The main process decides for all.
    """
    with ExitStack() as held:
        yield processes.on_main(lambda: (_resumed if run.stored else _claimed)(run, held))


def _claimed(run: Run, held: ExitStack) -> Run:
    """The run under the name that the user gave it, which must be free, or the first free of NAME, NAME-2, ..."""
    numbered = (f"{run.name}-{number}" for number in itertools.count(2))
    for name in itertools.chain([run.name], () if run.settings.run_name else numbered):
        claimed = replace(run, folder=run.folder.with_name(name), checkpoints=run.checkpoints.with_name(name))
        with ExitStack() as locks:
            if all(_claim(folder, claimed.folder, locks) for folder in _folders(claimed)):
                held.enter_context(locks.pop_all())
                return claimed
    raise UserError(
        f"a run {run.name} is there already, in {run.folder} or {run.checkpoints}: choose another --run-name, or "
        f"resume it with {run.resume_command}"
    )


def _folders(run: Run) -> Collection[Path]:
    """The folders that the run owns: two, or one if runs and checkpoints are kept in the same place."""
    return {path.resolve(): path for path in (run.folder, run.checkpoints)}.values()


def _claim(folder: Path, records: Path, locks: ExitStack) -> bool:
    """Make and lock a folder. Returns whether it is the run's: new, or left by a run that was killed before it wrote
    anything, so that `--resume auto` finds its name free. `records` is the folder that a run writes to first.
    """
    if folder.exists() and (not folder.is_dir() or names_in(folder)):
        return False
    made = [folder, *(above for above in folder.parents if not above.exists())]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    file = lock(folder / LOCK)
    if file is None:
        return False
    locks.enter_context(file)
    locks.callback(_release, made, records)  # while it is locked
    return not names_in(folder)  # somebody may have written there between the look and the lock


def _release(made: Sequence[Path], records: Path) -> None:
    """Remove a claimed folder of a run that wrote nothing, and those above that were made for it."""
    with suppress(OSError):  # another process is about to claim it, or something else is there
        if not names_in(made[0]) and not names_in(records):
            (made[0] / LOCK).unlink(missing_ok=True)
            for path in made:
                path.rmdir()


def _resumed(run: Run, held: ExitStack) -> Run:
    """The locked run with the checkpoint from which it resumes: the last one."""
    back = f"put them back, or name the folder that holds {run.name} with --checkpoints-dir"
    require(run.checkpoints.is_dir(), f"the checkpoints of run {run.folder} are not in {run.checkpoints}: {back}")
    for folder in _folders(run):
        file = lock(folder / LOCK)
        if file is None:
            raise UserError(f"run {run.folder} is running ({holder(folder / LOCK)}): wait for its end, or stop it")
        held.enter_context(file)
    last = newest(run.checkpoints)
    if last is None:
        saved = any("files" in hashes for hashes in RunFolder(run.folder).fingerprints.values())
        none_whole = f"no checkpoint of run {run.folder} in {run.checkpoints} is whole: {back}, or start a new run"
        require(not saved and not by_step(run.checkpoints), none_whole)
        logger.info(f"run {run.name} was stopped before its first checkpoint: starting it again from step 1")
        return run
    named = run.named or last
    require(is_whole(named), f"{named} is damaged or not there: resume run {run.folder} by its name")
    start = f"to begin a new run with its weights: {typed(run.settings.program)} --model-id {shlex.quote(near(named))}"
    reached = f"{named} is not the last checkpoint of run {run.folder}, which has reached {last.name}"
    require(named.name == last.name, f"{reached}: a resume continues from that; {start}")
    require(has_moments(last), f"{last} has no optimizer state (docs/runs.md): no run resumes from it; {start}")
    for name in run.settings.extends:
        asked = getattr(run.settings, name)
        if isinstance(asked, int) and 0 < asked < step_of(last):
            raise UserError(f"--{name} is {asked}, and run {run.folder} has reached {last}: raise it")
    return replace(run, checkpoint=last)
