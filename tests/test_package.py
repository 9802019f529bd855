"""A wheel has all that a run needs, and its command does what train.py and evaluate.py do in a checkout."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import minrl
from minrl.__main__ import PROGRAMS, main
from minrl.types import UserError

ROOT = Path(__file__).parent.parent
SOURCES = ("minrl", "pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.{}(sys.argv[1])"
TINY = """--run-name countdown-grpo-seed0 --steps 1 --device cpu --threads 1 --quiet --prompts-per-step 4 --group-size 8
    --max-tokens 12 --rollouts-every 1 --eval-samples 4 --base-steps 20 --base-hidden-size 64 --base-heads 2
    --base-batch-size 16 --reward-workers 1"""


def build(kind: str, folder: Path, checkout: str = "source") -> Path:
    """A wheel or an archive of the sources, made without network of a copy: a build leaves folders behind."""
    source = folder / checkout
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    command = [sys.executable, "-c", BUILD.format(kind), str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("build_wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    ours = [path for path in (ROOT / "minrl").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in ours}
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {"minrl/py.typed", "minrl/report/templates/rollouts.html"} <= found.keys()
    assert wheel.name == f"minrl-{minrl.__version__}-py3-none-any.whl"


def test_the_classifiers_name_the_pythons_that_are_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(project["requires-python"])
    named = {one.rpartition(" ")[2] for one in project["classifiers"] if one.startswith("Programming Language")}
    assert named == {"Only", *(f"3.{minor}" for minor in range(30) if f"3.{minor}" in allowed)}


def test_without_a_name_the_programs_are_listed(capsys):
    assert main([]) == main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    names = [line.split()[0] for line in lines if line[:3].strip()]
    assert names[: len(PROGRAMS)] == list(PROGRAMS)
    assert "  train             Make a language model better at a task." in lines
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_answers_help_and_version(name, capsys):
    for flag, shown in (("--help", f"\npython -m minrl {name} "), ("--version", f"minrl {minrl.__version__}\n")):
        with pytest.raises(SystemExit) as stop:
            main([name, flag])
        assert not stop.value.code and shown in f"\n{capsys.readouterr().out}"


def test_a_program_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown program 'trian': did you mean train\?"):
        main(["trian"])


def test_an_interpreter_without_the_packages_says_how_to_install_them(tmp_path):
    command = [sys.executable, "-S", "train.py"]  # without the folder of installed packages
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "has no torch, " in ended.stderr and "`make setup` and `source .venv/bin/activate`" in ended.stderr


def test_a_file_that_hides_a_module_is_named(tmp_path):
    (tmp_path / "json.py").write_text("1 / 0\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "minrl", "train", "--help"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"{tmp_path}/json.py hides the module json" in ended.stderr


def test_ctrl_c_while_modules_are_imported_is_one_line(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "--preflight-only", "--model-id", "nowhere"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "loading: 5 to 15 s\n"
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("interrupted\n", 130)


@pytest.mark.slow
def test_a_wheel_of_the_archive_of_the_sources_is_the_same(wheel, tmp_path):
    shutil.unpack_archive(build("build_sdist", tmp_path), tmp_path / "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    subprocess.run([sys.executable, "-c", BUILD.format("build_wheel"), str(tmp_path)], cwd=source, check=True)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


@pytest.mark.slow
def test_a_checkout_called_minrl_is_not_taken_for_the_package(tmp_path):
    """Imported from the folder above the checkout, as `make setup` installs it and without anything else."""
    with zipfile.ZipFile(build("build_editable", tmp_path, "minrl")) as archive:
        archive.extractall(tmp_path / "site")
    code = "import site; site.addsitedir('site'); import minrl; print(minrl.__version__, minrl.__file__)"
    ended = subprocess.run([sys.executable, "-ES", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.stdout == f"{minrl.__version__} {tmp_path}/minrl/minrl/__init__.py\n", ended.stderr


@pytest.mark.slow
def test_an_installed_package_trains_resumes_and_evaluates_outside_a_checkout(wheel, tmp_path):
    place, work = tmp_path / "installed", tmp_path / "empty"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)
    work.mkdir()
    for words in ("init --quiet", "commit --quiet --allow-empty --message theirs"):  # the user's own repository
        identity = ["-c", "user.name=user", "-c", "user.email=user@localhost"]
        subprocess.run(["git", *identity, *words.split()], cwd=tmp_path, check=True)

    def call(*arguments: str, status: int = 0) -> str:
        environment = {**os.environ, "PYTHONPATH": str(place)}
        command = [str(place / "bin/minrl"), *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "--group-size" in call("train", "--help")
    call("train", *TINY.split())
    run = work / "runs/countdown-grpo-seed0"
    assert (run / "rollouts.html").exists()
    record = json.loads((run / "config.json").read_text())
    assert record["commit"] is None, "the commit of the user's repository is not MinRL's"
    assert record["program"] == "train" and record["command"][:2] == ["minrl", "train"]
    call("train", "--resume", "latest", "--steps", "2")
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 2
    refused = call("sft", "--resume", str(run), status=2)
    assert f"is not one of minrl sft: continue it with minrl train --resume {run}" in refused
    small = ["--examples", "4", "--samples", "1", "--no-greedy", "--quiet", "--device", "cpu", "--no-charts"]
    said = call("evaluate", "--checkpoint", "countdown-grpo-seed0", "--task", "countdown", *small)
    assert json.loads(said[said.index("{") : said.rindex("}") + 1])["n"] == 4
