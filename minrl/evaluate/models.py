"""The models that a user names, and fingerprints of their weights."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from minrl.evaluate.config import API
from minrl.models.loading import cached_commit
from minrl.models.lora import base_of
from minrl.run.checkpoint import HASHES, STATE, by_step, damage, read_state
from minrl.run.folder import model_folder, resolve_model
from minrl.types import require
from minrl.utils.keys import checked_url
from minrl.utils.text import digest_of


@dataclass(frozen=True)
class NamedModel:
    """A model: the `name` that it is loaded by, and its `label` in tables and charts.

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

    def as_cached(self) -> "NamedModel":
        """The model; a hub's with the commit that is cached now."""
        return replace(self, fingerprint=cached_commit(self.name) or self.fingerprint) if self.hub else self


def find_models(names: Iterable[str], runs_dir: str = "runs", every_checkpoint: bool = False) -> list[NamedModel]:
    """The models named, in order, each with a label of its own."""
    found = [model for name in names for model in _find(name, runs_dir, every_checkpoint)]
    for name, count in Counter(model.name for model in found).items():
        require(count == 1, f"--models names {name} more than once")
    labels = [model.label for model in found]
    return [replace(model, label=model.name) if labels.count(model.label) > 1 else model for model in found]


def _find(name: str, runs_dir: str, every_checkpoint: bool) -> Iterator[NamedModel]:
    folder = None if name.startswith(API) else model_folder(name, runs_dir)
    if name.startswith(API):
        yield _served(name)
    elif not every_checkpoint or folder is None or (folder / STATE).exists():
        yield _local(resolve_model(name, runs_dir))
    else:
        problems = {path: damage(path) for path in by_step(folder)}
        require(None in problems.values(), f"{folder} holds no complete checkpoint")
        for path, problem in problems.items():
            if problem is None:
                yield _local(str(path))
            else:
                logger.warning(f"checkpoint {path} is damaged ({problem}) and is left out")


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


def _weights_digest(folder: Path) -> str:
    """A digest of a local model's weights; for adapters, of their base model's too. Files outside checkpoints count by
    name, size and time, which is cheap for any size of model.
    """
    if (folder / STATE).exists():
        own = digest_of([read_state(folder)[HASHES]])
    else:
        digest = hashlib.sha256()
        for path in sorted(path for path in ([folder] if folder.is_file() else folder.rglob("*")) if path.is_file()):
            status = path.stat()
            digest.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
        own = digest.hexdigest()
    base = base_of(str(folder))
    if base is None:
        return own
    return f"{own} on {_weights_digest(Path(base)) if Path(base).exists() else cached_commit(base)}"
