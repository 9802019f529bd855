"""A run from its command line to its folders: a new one, or the one of --resume.

`open_run` says which run is meant and changes nothing. `owned` claims and locks its folders before anything slow: those
of a free name, or its own with the checkpoint from which it resumes.
"""

import itertools
import os
import re
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.config import ENDS, OptionsByTask, TrainerConfig
from minrl.dataflow import UserError, require
from minrl.models.distributed import Processes
from minrl.run.checkpoint import STATE, by_step, damage, newest_complete, step_of
from minrl.run.folder import CONFIG, RunFolder, model_folder
from minrl.run.sizes import with_sizes
from minrl.tasks import flag_identifier, is_of_the_program
from minrl.utils.cli import from_dict, near, to_dict, typed
from minrl.utils.files import LOCK, holder, lock, names_in, refusal
from minrl.utils.settings import flag_of

AUTO = "auto"
"""The --resume that continues the run of --run-name if there is one, and else begins it."""

SERVERS = ("engine_urls", "engine_weights_dir")
"""Where the servers of --engine vllm-server are, which may have moved when a run resumes."""


@dataclass(frozen=True)
class Program:
    """A program that makes runs, as config.json names it, and the settings that a resumed run may change."""

    command: str
    extends: tuple[str, ...] = ("steps",)

    @property
    def typed(self) -> str:
        """The command as the user types it here."""
        return typed(self.command)

    @property
    def ends(self) -> list[str]:
        """The flags of what ends a run."""
        return [flag_of(name) for name in (*self.extends, *ENDS)]

    @property
    def changeable(self) -> set[str]:
        """The flags that a resume may change."""
        return {*self.ends, *map(flag_of, ("resume", "runs_dir", "checkpoints_dir", "quiet", *SERVERS))}


TRAIN = Program("train")


@dataclass(frozen=True)
class Run:
    """A run's folders, its config, and the checkpoint from which it resumes (None: from the start).

    `named` is the checkpoint that the user named, `stored` the content of config.json (empty: a new run). `models` are
    those of the run beside its policy: for each its path and the hash of its weights.
    """

    name: str
    settings: Any
    options: OptionsByTask
    folder: Path
    checkpoints: Path
    checkpoint: Path | None = None
    program: Program = TRAIN
    identity: str = ""
    named: Path | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, str]] = field(default_factory=dict)
    by_size: tuple[str, ...] = ()
    """The settings that were None, and follow from the model's size."""

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
        return any(had.get(name) != getattr(self.settings, name) for name in self.program.extends)

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
        return f"{self.program.typed} --resume {shlex.quote(near(self.folder))}"


# Which run is meant


def open_run(settings: Any, options: OptionsByTask, flags: Sequence[str], program: Program = TRAIN) -> Run:  # noqa: ANN401
    """A new run, or the one that --resume names, with its stored config and the `flags` that a resume may change.
    `settings` are those of any program that makes runs; their `trainer` is the config that the run is assembled from.
    """
    settings.check()  # again: it may have been edited since it was made
    settings, by_size = with_sizes(settings)
    changed = set(flags)
    if "--resume" in changed and not settings.resume.strip():
        raise UserError(
            "--resume is empty, as an unset variable is: name `latest`, runs/NAME or a checkpoint, or leave it out for "
            "a new run"
        )
    if settings.resume == AUTO:  # the same command begins and resumes: every setting must be the run's, given or not
        name, changed = settings.run_name, set(_by_flag(settings, options))
        require(bool(name), "--resume auto resumes the run of --run-name, or begins it: give --run-name")
        run = RunFolder(Path(settings.runs_dir) / name)
        settings = replace(settings, resume=str(run.path) if run.exists else "")
    if settings.resume:
        return _stored_run(settings, options, changed, program)
    name = settings.run_name or f"{settings.what}-seed{settings.seed}"
    folder, checkpoints = Path(settings.runs_dir) / name, Path(settings.checkpoints_dir) / name
    return Run(name, settings, options, folder, checkpoints, program=program, by_size=by_size)


