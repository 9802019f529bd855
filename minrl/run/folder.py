"""A run's folders: a free name, a lock while the run is going on, the checkpoint from which it resumes.

A run owns runs/NAME and checkpoints/NAME. Both are claimed and locked before anything slow. Only a resumed run
discards something, and only what lies beyond its checkpoint. Resuming from an earlier checkpoint makes a new run, a
branch, which begins with a copy of what leads to it.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from loguru import logger

from minrl.models.processes import Processes
from minrl.run.checkpoint import (
    OWNER,
    best_in,
    damage,
    damaged,
    discard_after,
    find_checkpoint,
    newest_complete,
    numbered,
    step_of,
)
from minrl.run.ends import report_schedule
from minrl.run.run import Run, set_summary_aside, write_config
from minrl.types import Prompt, UserError
from minrl.utils.files import LOCK, holder, lock, read_record, refusal, write_json, writing

T = TypeVar("T")

SAVED = "last_checkpoint.json"
"""The file in runs/NAME that says where a checkpoint was saved."""

SMALLEST_LINKED = 2**20
"""Bytes from which a branch links a checkpoint's file instead of copying it."""

COPYING = ".copying"
"""Marks a folder with copies for a branch that has not begun. If it is unlocked, the copies may be removed."""

HISTORY = (
    *("metrics.jsonl", "fingerprints.jsonl", "eval_before.json", "data.json", "events.out.tfevents.*"),
    *("rollouts", "samples"),
)
"""What a branch copies of the run's folder: the records of its steps."""


@contextmanager
def owned(run: Run, processes: Processes) -> Iterator[Run]:
    """The run with its folders, locked until the caller is done: those of a free name, or its own with the checkpoint
    from which it resumes. A claim is released if the run ends before it wrote anything. The main process decides for
    all.
    """
    with ExitStack() as held:
        decide = _go_on if run.stored else _claim
        yield processes.on_main(lambda: decide(run, held))


def begin(run: Run, steps: int, prompt: Prompt | None = None) -> int | None:
    """Record whose folders these are, and discard what lies beyond the checkpoint from which the run resumes. Returns
    the step after which its files are cut: -1 cuts all, None nothing.
    """
    write_config(run, prompt)
    write_json(run.checkpoints / OWNER, {"minrl_run": run.name, "id": run.identity, "folder": str(run.folder)})
    for folder in _folders(run):
        (folder / COPYING).unlink(missing_ok=True)
    set_summary_aside(run, steps)
    cut_after = -1 if run.stored else None  # a new run has nothing to cut
    if run.checkpoint is not None:
        cut_after = step_of(run.checkpoint)
        report_schedule(run.had, run.config.optimizer, cut_after + 1, steps)
        discard_after(run.checkpoints, cut_after)
    return cut_after


def note_saved(run: Run, checkpoint: Path) -> None:
    """Record that the run has a checkpoint: without it, the run never starts again from step 1."""
    write_json(run.folder / SAVED, {"step": step_of(checkpoint), "path": str(checkpoint)})


def _claim(run: Run, held: ExitStack) -> Run:
    """The run under the name that the user gave it, which must be free, or the first free of NAME, NAME-2, ..."""
    given = "" if run.stored else run.settings.logging.run_name  # a branch of a named run gets a number too
    for name in [given] if given else numbered(run.name):
        folder, checkpoints = run.folder.with_name(name), run.checkpoints.with_name(name)
        claimed = replace(run, name=name, folder=folder, checkpoints=checkpoints, identity=uuid.uuid4().hex)
        with ExitStack() as taken:
            if all(_take(path, taken) for path in _folders(claimed)):
                held.enter_context(taken.pop_all())
                return claimed
    raise UserError(
        f"a run {given} is there already, in {run.folder} or {run.checkpoints}: choose another --run-name, or go on "
        f"with {run.resume_command}"
    )


def _folders(run: Run) -> Iterable[Path]:
    """The folders that the run owns: two, or one if runs and checkpoints are kept in the same place."""
    return {path.resolve(): path for path in (run.folder, run.checkpoints)}.values()


def _take(folder: Path, taken: ExitStack) -> bool:
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
    taken.enter_context(file)
    taken.callback(_give_back, made)
    if _is_used(folder):  # somebody wrote there between the look and the lock
        return False
    for left in (path for path in folder.iterdir() if path.name != LOCK):
        left.unlink() if left.is_file() or left.is_symlink() else shutil.rmtree(left)
    return True


def _is_used(folder: Path) -> bool:
    """Whether the folder holds more than copies for a branch that was killed before it began."""
    try:
        names = {*os.listdir(folder)} - {LOCK}
    except FileNotFoundError:
        return False
    except NotADirectoryError:  # a file is here, or where a folder above should be: then no name can be had
        return folder.exists()
    except PermissionError:  # another user's, unless not even that can be asked: then no name can be had
        folder.lstat()
        return True
    return bool(names) and (COPYING not in names or not names.isdisjoint({"config.json", OWNER}))


