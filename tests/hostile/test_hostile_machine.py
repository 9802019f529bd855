"""Programs that attack the machine: held at every level that this machine has, as root and as an ordinary user."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minrl.sandbox import calls as sandbox
from minrl.sandbox import seccomp
from minrl.sandbox.calls import LEVELS, Call, Limits
from minrl.sandbox.walls import SYSTEM, landlock_version
from tests.hostile.machine import ATTACKS
from tests.hostile.machine_variants import attack

LIMITS = Limits(wall_s=120.0, cpu_s=20.0, memory_mib=256, file_mib=16, processes=24)
"""The clock is far: a look may take half a second of processor time, which a busy machine gives in half a minute."""
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


@pytest.mark.parametrize("case", ATTACKS, ids=lambda case: case.name)
def test_the_machine_is_held(level, case, open_folder):
    if case.needs_filter and not seccomp.exists():
        pytest.skip("no filter of system calls for this machine")
    if case.family == "files" and level == "limits" and not landlock_version():
        pytest.skip("without Landlock the level `limits` does not keep files away")
    if case.name == "files without content" and level == "limits":
        pytest.skip("files lie on the disk")
    before = available_mib()
    with least_available() as least:
        outcome = attack(level, case.source, open_folder, LIMITS)
    assert "GOT" not in outcome.text, outcome.text[:2000]
    refused = outcome.status == "ok" and outcome.text.endswith("held\n")
    stopped = outcome.status == case.status != "ok"
    assert refused or stopped, (outcome.status, outcome.exit_code, outcome.stdout[-300:], outcome.stderr[-600:])
    assert outcome.seconds < LIMITS.wall_s + 10.0, "its time is looked at too late"
    assert before - least[-1] < case.most_mib, "memory that no limit counts"
    assert [path.name for path in open_folder.iterdir()] == ["file"]
    assert (open_folder / "file").read_text() == "ours"


SELF = ("/proc/self/exe", "/proc/self/mem", "/proc/self/environ", "/proc/self/auxv")


def test_a_program_that_nobody_may_read_cannot_read_itself(level, tmp_path_factory):
    for folder in (tmp_path_factory.getbasetemp(), *tmp_path_factory.getbasetemp().parents[:1]):
        folder.chmod(0o755)
    folder = tmp_path_factory.mktemp("program")
    folder.chmod(0o755)
    program = folder / "cat"
    program.write_bytes(Path("/bin/cat").read_bytes())
    program.chmod(0o555)
    # As it is, it is read: what follows is not refused for another reason.
    call = Call([str(program), "/proc/self/exe"], limits=Limits(output_bytes=2**24), readable=[program])
    assert sandbox.start(call, level).result().stdout == program.read_bytes()
    program.chmod(0o111)
    for path in (*SELF, str(program)):
        outcome = sandbox.start(Call([str(program), path], limits=LIMITS, readable=[program]), level).result()
        assert (outcome.status, outcome.stdout) == ("error", b""), path
        assert b"denied" in outcome.stderr or b"not permitted" in outcome.stderr, outcome.stderr
    # Nor may a program that it starts, make it readable, or another run it through the loader.
    for script in ('"$0" main & cat /proc/$!/mem', 'chmod 755 "$0" 2>/dev/null; cat "$0"', 'cp "$0" copy', LOADER):
        call = Call(["sh", "-c", script, str(program)], {"main": "x"}, LIMITS, readable=[program])
        outcome = sandbox.start(call, level).result()
        assert (outcome.status, b"ELF" in outcome.stdout) == ("error", False), (script, outcome)


LOADER = 'for loader in /lib64/ld-linux*.so.2 /lib/ld-linux*.so.1; do [ -e "$loader" ] && exec "$loader" "$0"; done'


@pytest.mark.slow
def test_an_ordinary_user_is_held_too(tmp_path_factory):
    """Every attack at every level, as a user who is not root; so few calls that they are made in one process."""
    if not ROOT:
        pytest.skip("the tests above have run as an ordinary user")
    source = """
import os, sys
from tests.hostile import machine
from minrl.sandbox import calls as c
held = []
for level in c.LEVELS:
    if c._unavailable(level): continue
    for case in machine.ATTACKS:
        if (case.family, level) == ('memory of many', 'limits') and case.name == 'files without content': continue
        given = f"ALLOWED, OPEN, WALLED = {sys.argv[1]}, '/var/tmp', {level != 'limits'}\\n"
        files = {'main.py': machine.PROGRAM + given + case.source + "\\nprint('held', flush=True)\\n"}
        limits = c.Limits(wall_s=120.0, cpu_s=20.0, memory_mib=256, file_mib=16, processes=24)
        outcome = c.start(c.Call([*c.python(level), 'main.py'], files, limits), level).result()
        refused = outcome.status == 'ok' and outcome.text.endswith('held\\n')
        if 'GOT' in outcome.text or not (refused or outcome.status == case.status != 'ok'):
            print(level, case.name, outcome.status, outcome.text[:500], outcome.stderr[-300:])
    held.append(level)
print('tried', held)
"""
    allowed = {name for path in (*SYSTEM, *map(str, sandbox.INTERPRETER)) for name in path.split("/")}
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": sandbox.ROOT, "PYTHONDONTWRITEBYTECODE": "1"}
    interpreter = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    command = [interpreter, "-c", source, repr(allowed)]
    ended = subprocess.run(command, env=environment, user=61185, group=61185, extra_groups=[], capture_output=True)
    if ended.returncode:
        pytest.skip(f"that user cannot read this interpreter or this folder: {ended.stderr.decode()[-200:]}")
    levels = [name for name in LEVELS if not sandbox._unavailable(name)]
    assert ended.stdout.decode() == f"tried {levels}\n"
