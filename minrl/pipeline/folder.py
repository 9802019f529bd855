"""The folder of an evaluation: whose settings it holds, and that only one program at a time writes to it."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minrl.evaluate_config import STAGES, EvaluateConfig, Stage
from minrl.files import LOCK, holder, lock, write_json
from minrl.provenance import provenance
from minrl.types import UserError, require

HOME = Path("evaluations")
"""Where the folders are that nobody names."""

NAMED_THINGS = ("models", "tasks")
"""Settings that hold something for each model or task, and may grow by further ones."""

COMPLETIONS, SCORES, SUMMARY, CONFIG = "completions.jsonl", "scores.parquet", "summary.json", "config.json"

Settings = Mapping[str, Mapping[str, Any]]
"""Plain values by stage."""


def folder_of(config: EvaluateConfig, settings: Settings) -> Path:
    """The folder named by --output, or one that only these settings lead to."""
    if config.output and not config.output.endswith(".json"):
        return Path(config.output)
    made_of = json.dumps([settings["generate"], settings["score"]], sort_keys=True)
    tasks = "+".join(settings["generate"]["tasks"]).replace("/", "-")
    return HOME / f"{tasks}-{hashlib.sha256(made_of.encode()).hexdigest()[:10]}"


def stored_settings(folder: Path) -> Settings | None:
    """The settings of the evaluation in the folder; None where there is none. Other things are refused."""
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


def check_settings(folder: Path, stored: Settings, now: Settings, forced: Sequence[Stage]) -> None:
    """Refuse to mix: what was made under other settings is neither kept nor thrown away unasked."""
    first = min((STAGES.index(stage) for stage in forced), default=len(STAGES))
    for stage in STAGES[: min(first, STAGES.index("report"))]:
        differences = list(_differences(stored[stage], now[stage]))
        if differences:
            raise UserError(
                f"{folder} holds an evaluation with {'; '.join(differences[:3])}: choose another --output, or do it "
                f"again with --force {stage}"
            )


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """What was otherwise, a phrase each. A further model or task is no difference, one that is left out is."""
    for name in dict.fromkeys([*stored, *now]):
        if name in NAMED_THINGS and not within:
            for one in stored.get(name, {}):
                if one not in now[name]:
                    yield f"{name.removesuffix('s')} {one}, which is not named now"
                elif isinstance(stored[name][one], Mapping):
                    yield from _differences(stored[name][one], now[name][one], f"{one}: ")
                elif stored[name][one] and now[name][one] not in ("", stored[name][one]):
                    yield f"other weights of {one}"
        elif isinstance(stored.get(name), Mapping) and isinstance(now.get(name), Mapping):
            yield from _differences(stored[name], now[name], f"{within}{name} ")
        elif stored.get(name) != now.get(name):
            yield f"{within}{name} {stored.get(name)!r}, now {now.get(name)!r}"


def write_settings(folder: Path, settings: Settings) -> None:
    """config.json: the settings, and with what they were run."""
    write_json(folder / CONFIG, {"evaluation": settings, **provenance()})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other programs out of the folder; the lock ends with this process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    held = lock(folder / LOCK)
    if held is None:
        raise UserError(
            f"another program ({holder(folder / LOCK)}) is writing to {folder}: wait for it, or choose another --output"
        )
    with held:
        yield
