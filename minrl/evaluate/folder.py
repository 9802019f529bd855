"""The folder of an evaluation: its settings, and the lock that lets one program at a time write to it."""

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loguru import logger

from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.plan import EvaluationPlan
from minrl.evaluate.settings import SAMPLES, StageSettings, identity_of
from minrl.run.provenance import changes, provenance
from minrl.types import UserError, require
from minrl.utils.files import LOCK, holder, lock, read_json, write_json

HOME = Path("evaluations")
"""The parent of folders without a name from the user."""

COMPLETIONS, SCORES, SUMMARY, CONFIG = "completions.jsonl", "scores.parquet", "summary.json", "config.json"


def folder_of(config: EvaluateConfig, plan: EvaluationPlan, settings: StageSettings) -> Path:
    """The folder named by --output, or one named by a hash of the settings."""
    tasks = "+".join(settings["generate"]["tasks"]).replace("/", "-")
    return named_folder(config) or HOME / f"{tasks}-{identity_of(plan, settings)}"


def named_folder(config: EvaluateConfig) -> Path | None:
    """The folder named by --output; None if that is empty or names a result."""
    return Path(config.output) if config.output and not config.output.endswith(".json") else None


def held_samples(folder: Path | None) -> dict[str, int]:
    """The number of samples of each example that a folder's evaluation holds, by task."""
    stored = None if folder is None else stored_settings(folder)
    tasks = (stored or {"generate": {"tasks": {}}})["generate"]["tasks"]
    return {name: of_task[SAMPLES] for name, of_task in tasks.items() if SAMPLES in of_task}


def stored_settings(folder: Path) -> StageSettings | None:
    """The settings of the evaluation in the folder; None if there is none. A folder of anything else is refused."""
    path = folder / CONFIG
    if not path.exists():
        beside = [entry.name for entry in folder.iterdir() if entry.name != LOCK] if folder.is_dir() else []
        require(not beside, f"{folder} holds {beside[:1]} and no evaluation: choose another --output")
        require(not folder.exists() or folder.is_dir(), f"--output {folder} is a file: name a folder, or NAME.json")
        return None
    try:
        return json.loads(path.read_text())["evaluation"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not an evaluation's: choose another --output") from error


def write_settings(folder: Path, settings: StageSettings, anew: bool = False) -> None:
    """Write config.json: the settings, and the provenance of the evaluation's start and of each later change. `anew`:
    the evaluation starts now.
    """
    now, record = provenance(), {} if anew else read_json(folder / CONFIG) or {}
    stored = {name: value for name, value in record.items() if name != "evaluation"}
    if stored and changes((stored.get("resumed") or [stored])[-1], now):
        stored["resumed"] = [*stored.get("resumed", []), now]
    write_json(folder / CONFIG, {"evaluation": settings, **(stored or now)})


def changed_since(folder: Path) -> list[str]:
    """Changes of code, packages and machine since the evaluation began."""
    record = read_json(folder / CONFIG)
    return changes(record, provenance()) if record else []


def set_aside(completions: Path) -> None:
    """Rename the completions that are about to be generated again: they may have been paid for."""
    if completions.exists():
        names = (completions.with_name(f"{completions.stem}.{number}.jsonl") for number in itertools.count(1))
        kept = next(path for path in names if not path.exists())
        completions.replace(kept)
        logger.info(f"the completions until now are kept in {kept}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other programs; the lock ends with this process, however it ends."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    held = lock(folder / LOCK)
    if held is None:
        raise UserError(
            f"another program ({holder(folder / LOCK)}) is writing to {folder}: wait for it, or choose another --output"
        )
    with held:
        try:
            yield
        finally:
            if new and {*os.listdir(folder)} <= {LOCK, CONFIG}:  # nothing was generated
                shutil.rmtree(folder)
                with suppress(OSError):  # it holds other evaluations, or does not exist
                    HOME.rmdir()
