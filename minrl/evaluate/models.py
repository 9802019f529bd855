"""The models that a user names, and fingerprints of their weights."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from minrl.evaluate.config import API
from minrl.models.loading import cached_commit
from minrl.models.lora import base_of
from minrl.run.checkpoint import HASHES, STATE, by_step, damage, read_state
from minrl.run.folder import model_folder, resolve_model
from minrl.run.provenance import files_in
from minrl.types import require
from minrl.utils.keys import checked_url
from minrl.utils.text import digest_of


@dataclass(frozen=True)
class NamedModel:
    """A model: the `name` that it is loaded by, and its `label` in tables and pictures.

    `fingerprint` changes with its weights (empty: a `hub` model that is not cached yet). A checkpoint has the `run` and
    `step` that saved it; a server's model has a `base_url`, empty for OpenAI's own server.
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
        """The server's name for it."""
        return self.name.removeprefix(API).rpartition("@")[0] or self.name.removeprefix(API)


def find_models(names: Iterable[str], runs_dir: str = "runs", every_checkpoint: bool = False) -> list[NamedModel]:
    """The models named, in order, each with a label of its own."""
    found = [model for name in names for model in _models_of(name, runs_dir, every_checkpoint)]
    for name, count in Counter(model.name for model in found).items():
        require(count == 1, f"--models names {name} more than once")
    labels = [model.label for model in found]
    return [replace(m, label=m.name) if labels.count(m.label) > 1 else m for m in found]


def _models_of(name: str, runs_dir: str, every_checkpoint: bool) -> list[NamedModel]:
    if name.startswith(API):
        return [_served(name)]
    folder = model_folder(name, runs_dir)
    if every_checkpoint and folder is not None and not (folder / STATE).exists():
        problems = {path: damage(path) for path in by_step(folder)}
        for path, problem in problems.items():
            if problem is not None:
                logger.warning(f"checkpoint {path} is damaged ({problem}) and is left out")
        whole = [_local(str(path)) for path, problem in problems.items() if problem is None]
        require(bool(whole), f"{folder} holds no complete checkpoint")
        return whole
    return [_local(resolve_model(name, runs_dir))]


def _served(name: str) -> NamedModel:
    """The model of `openai:MODEL@BASE_URL`; without a URL the server is OpenAI's."""
    model, _, base_url = name.removeprefix(API).rpartition("@")
    if not model:
        model, base_url = base_url, ""
    require("://" not in model, "a server's model is named openai:MODEL@BASE_URL, and a base URL must hold no user")
    require(bool(model), f"a server's model is named openai:MODEL@BASE_URL, got {name!r}")
    checked_url(base_url)
    return NamedModel(name, model, fingerprint=name, base_url=base_url)


def _local(path: str) -> NamedModel:
    folder = Path(path)
    if not folder.exists():
        return NamedModel(path, path, cached_commit(path), hub=True)
    parts = folder.resolve().parts
    if not (folder / STATE).exists():
        return NamedModel(path, "/".join(parts[-1:]), _weights_digest(folder))
    number, run = folder.name.removeprefix("step_"), str(folder.resolve().parent)
    step = int(number) if number.isdigit() else None
    return NamedModel(path, "/".join(parts[-2:]), _weights_digest(folder), run, step)


def as_cached(model: NamedModel) -> NamedModel:
    """The model; a hub model with the commit that is cached now."""
    return replace(model, fingerprint=cached_commit(model.name) or model.fingerprint) if model.hub else model


def as_recorded(model: NamedModel, fingerprints: Mapping[str, str]) -> NamedModel:
    """The model; a hub model that is not cached with the commit that an evaluation recorded."""
    return replace(model, fingerprint=model.fingerprint or fingerprints.get(model.name, "")) if model.hub else model


def _weights_digest(folder: Path) -> str:
    """A digest of a local model's weights; for adapters, of their base model's too."""
    base = base_of(str(folder))
    own = digest_of([read_state(folder)[HASHES]]) if (folder / STATE).exists() else _files_digest(folder)
    if base is None:
        return own
    return f"{own} on {_weights_digest(Path(base)) if Path(base).exists() else cached_commit(base)}"


def _files_digest(folder: Path) -> str:
    """A digest of names, sizes and modification times: cheap for any size of model."""
    digest = hashlib.sha256()
    for path in files_in(folder):
        status = path.stat()
        digest.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
