"""Programs that attack the machine: held at every level that this machine has, as root and as an ordinary user."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from minrl.sandbox import calls as sandbox
from minrl.sandbox import filter as sandbox_filter
from minrl.sandbox import landlock
from minrl.sandbox.calls import LEVELS, Call, Limits
from minrl.sandbox.files import SYSTEM
from tests.hostile.machine import ATTACKS, PROGRAM

LIMITS = Limits(wall_s=20.0, cpu_s=20.0, memory_mib=256, file_mib=16, processes=24)
ROOT = os.geteuid() == 0


@pytest.fixture(params=list(LEVELS), scope="module")
def level(request):
    reason = sandbox._unavailable(request.param)
    if reason:
        pytest.skip(f"this machine does not give {request.param}: {reason}")
    return request.param


@pytest.fixture
def open_folder(tmp_path):
    """A folder that everybody may write to, with a file that everybody may write to."""
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest-of" in str(folder):
            folder.chmod(0o755)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "file").write_text("ours")
    (folder / "file").chmod(0o666)
    return folder


def available_mib():
    """Memory that the machine could give to a program."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) // 1024


@contextlib.contextmanager
def least_available():
    """The least memory that the machine had meanwhile, as the last item of the list."""
    least, ended = [available_mib()], threading.Event()

    def look():
        while not ended.wait(0.02):
            least.append(min(least[-1], available_mib()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield least
    finally:
        ended.set()
        thread.join()


def attack(level, source, folder="/nowhere", limits=LIMITS):
    """The outcome of an attack's program."""
    # What the interpreter's own folders show: the parents of its prefix and nothing beside it.
    allowed = {name for path in map(Path, sandbox.INTERPRETER) for name in path.parts}
    allowed |= {name for path in SYSTEM for name in path.split("/")}
    given = f"ALLOWED, OPEN = {allowed!r}, {str(folder)!r}\n"
    files = {"main.py": PROGRAM + given + source + "\nprint('held', flush=True)\n"}
    return sandbox.start(Call([*sandbox.python(level), "main.py"], files, limits), level).result()


@pytest.mark.parametrize("case", ATTACKS, ids=lambda case: case.name)
def test_the_machine_is_held(level, case, open_folder):
    if case.needs_filter and not sandbox_filter.exists():
        pytest.skip("no filter of system calls for this machine")
    if case.family == "files" and level == "limits" and not landlock.version():
        pytest.skip("without Landlock the level `limits` does not keep files away")
    if case.name == "files without content" and level == "limits":
        pytest.skip("files lie on the disk")
    before = available_mib()
    with least_available() as least:
        outcome = attack(level, case.source, open_folder)
    assert "GOT" not in outcome.text, outcome.text[:2000]
    refused = outcome.status == "ok" and outcome.text.endswith("held\n")
    stopped = outcome.status == case.status != "ok"
    assert refused or stopped, (outcome.status, outcome.stdout[-300:], outcome.stderr[-600:])
    assert before - least[-1] < case.most_mib, "memory that no limit counts"
    assert [path.name for path in open_folder.iterdir()] == ["file"]
    assert (open_folder / "file").read_text() == "ours"
