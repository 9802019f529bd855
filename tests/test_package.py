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
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
TINY = """--run-name run --steps 1 --device cpu --threads 1 --quiet --prompts-per-step 4 --group-size 8 --max-tokens 12
    --rollouts-every 1 --eval-samples 1 --eval-examples 4 --base-steps 8 --base-heads 2 --base-hidden-size 64
    --reward-workers 1"""
EVALUATE = "--checkpoint run --task countdown --examples 4 --samples 1 --no-greedy --quiet --device cpu --no-charts"


@pytest.mark.slow
def test_a_wheel_has_the_package_alone_and_trains_and_evaluates_outside_a_checkout(tmp_path):
    source, place, work = (tmp_path / name for name in ("source", "installed", "empty"))
    shutil.copytree(ROOT / "minrl", source / "minrl")  # a build leaves folders behind
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"minrl-{minrl.__version__}-py3-none-any.whl"
    ours = [path for path in (ROOT / "minrl").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert found == {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in ours}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*pip, str(wheel)], check=True)
    work.mkdir()

    def call(*arguments: str) -> str:
        command, environment = [str(place / "bin/minrl"), *arguments], {**os.environ, "PYTHONPATH": str(place)}
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    call("train", *TINY.split())
    said = call("evaluate", *EVALUATE.split())
    assert json.loads(said[said.index("{") : said.rindex("}") + 1])["results"][0]["n"] == 4
