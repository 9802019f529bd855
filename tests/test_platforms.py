"""What runs where: Windows is refused as a program starts, macOS trains, untrusted code needs Linux."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.__main__ import PROGRAMS, main
from minrl.dataflow import UserError
from minrl.run.checkpoint import save_policy
from minrl.sandbox import calls as sandbox
from minrl.tasks import load_task
from tests.parsed import parsed

ROOT = Path(__file__).parent.parent

ON_WINDOWS = """
import runpy, signal, sys
import loguru, multiprocessing.connection, yaml  # they run on Windows, and would look here for what is there
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, *_):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.platform = "win32"
sys.meta_path.insert(0, Missing())
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
for name in ("SIGHUP", "SIGKILL"):
    delattr(signal, name)
for module in sys.argv[1:]:
    for loaded in [name for name in sys.modules if name.partition(".")[0] == "minrl"]:
        del sys.modules[loaded]
    sys.argv[1:] = []
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as refused:
        print(module, refused, sep="|")
assert "torch" not in sys.modules
"""


def test_every_program_is_refused_on_windows_in_one_line():
    modules = ["train", "evaluate", "minrl", *(module for _, module, _ in PROGRAMS.values())]
    command = [sys.executable, "-c", ON_WINDOWS, *modules]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    said = dict(line.split("|") for line in ended.stdout.splitlines())
    assert list(said) == modules
    assert all(line.startswith("error: MinRL needs Linux or macOS") and "WSL 2" in line for line in said.values())


@pytest.fixture
def on_a_mac(monkeypatch):
    """This machine without what macOS has not: /proc, affinity masks, process descriptors."""
    exists = Path.exists
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(Path, "exists", lambda path: not path.is_relative_to("/proc") and exists(path))
    for name in ("sched_getaffinity", "pidfd_open", "setresuid", "setresgid"):
        monkeypatch.delattr(os, name)


@pytest.mark.usefixtures("on_a_mac")
def test_a_mac_trains_on_its_processor(policy, tmp_path):
    save_policy(policy, tmp_path / "model")
    folders = f"--runs-dir {tmp_path}/runs --checkpoints-dir {tmp_path}/checkpoints --model-id {tmp_path}/model"
    sizes = "--prompts-per-step 2 --group-size 2 --max-tokens 4 --eval-examples 2 --eval-samples 1 --steps 1"
    assert main(["train", *f"{folders} {sizes} --threads 1 --quiet --run-name mac".split()]) == 0
    assert (tmp_path / "checkpoints/mac/step_000001").exists()


@pytest.mark.usefixtures("on_a_mac")
def test_untrusted_code_needs_linux():
    with pytest.raises(UserError, match=r"untrusted code needs Linux.*: this is darwin"):
        sandbox.level()
    with pytest.raises(UserError, match="untrusted code needs Linux"):
        load_task("code_game", {"code_game": parsed(["--task", "code_game"])[1]["code_game"]}).notes()
