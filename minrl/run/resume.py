"""Which run the user means: a new one, or the one of --resume."""

import os
import re
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minrl.config import TaskOptions, with_absolute_paths
from minrl.run.changed import ENDING, PLACES, changeable, differences, elsewhere, with_end
from minrl.run.checkpoint import OWNER
from minrl.run.model_names import best_at, is_run
from minrl.run.naming import full_name
from minrl.run.run import TRAIN, Program, Run, Settings
from minrl.types import UserError, require
from minrl.utils.cli import from_dict, typed
from minrl.utils.files import read_json, read_record

AUTO = "auto"
"""The --resume that goes on with the run of --run-name if there is one, and else begins it."""


def open_run(settings: Settings, options: TaskOptions, flags: Sequence[str], program: Program = TRAIN) -> Run:
    """A new run, or the one that --resume names, with its stored config and the new --steps, if given.

    `minrl.run.folder.owned` claims and locks its folders later; nothing is changed here.
    """
    if not settings.resume.strip() and any(flag.split("=")[0] == "--resume" for flag in flags):
        raise UserError(
            "--resume is empty, as an unset variable is: name `latest`, runs/NAME or a checkpoint, or leave it out for "
            "a new run"
        )
    if settings.resume == AUTO:
        settings = _begun_or_new(settings, options, program)
        flags = [*(flag for flag in flags if flag.split("=")[0] != "--config"), *ENDING]
        flags += [f"--{name}" for name in program.extends]
    if settings.resume:
        return _stored_run(settings, options, flags, program)
    settings = with_absolute_paths(settings)
    options = {name: with_absolute_paths(chosen) for name, chosen in options.items()}
    name = full_name(settings, options, program.extends)
    folder, checkpoints = Path(settings.logging.runs_dir) / name, Path(settings.logging.checkpoints_dir) / name
    return Run(name, settings, options, folder, checkpoints, program=program)


def _begun_or_new(settings: Any, options: TaskOptions, program: Program) -> Settings:  # noqa: ANN401 - of any program
    """The settings, which resume the run of --run-name if it has begun. It keeps its own, so these must be the same."""
    name = settings.logging.run_name
    require(bool(name), "--resume auto goes on with the run of --run-name, or begins it: give --run-name")
    folder = Path(settings.logging.runs_dir) / name
    if not is_run(folder):
        return replace(settings, resume="")
    differing = differences(settings, options, read_json(folder / "config.json")["config"])
    refused = [text for flag, text in differing.items() if flag not in changeable(program)]
    require(
        not refused,
        f"--resume auto found the run {folder}, which keeps its config, and this command has {'; '.join(refused)}: "
        "give what the run has, or another --run-name",
    )
    return replace(settings, resume=str(folder))


def _stored_run(settings: Settings, options: TaskOptions, flags: Sequence[str], program: Program) -> Run:
    """The run that --resume names, with its stored settings except those that may change."""
    folder, named, kept = _named_run(settings, program)
    record = read_json(folder / "config.json")
    changed = {flag.split("=")[0].replace("--no-", "--", 1) for flag in flags}
    differing = {**differences(settings, options, record["config"]), "--config": "--config"}
    refused = [text for flag, text in differing.items() if flag in changed - changeable(program)]
    if refused:
        *others, last = *(f"--{name}" for name in program.extends), *ENDING
        raise UserError(
            f"a resumed run keeps its config and only {', '.join(others)} and {last} may change, got "
            f"{'; '.join(refused)}"
        )
    name = record["minrl_run"]
    stored: Any
    stored, options = from_dict(record["config"], type(settings))
    if PLACES & changed:
        stored = elsewhere(stored, settings)
    kept_in = stored.logging.checkpoints_dir
    if kept is not None:
        mend = "the folder must have the run's name, rename it back"
        require(kept.name == name, f"{kept} holds checkpoints of run {name}: {mend}")
        kept_in = str(kept.parent)
    if "--checkpoints-dir" in changed:
        kept_in = settings.logging.checkpoints_dir
    stored = replace(
        with_end(stored, settings, changed, program),
        logging=replace(
            stored.logging,
            runs_dir=str(folder.parent),
            checkpoints_dir=os.path.abspath(kept_in),
            quiet=settings.logging.quiet or stored.logging.quiet,
        ),
    )
    return Run(
        name,
        stored,
        options,
        folder,
        Path(stored.logging.checkpoints_dir) / name,
        program=program,
        identity=record.get("id") or uuid.uuid4().hex,
        named=named,
        stored=record,
        models=record.get("models", {}),
    )


