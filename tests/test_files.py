"""Files that are whole or not there, and locks that end with their process."""

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.sandbox.calls import private_folder
from minrl.types import UserError
from minrl.utils.files import (
    append_jsonl,
    atomic_write,
    cut_jsonl,
    holder,
    is_torn,
    lock,
    lock_in_turn,
    read_jsonl,
    write_jsonl,
)

ROOT = Path(__file__).parent.parent
HOLD = """
import sys, time
from pathlib import Path
from minrl.utils.files import lock
held = lock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other_process():
    """Starts a process that locks a file and keeps it."""
    started = []

    def hold(path):
        started.append(subprocess.Popen([sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"locked\n"
        return started[-1]

    yield hold
    for process in started:
        process.kill()
        process.wait()


def test_a_lock_names_its_process_and_ends_with_it_however_it_ends(tmp_path, other_process):
    path = tmp_path / "lock"
    process = other_process(path)
    assert lock(path) is None
    assert holder(path) == f"process {process.pid} on {os.uname().nodename}"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with lock(path):
        assert holder(path).startswith(f"process {os.getpid()} on ")
        assert lock(path) is None
    lock(path).close()


def test_who_waits_for_a_lock_says_for_whom_and_gets_it(tmp_path, other_process):
    path, said = tmp_path / "lock", []
    process = other_process(path)

    def say(by):
        said.append(by)
        process.kill()

    with lock_in_turn(path, say):
        assert said == [f"process {process.pid} on {os.uname().nodename}"]
        assert lock(path) is None


def test_a_lock_file_that_its_holder_removed_is_nobodys_lock(tmp_path, monkeypatch):
    path, usual = tmp_path / "lock", fcntl.flock

    def removed_first(file, operation):
        monkeypatch.setattr(fcntl, "flock", usual)
        path.unlink()  # by its holder, after it was opened here
        usual(file, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    assert lock(path) is None
    monkeypatch.setattr(fcntl, "flock", removed_first)
    with lock(path, wait=True):
        assert path.exists() and lock(path) is None


def test_what_cannot_be_locked_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"cannot lock .*: Is a directory"):
        lock(tmp_path)
    assert lock(tmp_path / "gone" / "lock") is None  # a folder that was given back: another name is free
    (tmp_path / "lock").symlink_to(tmp_path / "kept")
    with pytest.raises(UserError, match="cannot lock"):
        lock(tmp_path / "lock")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path, mode):
    path, text = tmp_path / "file.json", (lambda s: s.encode()) if mode == "wb" else str
    with atomic_write(path, mode) as file:
        file.write(text("first"))
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), atomic_write(path, mode) as file:
        file.write(text("half"))
        raise KeyboardInterrupt
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_wherever_a_kill_cuts_jsonl_whole_lines_stay_and_the_next_one_replaces_the_torn_end(tmp_path):
    path, rows = tmp_path / "rows.jsonl", [{"a": "\u2028"}, {"a": None}, {"\u00e9": [3, "\n"]}]
    assert read_jsonl(path) == [] and not is_torn(path)
    write_jsonl(path, [rows[0], {"a": float("nan")}, rows[2]])
    content = path.read_bytes()
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        whole_rows = rows[: content[:size].count(b"\n")]
        assert read_jsonl(path) == whole_rows and is_torn(path) == (size > 0 and content[size - 1 : size] != b"\n")
        append_jsonl(path, [{"b": 4}])
        assert read_jsonl(path) == [*whole_rows, {"b": 4}] and not is_torn(path)


@pytest.mark.parametrize("line", [b"\0\0", b'{"a": "\xff"}', b"", b"{"])
def test_a_damaged_line_is_reported_or_refused_and_cut_from_the_file(tmp_path, line):
    path, damaged = tmp_path / "rows.jsonl", []
    path.write_bytes(b"1\n" + line + b"\n2\n1e400\n")
    assert read_jsonl(path, damaged.append) == [1, 2, math.inf]
    assert damaged == [line.decode(errors="backslashreplace")]
    with pytest.raises(json.JSONDecodeError):
        read_jsonl(path)
    assert cut_jsonl(path, lambda value: value < 2, damaged.append) == [1] and path.read_bytes() == b"1\n"
    written = path.stat().st_ino
    assert cut_jsonl(path, lambda value: True) == [1] and path.stat().st_ino == written  # nothing went: not written
    assert cut_jsonl(tmp_path / "none.jsonl", lambda line: True) == []


def test_a_private_folder_is_made_once_and_taken_again_by_its_user_alone(tmp_path, monkeypatch):
    planted = {name: tmp_path / name for name in ("link", "file", "everybody's", "group's")}
    planted["link"].symlink_to(tmp_path)
    planted["file"].touch()
    for name, mode in (("everybody's", 0o777), ("group's", 0o770)):
        planted[name].mkdir()
        planted[name].chmod(mode)
    for path in planted.values():
        with pytest.raises(PermissionError, match=f"^{path} may hold .* set TMPDIR to a folder of your own$"):
            private_folder(path)
    before = os.umask(0o077)
    try:
        made = private_folder(tmp_path / "cache")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o7777 == 0o711  # others pass, whatever the umask
    assert private_folder(made) == made
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match="may hold"):
        private_folder(made)
