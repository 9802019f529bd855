"""The cache of replies: paid once, the first one stands, and a kill at any moment leaves it whole."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minrl.dataflow import UserError
from minrl.rewards.reply_cache import ReplyCache

ROOT = Path(__file__).parent.parent


def never():
    raise AssertionError("asked for what is known")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "deep/er/cache.sqlite")


def test_what_was_asked_once_is_known_to_the_next_run(path):
    assert ReplyCache(path).reply("k", lambda: "first\n\u2028 reply") == "first\n\u2028 reply"
    assert ReplyCache(path).reply("k", never) == "first\n\u2028 reply"
    assert ReplyCache(path).reply("other", lambda: "second") == "second"


def test_the_same_question_at_the_same_time_is_asked_once(path):
    cache, asked, all_here = ReplyCache(path), [], threading.Barrier(8)

    def one(number):
        all_here.wait(timeout=60)
        return cache.reply("k", lambda: asked.append(number) or str(number))

    with ThreadPoolExecutor(8) as pool:
        replies = set(pool.map(one, range(8)))
    assert replies == {str(asked[0])} and len(asked) == 1


def test_the_first_reply_stands_where_two_processes_asked(path):
    one, other = ReplyCache(path), ReplyCache(path)  # each knows of an empty file
    assert one.reply("k", lambda: "one") == "one"
    assert other.reply("k", lambda: "other") == "one"


def test_a_failure_is_raised_and_not_kept(path):
    cache = ReplyCache(path)
    with pytest.raises(OSError, match="down"):
        cache.reply("k", lambda: (_ for _ in ()).throw(OSError("down")))
    assert cache.reply("k", lambda: "up") == "up"


WRITER = """
import sys
from minrl.rewards.reply_cache import ReplyCache
cache = ReplyCache(sys.argv[1])
for number in range(10**9):
    cache.reply(f"{sys.argv[2]}{number}", lambda: "x" * 20_000)
    print(number, flush=True)
"""


def test_writers_that_are_killed_leave_every_reply_that_was_used(path):
    command = [sys.executable, "-c", WRITER, path]
    writers = [
        subprocess.Popen(
            [*command, name], cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        for name in "ab"
    ]
    used = []
    for writer in writers:
        printed = [writer.stdout.readline() for _ in range(20)]
        writer.kill()
        printed += writer.communicate()[0].splitlines(keepends=True)
        used.append(max(int(line) for line in printed if line.endswith(b"\n")))
    cache = ReplyCache(path)
    for name, last in zip("ab", used, strict=True):
        assert all(cache.reply(f"{name}{number}", never) == "x" * 20_000 for number in range(last + 1))


def test_a_file_that_is_something_else_is_refused_and_left_alone(path):
    Path(path).parent.mkdir(parents=True)
    Path(path).write_text("notes\n")
    with pytest.raises(UserError, match=r"cannot open the cache of replies .*; name another file"):
        ReplyCache(path)
    assert Path(path).read_text() == "notes\n"