def _named_run(settings: Settings, program: Program) -> tuple[Path, Path | None, Path | None]:
    """Absolute paths: the run's folder, the checkpoint if one was named, and the folder of checkpoints if that or one
    of its checkpoints was named.
    """
    runs = Path(os.path.abspath(settings.logging.runs_dir))
    path = Path(os.path.abspath(best_at(settings.resume, runs) or settings.resume))
    if settings.resume == "latest":
        found = [folder for folder in runs.glob("*/") if is_run(folder)]
        candidates = [folder for folder in found if _program_of(folder) == program.command]
        require(bool(candidates), f"--resume latest finds no run in {runs}/: start one with {program.typed}")
        return _own_place(max(candidates, key=_last_written)), None, None
    for folder in (path, runs / settings.resume):
        if is_run(folder):
            return _of_program(_own_place(folder), program), None, None
    checkpoint = path.resolve() if (path / "trainer.json").exists() else None
    if checkpoint is not None and not re.fullmatch(r"step_\d+", checkpoint.name):
        raise UserError(f"--resume {settings.resume}: a checkpoint is a folder step_000123, rename it back")
    if checkpoint is not None or (path / OWNER).exists():
        kept = checkpoint.parent if checkpoint else path
        return _of_program(run_of(kept, runs, checkpoint), program), checkpoint, kept
    for record in (folder / "config.json" for folder in (path, runs / settings.resume)):
        kept = Path(settings.logging.checkpoints_dir) / record.parent.name
        require(
            not record.exists(),
            f"{record} is not whole or not a run's: put it back, or start a new run with --model-id "
            f"{shlex.quote(str(kept))}/step_*",
        )
    raise UserError(
        f"--resume {settings.resume}: no run and no checkpoint there; use `latest`, runs/NAME or a checkpoint"
    )


def run_of(checkpoints: Path, runs: Path, checkpoint: Path | None = None) -> Path:
    """The folder of the run with these checkpoints: in `runs`, or where it was when it began. `checkpoint` is the one
    that was named.
    """
    owner = read_record(checkpoints / OWNER)
    here = runs / checkpoints.resolve().name
    for folder in (here, Path(owner.get("folder", here))):
        if is_run(folder) and owner.get("id") in (None, read_json(folder / "config.json").get("id")):
            return folder
    raise UserError(
        f"the checkpoints in {checkpoints} belong to run {here}, which is not there: name the folder that holds it "
        "with --runs-dir, or start a new run from their weights with --model-id "
        f"{shlex.quote(str(checkpoints))}/{checkpoint.name if checkpoint else 'step_*'}"
    )


def _own_place(folder: Path) -> Path:
    """The run's folder by its own name, not by a link to it: a branch belongs beside it. If the run was moved to
    another disk with a link in its place, its folder is the link.
    """
    record = read_json(folder / "config.json")
    kept = Path(os.path.abspath(record["config"].get("runs_dir", folder.parent))) / record["minrl_run"]
    if kept.exists() and kept.samefile(folder):
        return kept
    return folder.resolve() if folder.is_symlink() else folder


def _program_of(folder: Path) -> str:
    """The command that made the run."""
    return read_json(folder / "config.json").get("program", TRAIN.command)


def _of_program(folder: Path, program: Program) -> Path:
    """The run's folder, refused if another command made it."""
    command = _program_of(folder)
    if command != program.command:
        fix = f"{typed(command)} --resume {shlex.quote(str(folder))}"
        raise UserError(f"run {folder} is not one of minrl {program.command}: continue it with {fix}")
    return folder


def _last_written(folder: Path) -> float:
    """When the run itself last wrote something; a report or a page of it does not count."""
    own = [folder / name for name in ("config.json", "metrics.jsonl", "log.txt")]
    return max(path.stat().st_mtime for path in own if path.exists())
