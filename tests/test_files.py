"""Files that are whole or not there, and locks that end with their process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.dataflow import UserError
from minrl.sandbox.calls import private_folder
from minrl.utils.files import append_jsonl, atomic_write, cut_jsonl, holder, is_locked, lock, read_jsonl, write_jsonl

ROOT = Path(__file__).parent.parent
HOLD = """
import sys, time
from pathlib import Path
from minrl.utils.files import lock
held = lock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


def test_a_lock_names_its_process_and_ends_with_it_however_it_ends(tmp_path):
    path = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    assert lock(path) is None and is_locked(path)
    assert holder(path) == f"process {process.pid} on {os.uname().nodename}"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with lock(path):
        assert holder(path).startswith(f"process {os.getpid()} on ")
        assert lock(path) is None
    assert not is_locked(path)


def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path):
    path = tmp_path / "file.json"
    with atomic_write(path) as file:
        file.write("first")
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        file.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_wherever_a_kill_cuts_jsonl_whole_lines_stay_and_the_next_one_replaces_the_torn_end(tmp_path):
    path, rows = tmp_path / "rows.jsonl", [{"a": "\u2028"}, {"a": None}, {"\u00e9": [3, "\n"]}]
    assert read_jsonl(path) == []
    write_jsonl(path, [rows[0], {"a": float("nan")}, rows[2]])
    content = path.read_bytes()
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        whole_rows = rows[: content[:size].count(b"\n")]
        assert read_jsonl(path) == whole_rows
        append_jsonl(path, [{"b": 4}])
        assert read_jsonl(path) == [*whole_rows, {"b": 4}]


def test_a_damaged_line_is_refused(tmp_path):
    path, damaged = tmp_path / "rows.jsonl", b'1\n{"a": "\xff"}\n2\n'
    path.write_bytes(damaged)
    for read in (read_jsonl, lambda path: cut_jsonl(path, bool)):
        with pytest.raises(UserError, match="is damaged: a line is not JSON"):
            read(path)
    assert path.read_bytes() == damaged


def test_what_is_cut_are_the_lines_that_are_not_kept_and_a_torn_end(tmp_path):
    path = tmp_path / "rows.jsonl"
    for content, kept in ((b"1\n1e400\n2\n", b"1\n1e400\n"), (b"1\n2", b"1\n")):
        path.write_bytes(content)
        cut_jsonl(path, lambda value: value != 2)
        assert path.read_bytes() == kept


def test_a_private_folder_is_made_once_and_taken_again_by_its_user_alone(tmp_path, monkeypatch):
    made = private_folder(tmp_path / "cache")
    assert made.stat().st_mode & 0o7777 == 0o711 and private_folder(made) == made
    (tmp_path / "link").symlink_to(tmp_path)
    owner = os.geteuid()
    for folder, user in ((tmp_path / "link", owner), (made, owner + 1)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(PermissionError, match=r"may hold .* set TMPDIR to a folder of your own$"):
            private_folder(folder)
