"""Untrusted code: killed, limited, walled in, and gone without a trace - at every level that this machine gives."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Call, Limits, SandboxError
from tests.hostile.census import left_over, slots_folder
from tests.runs import until

LIMITS = Limits(wall_s=120.0, cpu_s=60.0, memory_mib=512, file_mib=16, processes=24)
"""For programs that end by themselves, however slow the machine."""
WALLED = ("namespaces",)
ROOT = os.geteuid() == 0


def run(level, source, limits=LIMITS, **given):
    """The outcome of a program, after which none of its processes may be left."""
    files = {"main.py": source, **given.pop("files", {})}
    marker = f"minrl-{random.random()}"
    call = Call([*sandbox.python(level), "main.py", marker], files, limits, **given)
    try:
        return sandbox.start(call, level).result()
    finally:
        assert not processes_with(marker), "processes outlive their call"


def processes_with(marker):
    """Command lines of living processes that hold the marker."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes()
                if marker.encode() in line:
                    found.append(line)
    return found


def test_what_a_program_prints_and_its_status_come_back(level):
    source = "import sys; print(sys.stdin.read() + open('a/b.txt').read())"
    outcome = run(level, source, files={"a/b.txt": b"there"}, stdin=b"hi ")
    assert (outcome.status, outcome.exit_code, outcome.text) == ("ok", 0, "hi there\n"), outcome.stderr
    outcome = run(level, "import sys; sys.stderr.write('no'); sys.exit(3)")
    assert (outcome.status, outcome.exit_code, outcome.stderr) == ("error", 3, b"no")


def test_an_infinite_loop_ends_with_its_processor_time_or_its_deadline(level):
    assert run(level, "while True: pass", Limits(cpu_s=0.3, wall_s=600.0)).status == "timeout"
    ended = run(level, "while True: pass", Limits(wall_s=0.4))
    assert ended.status == "timeout" and ended.processor_s > 0.1


def test_the_number_of_processes_is_bounded(level):
    count = """
import os, time
started = 0
try:
    while started < 200:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        started += 1
except OSError: pass
print(started)
"""
    assert 10 <= int(run(level, count).text) <= 25


def test_a_gigabyte_of_output_is_cut_off_at_the_limit(level):
    limits = Limits(output_bytes=5000, wall_s=120.0)
    outcome = run(level, "for _ in range(1024): print('x' * 2**20)\nimport time; time.sleep(600)", limits)
    assert outcome.status == "output"
    assert outcome.stdout == b"x" * 5000


def test_files_cannot_grow_past_their_limit(level):
    write = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('big', 'wb').write(bytes(100 * 2**20))"
    outcome = run(level, write)
    assert outcome.status == "error" and (b"File too large" in outcome.stderr or b"No space left" in outcome.stderr)


def test_many_files_together_cannot_fill_the_machine(level):
    if level not in WALLED:
        pytest.skip("files lie on the disk, where only each one's size is limited")
    write = """
try:
    for number in range(100):
        with open(f'{number}', 'wb') as file: file.write(b'x' * 2**20)
except OSError as error: print('refused')
"""
    assert run(level, write).text == "refused\n"


def test_a_sleeping_grandchild_in_a_session_of_its_own_is_killed(level):
    grandchild = "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os.setsid(); time.sleep(60)\n os._exit(0)\n"
    assert run(level, f"import os, time\n{grandchild}os.close(1); os.close(2); os._exit(0)").status == "ok"


def test_a_program_has_the_environment_that_it_is_given_alone(level, monkeypatch):
    monkeypatch.setenv("MINRL_SECRET", "hunter2")
    outcome = run(level, "import os; print(dict(os.environ))", environment={"GIVEN": "yes"})
    assert "hunter2" not in outcome.text and "'GIVEN': 'yes'" in outcome.text


