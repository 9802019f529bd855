"""Which models a user means by a name, and how one tells that a model is still the same."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from minrl.model.loading import cached_commit
from minrl.model.lora import base_of
from minrl.run.checkpoint import MANIFEST, damage
from minrl.run.resume import model_folder, resolve_model
from minrl.types import UserError, require

API = "openai:"


@dataclass(frozen=True)
class NamedModel:
    """A model: `name` is where it is loaded from, `label` what tables and pictures call it.

    `fingerprint` changes with its weights (empty: a model of the `hub` that is not cached yet). A checkpoint has the
    `run` and the `step` it is of; a server's model has a `base_url`, empty for OpenAI's own.
    """

    name: str
    label: str
    fingerprint: str = ""
    run: str = ""
    step: int | None = None
    base_url: str | None = None
    hub: bool = False

    @property
    def served(self) -> bool:
        """Whether a server samples it."""
        return self.base_url is not None

    @property
    def served_name(self) -> str:
        """What the server calls it."""
        return self.name.removeprefix(API).rpartition("@")[0] or self.name.removeprefix(API)


def find_models(names: Iterable[str], every_checkpoint: bool = False) -> list[NamedModel]:
    """The models named, in order, each with a label of its own."""
    found = [model for name in names for model in _models_of(name, every_checkpoint)]
    seen: dict[str, NamedModel] = {}
    for model in found:
        require(model.name not in seen, f"--models names {model.name} more than once")
        seen[model.name] = model
    labels = [model.label for model in found]
    return [replace(m, label=m.name) if labels.count(m.label) > 1 else m for m in found]


def _models_of(name: str, every_checkpoint: bool) -> list[NamedModel]:
    if name.startswith(API):
        return [_served(name)]
    folder = model_folder(name)
    if every_checkpoint and folder is not None and not (folder / MANIFEST).exists():
        whole = []
        for path in sorted(folder.glob("step_*")):
            problem = damage(path)
            if problem is None:
                whole.append(path)
            else:
                logger.warning(f"checkpoint {path} is damaged ({problem}) and is left out")
        if not whole:
            raise UserError(f"{folder} holds no complete checkpoint")
        return [_local(str(path)) for path in whole]
    return [_local(resolve_model(name))]


def _served(name: str) -> NamedModel:
    """`openai:MODEL@BASE_URL`; without the URL it is OpenAI's own server."""
    model, _, base_url = name.removeprefix(API).rpartition("@")
    if not model:
        model, base_url = base_url, ""
    require(bool(model), f"a server's model is named openai:MODEL@BASE_URL, got {name!r}")
    return NamedModel(name, model, fingerprint=name, base_url=base_url)


def _local(path: str) -> NamedModel:
    folder = Path(path)
    if not folder.is_dir():
        return NamedModel(path, path, cached_commit(path), hub=True)
    parts = folder.resolve().parts
    if not (folder / MANIFEST).exists():
        return NamedModel(path, "/".join(parts[-1:]), _weights_digest(folder))
    number = folder.name.removeprefix("step_")
    return NamedModel(
        path,
        "/".join(parts[-2:]),
        _weights_digest(folder),
        run=str(folder.resolve().parent),
        step=int(number) if number.isdigit() else None,
    )


def as_cached(model: NamedModel) -> NamedModel:
    """The model with the commit that is in the cache by now, where it is the hub's and there is one."""
    return replace(model, fingerprint=cached_commit(model.name) or model.fingerprint) if model.hub else model


def as_recorded(model: NamedModel, fingerprints: Mapping[str, str]) -> NamedModel:
    """The model with the commit that an evaluation recorded, where the hub's cache does not say it now."""
    return replace(model, fingerprint=model.fingerprint or fingerprints.get(model.name, "")) if model.hub else model


def _weights_digest(folder: Path) -> str:
    """Of a local model; of adapters it is the one of their base model too."""
    manifest, base = folder / MANIFEST, base_of(str(folder))
    own = hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.exists() else _files_digest(folder)
    if base is None:
        return own
    return f"{own} on {_weights_digest(Path(base)) if Path(base).is_dir() else cached_commit(base)}"


def _files_digest(folder: Path) -> str:
    """Of names, sizes and times of change: cheap for any size of model."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            digest.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
