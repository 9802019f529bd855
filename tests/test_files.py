"""Files that are whole or not there, and locks that end with their process."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.system.files import holder, lock, lock_in_turn, read_json, whole, write_json
from minrl.types import UserError

ROOT = Path(__file__).parent.parent
HOLD = """
import sys, time
from pathlib import Path
from minrl.system.files import lock
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


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path, mode):
    path, text = tmp_path / "file.json", (lambda s: s.encode()) if mode == "wb" else str
    with whole(path, mode) as file:
        file.write(text("first"))
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), whole(path, mode) as file:
        file.write(text("half"))
        raise KeyboardInterrupt
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_json_comes_back_and_what_is_none_is_nothing(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1]})
    assert read_json(tmp_path / "a.json") == {"a": [1]}
    (tmp_path / "a.json").write_text("{")
    assert read_json(tmp_path / "a.json") is None is read_json(tmp_path / "b.json")


def test_a_lock_that_is_gone_when_it_is_asked_about_has_just_ended(tmp_path):
    assert holder(tmp_path / "lock") == "a process that has just ended"
