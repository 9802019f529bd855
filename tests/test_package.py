"""A wheel has all that a run needs, and its console scripts do what train.py and evaluate.py do."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import minrl
from minrl import scripts
from minrl.report.__main__ import main as report
from minrl.report.rollouts.__main__ import main as viewer
from minrl.types import UserError
from minrl.utils.cli import parse_trainer

ROOT = Path(__file__).parent.parent
SOURCES = ("minrl", "train.py", "evaluate.py", "setup.py", "pyproject.toml", "README.md", "LICENSE")
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


def test_the_wheel_has_the_package_the_two_scripts_and_nothing_else(wheel):
    ours = [path for path in (ROOT / "minrl").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in ours}
    for name in ("train.py", "evaluate.py"):
        expected[f"minrl/scripts/{name}"] = (ROOT / name).read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {
        "minrl/py.typed",
        "minrl/report/rollouts/page/page.html",
        "minrl/report/rollouts/page/main.js",
    } <= found.keys()


def test_in_a_checkout_the_console_scripts_are_its_files(monkeypatch, capsys):
    for name, run in (("train", scripts.run_train), ("evaluate", scripts.run_evaluate)):
        assert import_module(f"minrl.scripts.{name}").__file__ == str(ROOT / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [f"minrl-{name}", "--help"])
        with pytest.raises(SystemExit) as stop:
            run()
        assert not stop.value.code
        assert f"\nminrl-{name} " in capsys.readouterr().out


def test_the_console_script_of_serving_is_named_in_its_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["minrl-serve", "--help"])
    with pytest.raises(SystemExit) as stop:
        scripts.run_serve()
    assert not stop.value.code
    assert "\nminrl-serve countdown-grpo-seed0 --port 8001" in capsys.readouterr().out


def test_the_version_has_one_source(wheel, capsys):
    assert wheel.name == f"minrl-{minrl.__version__}-py3-none-any.whl"
    for program in (parse_trainer, scripts.main, report, viewer):
        with pytest.raises(SystemExit) as stop:
            program(["--version"])
        assert not stop.value.code
        assert capsys.readouterr().out == f"minrl {minrl.__version__}\n"


def test_the_classifiers_name_the_pythons_that_are_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(project["requires-python"])
    named = {one.rpartition(" ")[2] for one in project["classifiers"] if one.startswith("Programming Language")}
    assert named == {"Only", *(f"3.{minor}" for minor in range(30) if f"3.{minor}" in allowed)}


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_python_m_minrl_lists_the_programs(arguments, capsys):
    assert scripts.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:] if line[2] != " "] == list(scripts.PROGRAMS)
    assert "  train             Make a language model better at a task." in lines
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # other tests imported it
@pytest.mark.parametrize("name", scripts.PROGRAMS)
def test_python_m_minrl_runs_each_program_in_the_name_that_was_typed(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-P", "-m", "minrl", name, "--help"])
    monkeypatch.setattr(sys, "argv", [str(ROOT / "minrl" / "__main__.py"), name, "--help"])
    with pytest.raises(SystemExit) as stop:
        scripts.main(sys.argv[1:])
    assert not stop.value.code
    shown = capsys.readouterr().out
    typed = (
        f"python -m minrl {name} " if name in ("train", "evaluate", "serve") else f"python -m {scripts.PROGRAMS[name]} "
    )
    assert f"\n{typed.replace('.__main__', '')}" in shown


def test_a_program_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown program 'trian': did you mean train\?"):
        scripts.main(["trian"])


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

    def call(name: str, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(place)}
        command = [str(place / "bin" / name), *arguments]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "--group-size" in call("minrl-train", "--help")
    assert "--pass-at" in call("minrl-evaluate", "--help-all")
    call("minrl-train", *TINY.split())
    run = work / "runs/countdown-grpo-seed0"
    assert (run / "rollouts.html").exists()
    record = json.loads((run / "config.json").read_text())
    assert record["commit"] is None, "the commit of the user's repository is not MinRL's"
    assert record["program"] == "python train.py" and record["command"][0] == "minrl-train"
    call("minrl-train", "--resume", "latest", "--steps", "2")
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 2
    refused = subprocess.run(
        [sys.executable, "-m", "minrl.sft", "--resume", str(run)],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert f"go on with minrl-train --resume {run}" in refused.stderr
    small = ["--examples", "4", "--samples", "1", "--no-greedy", "--quiet", "--device", "cpu", "--no-charts"]
    said = call("minrl-evaluate", "--checkpoint", "countdown-grpo-seed0", "--task", "countdown", *small)
    assert json.loads(said[said.index("{") : said.rindex("}") + 1])["n"] == 4