def _give_back(made: Sequence[Path]) -> None:
    """Remove a claimed folder in which nothing was written, and those above that were made for it."""
    if made[0].exists() and not _is_used(made[0]):
        (made[0] / LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # another process is about to claim it, or something else is there
            for path in made:
                path.rmdir()


def _go_on(run: Run, held: ExitStack) -> Run:
    """The locked run with the checkpoint from which it resumes; a branch if there is a later checkpoint."""
    with ExitStack() as taken:
        _require_own(run)
        for folder in _folders(run):
            file = lock(folder / LOCK)
            if file is None:
                raise UserError(f"run {run.folder} is going on ({holder(folder / LOCK)}): wait for its end, or stop it")
            taken.enter_context(file)
        found = newest = newest_complete(run.checkpoints)
        if run.named is not None and (newest is None or not run.named.samefile(newest)):
            found = find_checkpoint(run.named)
        if found is None:
            _require_a_clean_start(run)
        else:
            _require_more_steps(run, found)
            latest = _latest(run, found, newest)
            if run.forks or step_of(found) < step_of(latest):
                return _branch(run, found, latest, held)
        held.enter_context(taken.pop_all())
    return replace(run, checkpoint=found)


def _latest(run: Run, found: Path, newest: Path | None) -> Path:
    """The run's last whole checkpoint, in whatever folder. The given ones are not read again."""
    known = max((path for path in (found, newest) if path is not None), key=step_of)
    saved = Path(read_record(run.folder / SAVED).get("path", known))
    return saved if step_of(saved) > step_of(known) and damage(saved) is None else known


def _require_more_steps(run: Run, checkpoint: Path) -> None:
    """Refuse to end a run before the step that it has reached."""
    for name in run.program.extends:
        asked = getattr(run.settings, name)
        if isinstance(asked, int) and 0 < asked < step_of(checkpoint):
            raise UserError(
                f"--{name} is {asked}, and {checkpoint} is of step {step_of(checkpoint)}: raise it, or name an earlier "
                "checkpoint, from which a new run branches off"
            )


def _require_own(run: Run) -> None:
    """Refuse a checkpoint folder that is missing or another run's."""
    if not run.checkpoints.is_dir():
        raise UserError(
            f"run {run.folder} keeps its checkpoints in {run.checkpoints}, which is not there: name the folder that "
            f"holds {run.name} with --checkpoints-dir"
        )
    owner = read_record(run.checkpoints / OWNER)
    known, identity = owner.get("id"), run.stored.get("id")
    other = None not in (known, identity) and known != identity
    if other or _is_kept_for_another(run, Path(owner.get("folder", run.folder))):
        raise UserError(
            f"{run.checkpoints} holds checkpoints of the run {owner.get('folder', 'somewhere else')} and not of "
            f"{run.folder}: name the folder with its own by --checkpoints-dir"
        )


def _is_kept_for_another(run: Run, other: Path) -> bool:
    """Whether the run is a copy of another that is still there and keeps its own checkpoints in this folder."""
    record = read_record(other / "config.json")
    if other.resolve() == run.folder.resolve() or record.get("id") != run.stored.get("id"):
        return False
    kept = Path(record["config"]["checkpoints_dir"]) / record["minrl_run"]
    return kept.exists() and kept.samefile(run.checkpoints)


def _require_a_clean_start(run: Run) -> None:
    """Refuse a run without a whole checkpoint, unless it certainly never had one: then its first steps are repeated."""
    problems = "; ".join(f"{path.name}: {problem}" for path, problem in damaged(run.checkpoints).items())
    if problems:
        raise UserError(
            f"no checkpoint of run {run.folder} in {run.checkpoints} is whole ({problems}): put one back, or start a "
            "new run"
        )
    if (run.folder / SAVED).exists() or "id" not in run.stored:  # an earlier version did not write down what it saved
        raise UserError(
            f"run {run.folder} has no checkpoint in {run.checkpoints}: name with --checkpoints-dir the folder that "
            f"holds {run.name}, or start a new run"
        )
    logger.info(f"run {run.name} was stopped before its first checkpoint: starting it again from step 1")


def _branch(run: Run, checkpoint: Path, newest: Path, held: ExitStack) -> Run:
    """A new run that resumes from an earlier checkpoint of a run, which stays unchanged."""
    step = step_of(checkpoint)
    claimed = _claim(replace(run, name=run.unnumbered), held)
    held.callback(_discard_unless_begun, claimed)
    own = claimed.checkpoints / checkpoint.name
    with writing(claimed.folder):
        for folder in _folders(claimed):
            (folder / COPYING).touch()
        for path in (path for pattern in HISTORY for path in run.folder.glob(pattern)):
            if path.is_dir():
                shutil.copytree(path, claimed.folder / path.name, ignore=lambda _, names: _later(names, step))
            else:
                shutil.copy2(path, claimed.folder)
        best = best_in(run.checkpoints)
        earlier = [best] if best is not None and step_of(best) < step and damage(best) is None else []
        for path in (*earlier, checkpoint):
            shutil.copytree(path, claimed.checkpoints / path.name, copy_function=_link)
    note_saved(claimed, own)
    logger.info(
        f"run {run.name} went on to step {step_of(newest)} and stays as it is: {claimed.name} branches off after "
        f"step {step}"
    )
    stored = {**run.stored, "minrl_run": claimed.name, "branched_from": {"run": str(run.folder), "step": step}}
    return replace(claimed, checkpoint=own, named=None, stored=stored)


def _later(names: Iterable[str], step: int) -> list[str]:
    """The file names with the number of a later step.

    >>> _later(["step_000002.jsonl.gz", "step_000003.jsonl.gz", "round_004.jsonl"], 2)
    ['step_000003.jsonl.gz', 'round_004.jsonl']
    """
    return [name for name in names if any(int(number) > step for number in re.findall(r"_(\d+)", name))]


def _discard_unless_begun(run: Run) -> None:
    """Remove a branch that ended before its first step: it holds only copies."""
    if not (run.folder / "config.json").exists():
        shutil.rmtree(run.folder)
        shutil.rmtree(run.checkpoints, ignore_errors=True)  # it may be the same folder


def _link(source: str, target: str) -> None:
    """Link a checkpoint's weights. Copy small files, such as a template that may be edited in place, and everything on
    a disk without hard links.
    """
    if os.path.getsize(source) >= SMALLEST_LINKED:
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)
