"""What runs where: Windows is refused as a program starts, macOS trains, untrusted code needs Linux."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.run.checkpoint import save_policy
from minrl.sandbox import calls as sandbox

ROOT = Path(__file__).parent.parent


def test_a_program_is_refused_on_windows_in_one_line():
    """The package says so as it is imported, before anything that Windows lacks is."""
    code = "import runpy, sys; sys.platform = 'win32'; runpy.run_path('train.py', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr.startswith("error: MinRL needs Linux or macOS")
    assert "WSL 2" in ended.stderr and ended.stderr.count("\n") == 1


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
