"""A wheel has all that a run needs, and its command does what train.py and evaluate.py do in a checkout."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import minrl

ROOT = Path(__file__).parent.parent
SOURCES = ("minrl", "pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
TINY = """--run-name countdown-grpo-seed0 --steps 1 --device cpu --threads 1 --quiet --prompts-per-step 4 --group-size 8
    --max-tokens 12 --rollouts-every 1 --eval-samples 1 --eval-examples 4 --base-steps 8 --base-heads 2
    --base-hidden-size 64  --reward-workers 1"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made without network of a copy of the sources: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(wheel):
    ours = [path for path in (ROOT / "minrl").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in ours}
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {"minrl/py.typed", "minrl/report/templates/rollouts.html"} <= found.keys()
    assert wheel.name == f"minrl-{minrl.__version__}-py3-none-any.whl"


@pytest.mark.slow
def test_an_installed_package_trains_and_evaluates_outside_a_checkout(wheel, tmp_path):
    place, work = tmp_path / "installed", tmp_path / "empty"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)
    work.mkdir()
    for words in ("init --quiet", "commit --quiet --allow-empty --message theirs"):  # the user's own repository
        identity = ["-c", "user.name=user", "-c", "user.email=user@localhost"]
        subprocess.run(["git", *identity, *words.split()], cwd=tmp_path, check=True)

    def call(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(place)}
        command = [str(place / "bin/minrl"), *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    call("train", *TINY.split())
    run = work / "runs/countdown-grpo-seed0"
    record = json.loads((run / "config.json").read_text())
    assert record["commit"] is None, "the commit of the user's repository is not MinRL's"
    small = ["--examples", "4", "--samples", "1", "--no-greedy", "--quiet", "--device", "cpu", "--no-charts"]
    said = call("evaluate", "--checkpoint", "countdown-grpo-seed0", "--task", "countdown", *small)
    assert json.loads(said[said.index("{") : said.rindex("}") + 1])["results"][0]["n"] == 4