def _stored_run(settings: Any, options: OptionsByTask, changed: set[str], program: Program) -> Run:  # noqa: ANN401
    """The run that --resume names, with its stored settings except those of the flags `changed` that may change."""
    run, kept, named = _named_run(settings, program)
    differing = {**_differences(settings, options, run.config), "--config": "--config"}
    refused = [text for flag, text in differing.items() if flag in changed - program.changeable]
    if refused:
        *others, last = program.ends
        raise UserError(
            f"a resumed run keeps its config and only {', '.join(others)} and {last} may change, got "
            f"{'; '.join(refused)}; to change more, start a new run from its weights: model_id={run.path.name!r}, "
            f"--model-id {shlex.quote(run.path.name)}"
        )
    run.require_own_tasks(run.record.get("in_program", ()))
    stored: Any
    stored, options = from_dict(run.config, type(settings))
    given = settings.settings
    name = run.record["minrl_run"]
    own = Path(given["checkpoints_dir"]) / name
    checkpoints = own if "--checkpoints-dir" in changed else kept or run.checkpoints
    new = [name for name in (*ENDS, *SERVERS) if flag_of(name) in changed]
    new += program.extends if any(f"--{name}" in changed for name in program.extends) else []  # of two one wins
    new += ["quiet"] if given["quiet"] else []
    places = {"runs_dir": str(run.path.parent), "checkpoints_dir": str(checkpoints.parent)}
    return Run(
        name,
        stored.with_settings(**{name: given[name] for name in new}, **places),
        options,
        run.path,
        checkpoints,
        program=program,
        identity=run.record.get("id") or uuid.uuid4().hex,
        named=named,
        stored=run.record,
        models=run.record.get("models", {}),
        by_size=tuple(run.record.get("by_size", ())),
    )


def _named_run(settings: Any, program: Program) -> tuple[RunFolder, Path | None, Path | None]:  # noqa: ANN401
    """Absolute paths: the run of --resume, and the folder of checkpoints and the checkpoint if one was named."""
    name, runs = settings.resume, Path(os.path.abspath(settings.runs_dir))
    if name == "latest":
        found = [run for run in map(RunFolder, runs.glob("*/")) if run.exists and run.program == program.command]
        require(bool(found), f"--resume latest finds no run in {runs}/: start one with {program.typed}")
        return max(found, key=lambda run: run.last_written), None, None
    run, kept, checkpoint = RunFolder.find(name, runs), None, None
    if run is None:
        for path in (Path(name), runs / name):
            require(not (path / CONFIG).exists() or (path / STATE).exists(), f"{path / CONFIG} is damaged: put it back")
        folder = model_folder(name, runs)
        if folder is None:
            raise UserError(f"--resume {name}: no run and no checkpoint there; use `latest`, runs/NAME or a checkpoint")
        if (folder / STATE).exists():
            checkpoint = folder.resolve()
            named = re.fullmatch(r"step_\d+", checkpoint.name) is not None
            require(named, f"--resume {name}: a checkpoint is a folder step_000123, rename it back")
        kept = checkpoint.parent if checkpoint else Path(os.path.abspath(folder))
        run = RunFolder.of_checkpoints(kept)
        if run is None:
            raise UserError(
                f"the checkpoints in {kept} belong to a run that is not there: put its folder back, or start a new run "
                f"from their weights with --model-id {shlex.quote(str(checkpoint or kept))}"
            )
    run = RunFolder(Path(os.path.abspath(run.path)))
    if run.program != program.command:
        command = f"{typed(run.program)} --resume {shlex.quote(str(run.path))}"
        raise UserError(f"run {run.path} is not one of minrl {program.command}: continue it with {command}")
    return run, kept, checkpoint


def _differences(settings: Any, options: OptionsByTask, stored: Mapping[str, Any]) -> dict[str, str]:  # noqa: ANN401
    """The settings and options that differ from those of the stored run, by flag, such as `--seed 1 (it has 0)`."""
    given = _by_flag(settings, options)
    kept = _by_flag(*from_dict(stored, type(settings)))  # with the defaults of flags that are newer than the run
    found = {flag: (value, kept.get(flag)) for flag, value in given.items() if value != kept.get(flag)}
    return {flag: f"{flag} {_short(value)} (it has {_short(had)})" for flag, (value, had) in found.items()}


def _short(value: object) -> str:
    """A value in one line; a chat template of a file is long."""
    return " ".join(str(value).split())[:200]


def _by_flag(settings: Any, options: OptionsByTask) -> dict[str, Any]:  # noqa: ANN401 - of any program
    values = to_dict(settings, options)
    tasks = values.pop("tasks")
    values |= {f"{flag_identifier(key)}.{name}": value for key, own in tasks.items() for name, value in own.items()}
    return {flag_of(name): value for name, value in values.items()}


# Folders of its own


@contextmanager
def owned(run: Run, processes: Processes) -> Iterator[Run]:
    """The run with its folders, locked until the caller is done. A claim is released if the run ends before it wrote
    anything. The main process decides for all.
    """
    with ExitStack() as held:
        yield processes.on_main(lambda: (_resumed if run.stored else claim)(run, held))


