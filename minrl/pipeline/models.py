"""Which models a user means by a name, and how one tells that a model is still the same."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minrl.checkpoint import MANIFEST, damage
from minrl.models import cached_commit
from minrl.parts import model_folder, resolve_model
from minrl.types import UserError, require

API = "openai:"


@dataclass(frozen=True)
class NamedModel:
    """A model: `name` is where it is loaded from, `label` what tables and pictures call it.

    `fingerprint` changes with its weights (empty: not known before it is loaded). A checkpoint has the `run` and the
    `step` it is of; a server's model has a `base_url`, empty for OpenAI's own.
    """

    name: str
    label: str
    fingerprint: str = ""
    run: str = ""
    step: int | None = None
    base_url: str | None = None

    @property
    def served(self) -> bool:
        """Whether a server samples it."""
        return self.base_url is not None

    @property
    def served_name(self) -> str:
        """What the server calls it."""
        return self.name.removeprefix(API).rpartition("@")[0] or self.name.removeprefix(API)


def find_models(names: Sequence[str], every_checkpoint: bool = False) -> list[NamedModel]:
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
        whole = [path for path in sorted(folder.glob("step_*")) if damage(path) is None]
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
        return NamedModel(path, path, cached_commit(path))
    parts = folder.resolve().parts
    if not (folder / MANIFEST).exists():
        return NamedModel(path, "/".join(parts[-1:]), _files_digest(folder))
    number = folder.name.removeprefix("step_")
    return NamedModel(
        path,
        "/".join(parts[-2:]),
        hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest(),
        run=str(folder.resolve().parent),
        step=int(number) if number.isdigit() else None,
    )


def _files_digest(folder: Path) -> str:
    """Of names, sizes and times of change: cheap for any size of model."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            digest.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
