"""The cache of replies: paid once, the first one stands."""

import pytest

from minrl.rewards.reply_cache import ReplyCache


def never():
    raise AssertionError("asked for what is known")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "deep/er/cache.sqlite")


def test_what_was_asked_once_is_known_to_the_next_run(path):
    assert ReplyCache(path).reply("k", lambda: "first\n\u2028 reply") == "first\n\u2028 reply"
    assert ReplyCache(path).reply("k", never) == "first\n\u2028 reply"
    assert ReplyCache(path).reply("other", lambda: "second") == "second"


def test_the_first_reply_stands_where_two_processes_asked(path):
    one, other = ReplyCache(path), ReplyCache(path)
    assert one.reply("k", lambda: other.reply("k", lambda: "first") and "later") == "first"


def test_a_failure_is_raised_and_not_kept(path):
    cache = ReplyCache(path)
    with pytest.raises(OSError, match="down"):
        cache.reply("k", lambda: (_ for _ in ()).throw(OSError("down")))
    assert cache.reply("k", lambda: "up") == "up"
