"""The end of a test run says what was left out and why, with and without workers."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.slow
@pytest.mark.gpu
def test_on_a_card(): pass

@pytest.mark.parametrize("n", range(3))
def test_skipped(n): pytest.skip("no toolchain")

@pytest.mark.skipif(True, reason="no browser")
def test_skipped_too(): pass

def test_runs(): pass
"""
SETTINGS = "[pytest]\nmarkers =\n    gpu: needs a card\n    slow: takes long\n    learns: learns\n"
needs_workers = pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist: make setup")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], pytest.param(["-n", "2"], marks=needs_workers)], ids=["alone", "workers"])
def test_each_reason_is_one_line_with_its_count_and_what_runs_the_excluded(tmp_path, workers):
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('no_such', reason='no library')\n")
    plugins = ["-p", "no:jaxtyping", "-p", "tests.left_out", *workers]
    command = [sys.executable, "-m", "pytest", *plugins, "-q", "-m", "not gpu and not slow"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *_, said = ended.stdout.partition(" left out ")
    assert said.splitlines()[1:-1] == [
        '    1 gpu: needs a card: make test ARGS="-m gpu"',
        "    1 slow: takes long: make test ARGS=\"-m 'slow and not gpu'\"",
        "    3 no toolchain",
        "    1 no browser",
        "    1 no library",
    ]