def test_the_parent_cannot_be_killed(level):
    if level == "limits" and not ROOT:
        pytest.skip("without root a process may signal the others of its user")
    bystander = subprocess.Popen(["sleep", "600"])
    source = f"""
import os, signal
for pid in [{os.getpid()}, {bystander.pid}, os.getppid(), 1, -1]:
    try: os.kill(pid, signal.SIGKILL); print('killed', pid)
    except OSError: pass
print('end')
"""
    try:
        outcome = run(level, source)
        assert f"killed {os.getpid()}" not in outcome.text and f"killed {bystander.pid}" not in outcome.text
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_every_wall_stands_by_itself(level):
    # Each is hidden behind another one from the tests of what a program can do.
    if level not in WALLED:
        pytest.skip("the level `limits` has no walls")
    kinds = ("net", "pid", "ipc", "uts", "mnt")
    source = f"""
import os
for kind in {kinds}: print(os.readlink('/proc/self/ns/' + kind))
print(bool(os.statvfs('/').f_flag & os.ST_RDONLY))
"""
    *namespaces, read_only = run(level, source).text.split()
    assert len(namespaces) == len(kinds)
    assert not set(namespaces) & {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    assert read_only == "True"


def test_the_command_is_nobody_in_particular(level):
    if not ROOT:
        pytest.skip("needs root to become somebody else")
    source = """
import os
print(0 in os.getresuid() + os.getresgid(), os.getgroups() in ([], [os.getgid()]))
print([line.split()[1].strip('0') for line in open('/proc/self/status') if line[:6] in ('CapPrm', 'CapEff', 'NoNewP')])
try: os.setuid(0); print('root again')
except OSError: pass
"""
    assert run(level, source).text == "False True\n['', '', '1']\n"


def test_two_calls_at_once_have_two_uids_and_cannot_touch_each_other(level):
    if not ROOT:
        pytest.skip("needs root for uids of their own")
    source = "import os; os.write(3, str(os.getuid()).encode()); os.read(3, 1)"
    uids, calls = set(), []
    for _ in range(3):
        ours, theirs = socket.socketpair()
        call = Call([*sandbox.python(level), "main.py"], {"main.py": source}, LIMITS, channel=theirs.fileno())
        calls.append((sandbox.start(call, level), ours))
        theirs.close()
    for _, ours in calls:  # none has ended yet: each waits for a word
        uids.add(ours.recv(100))
    for running, ours in calls:
        ours.close()
        assert running.result().status == "ok"
    assert len(uids) == 3


def test_a_killed_caller_leaves_nothing_behind(level):
    marker, before = f"minrl-{random.random()}", set(left_over(slots_folder()))
    source = f"""
import sys
from minrl.sandbox import calls as sandbox
command = [*{sandbox.python(level)}, '-c', 'import time; time.sleep(60)', 'minrl-' + sys.argv[1]]
sandbox.start(sandbox.Call(command), {level!r}).result()
"""
    environment = {**os.environ, "PYTHONPATH": sandbox.ROOT}
    arguments = [sys.executable, "-c", source, marker.removeprefix("minrl-")]
    caller = subprocess.Popen(arguments, env=environment, start_new_session=True)
    until(lambda: processes_with(marker))
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait()
    until(lambda: not processes_with(marker))
    until(lambda: set(left_over(slots_folder())) <= before)


def test_what_a_killed_watcher_leaves_is_removed_by_the_next_call(level):
    marker, before = f"minrl-{random.random()}", set(left_over(slots_folder()))
    call = Call([*sandbox.python(level), "-c", "open('left', 'w'); import time; time.sleep(60)", marker])
    running = sandbox.start(call, level)
    until(lambda: any(sandbox.python(level)[0].encode() == line.split(b"\0")[0] for line in processes_with(marker)))
    running._process.kill()
    with pytest.raises(SandboxError):
        running.result()
    assert run(level, "print(1)").text == "1\n"
    until(lambda: not processes_with(marker))
    until(lambda: set(left_over(slots_folder())) <= before)


def test_a_command_that_cannot_be_run_is_no_failure_of_the_program(level):
    with pytest.raises(SandboxError, match="could not run the command"):
        sandbox.start(Call(["no-such-program"]), level).result()


SLOW_START = """import sys, time; sys.path.append(sys.argv[1]); from minrl.sandbox import walls
def slow(launch): return lambda *call: (time.sleep(0.8), launch(*call))
walls.LAUNCH.update({level: slow(launch) for level, launch in walls.LAUNCH.items()})
from minrl.sandbox.process import main; main(int(sys.argv[2]))"""


def test_the_time_of_a_call_counts_from_when_its_walls_stand(level, monkeypatch):
    monkeypatch.setattr(sandbox, "START", SLOW_START)  # as on a machine that is busy
    call = Call(["sh", "-c", "echo 1"], {}, Limits(wall_s=0.75))
    outcome = sandbox.start(call, level).result()
    assert outcome.status == "ok" and outcome.text == "1\n" and outcome.seconds < 0.75