def claim(run: Run, held: ExitStack) -> Run:
    """The run under the name that the user gave it, which must be free, or the first free of NAME, NAME-2, ..."""
    given = run.settings.run_name
    numbered = (f"{run.name}-{number}" for number in itertools.count(2))
    for name in [given] if given else itertools.chain([run.name], numbered):
        folder, checkpoints = run.folder.with_name(name), run.checkpoints.with_name(name)
        claimed = replace(run, name=name, folder=folder, checkpoints=checkpoints, identity=uuid.uuid4().hex)
        with ExitStack() as locks:
            if all(_claim(path, locks) for path in _folders(claimed)):
                held.enter_context(locks.pop_all())
                return claimed
    raise UserError(
        f"a run {given} is there already, in {run.folder} or {run.checkpoints}: choose another --run-name, or go on "
        f"with {run.resume_command}"
    )


def _folders(run: Run) -> Iterable[Path]:
    """The folders that the run owns: two, or one if runs and checkpoints are kept in the same place."""
    return {path.resolve(): path for path in (run.folder, run.checkpoints)}.values()


def _claim(folder: Path, locks: ExitStack) -> bool:
    """Lock a folder that is new, or that a killed run left before it wrote anything. Returns whether that succeeded."""
    if _is_used(folder):
        return False
    made = [folder, *(above for above in folder.parents if not above.exists())]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make {folder}: {refusal(error)}; choose others with --runs-dir and --checkpoints-dir"
        ) from error
    try:
        file = lock(folder / LOCK)
    except UserError:
        with suppress(OSError):  # what others have put there meanwhile stays
            folder.rmdir()
        raise
    if file is None:
        return False
    locks.enter_context(file)
    locks.callback(_release, made)
    return not _is_used(folder)  # somebody may have written there between the look and the lock


def _is_used(folder: Path) -> bool:
    """Whether there is a file of this name, or a folder in which something was written."""
    return bool(names_in(folder)) if folder.is_dir() else folder.exists()


def _release(made: Sequence[Path]) -> None:
    """Remove a claimed folder in which nothing was written, and those above that were made for it."""
    if made[0].exists() and not _is_used(made[0]):
        (made[0] / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # another process is about to claim it, or something else is there
            for path in made:
                path.rmdir()


def _resumed(run: Run, held: ExitStack) -> Run:
    """The locked run with the checkpoint from which it resumes: the last one."""
    owner = RunFolder.of_checkpoints(run.checkpoints)
    require(
        RunFolder(run.folder).owns(run.checkpoints) and (owner is None or owner.path.samefile(run.folder)),
        f"run {run.folder} has no checkpoints of its own in {run.checkpoints}"
        + (f", which are those of {owner.path}" if owner else "")
        + f": name the folder that holds {run.name} with --checkpoints-dir",
    )
    for folder in _folders(run):
        file = lock(folder / LOCK)
        if file is None:
            raise UserError(f"run {run.folder} is going on ({holder(folder / LOCK)}): wait for its end, or stop it")
        held.enter_context(file)
    last = newest_complete(run.checkpoints)
    if last is None:
        _require_a_clean_start(run)
        return run
    if run.named is not None and run.named.name != last.name:
        start = f"{run.program.typed} --model-id {shlex.quote(near(run.named))}"
        raise UserError(
            damage(run.named)
            or f"{run.named} is not the last checkpoint of run {run.folder}, which went on to {last.name}: a resume "
            f"continues from that; to begin a new run with the weights of step {step_of(run.named)}: {start}"
        )
    for name in run.program.extends:
        asked = getattr(run.settings, name)
        if isinstance(asked, int) and 0 < asked < step_of(last):
            raise UserError(f"--{name} is {asked}, and run {run.folder} has gone on to {last}: raise it")
    return replace(run, checkpoint=last)


def _require_a_clean_start(run: Run) -> None:
    """Refuse a run without a whole checkpoint, unless it never had one: then its first steps are repeated."""
    problems = "; ".join(f"{path.name}: {damage(path)}" for path in by_step(run.checkpoints))
    if problems:
        raise UserError(
            f"no checkpoint of run {run.folder} in {run.checkpoints} is whole ({problems}): put one back, or start a "
            "new run"
        )
    if any("files" in hashes for hashes in RunFolder(run.folder).fingerprints.values()):
        raise UserError(
            f"run {run.folder} has saved checkpoints, and {run.checkpoints} has none: put them back, name the folder "
            f"that holds {run.name} with --checkpoints-dir, or start a new run"
        )
    logger.info(f"run {run.name} was stopped before its first checkpoint: starting it again from step 1")
