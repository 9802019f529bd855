"""Which model a name means: a checkpoint, a folder of them, a run, or a model that transformers knows."""

from pathlib import Path

from minrl.run.checkpoint import BEST, MANIFEST, OWNER, best_in, find_checkpoint
from minrl.types import UserError
from minrl.utils.files import read_json, read_record

AT_BEST = "@best"
"""Ends the name of a run whose best checkpoint is meant."""


def resolve_model(name: str) -> str:
    """Where the named model is: a checkpoint, a folder of them, a run, or a name that transformers knows."""
    folder = model_folder(name)
    return name if folder is None else str(find_checkpoint(folder))


def model_folder(name: str) -> Path | None:
    """The checkpoint, or folder of checkpoints, that is named by its path or its run; None if it is neither.

    Only a name without a slash can be a run's: a path that does not exist is not looked up by its last part. `RUN@best`
    and `checkpoints/RUN/best` are the run's best checkpoint.
    """
    best = best_at(name, Path("runs"))
    if best is not None:
        return best
    if _holds_checkpoints(Path(name)):
        return Path(name)
    run = run_folder_of(name)
    if run is not None:
        return checkpoints_of(run)
    kept = Path("checkpoints") / name
    return kept if Path(name).name == name and _holds_checkpoints(kept) else None


def best_at(name: str, runs: Path) -> Path | None:
    """The checkpoint that `RUN@best` or `checkpoints/RUN/best` names; None if the name is another."""
    if Path(name).name == BEST and Path(name).is_file():
        folder: Path | None = Path(name).parent
    elif name.endswith(AT_BEST) and not Path(name).exists():
        run = name.removesuffix(AT_BEST)
        folder = checkpoints_of(runs / run) if Path(run).name == run and is_run(runs / run) else model_folder(run)
    else:
        return None
    found = None if folder is None else best_in(folder)
    if found is None:
        why = (
            "there is no such run" if folder is None else f"{folder} names no best checkpoint: evaluated after no step"
        )
        raise UserError(f"{name}: {why}; name a run, runs/NAME or a checkpoint")
    return found


def _holds_checkpoints(folder: Path) -> bool:
    return folder.is_dir() and (any(folder.glob("step_*")) or (folder / MANIFEST).exists())


def run_folder_of(name: str) -> Path | None:
    """The folder of the run that is named by its path or by its name; None if there is none."""
    candidates = [Path(name), *([Path("runs") / name] if Path(name).name == name else [])]
    return next((folder for folder in candidates if is_run(folder)), None)


def checkpoints_of(run: Path) -> Path:
    """Where the checkpoints of a run are: where its config.json says, or, if the run was moved with them, in
    `checkpoints` beside `runs`. Those of another run of the same name are refused.
    """
    record = read_json(run / "config.json")
    said = Path(record["config"].get("checkpoints_dir", "checkpoints")) / record["minrl_run"]
    found = [kept for kept in (said, run.resolve().parent.parent / "checkpoints" / said.name) if kept.is_dir()]
    for kept in found:
        if record.get("id") in (None, read_record(kept / OWNER).get("id", record.get("id"))):
            return kept
    what = "holds those of another run" if found else "is not there"
    raise UserError(f"the checkpoints of run {run} were in {said}, which {what}: name the folder that they are in now")


def is_run(folder: Path) -> bool:
    """Whether the folder is that of a run."""
    record = read_record(folder / "config.json")
    return isinstance(record.get("minrl_run"), str) and isinstance(record.get("config"), dict)
