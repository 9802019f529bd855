"""A cache of paid replies: a table of sqlite3, which threads and processes may share.

The first reply for a key is final, even if two processes ask at the same time. A reply is used only once it is in the
file, so a resumed run gets the replies it got before.
"""

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Lock

from minrl.dataflow import UserError

BUSY_S = 60.0
"""How long another process may hold the file."""


class ReplyCache:
    """Replies by key. With an empty path they are kept in memory only."""

    def __init__(self, path: str) -> None:
        self._lock, self._asked = Lock(), dict[str, Future[str]]()
        try:
            if path:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._table = sqlite3.connect(path or ":memory:", BUSY_S, isolation_level=None, check_same_thread=False)
            self._table.execute("PRAGMA synchronous = OFF")  # what is written survives the process, if not the machine
            self._table.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply BLOB NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot open the cache of replies {path}: {error}; name another file") from error

    def reply(self, key: str, ask: Callable[[], str], keep: Callable[[str], bool] = lambda reply: True) -> str:
        """The cached reply, else the result of `ask`, which threads with the same key share. It is cached if `keep`
        says so. Its errors are raised.
        """
        with self._lock:
            known = self._known(key)
            if known is not None:
                return known
            asked = self._asked.get(key)
            if asked is None:
                mine = self._asked[key] = Future()
        if asked is not None:
            return asked.result()
        try:
            reply = ask()
            mine.set_result(self._kept(key, reply) if keep(reply) else reply)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asked[key]
        return mine.result()

    def close(self) -> None:
        """Close the file."""
        self._table.close()

    def _known(self, key: str) -> str | None:
        found = self._table.execute("SELECT reply FROM replies WHERE key = ?", [key]).fetchone()
        return found[0].decode(errors="surrogatepass") if found else None

    def _kept(self, key: str, reply: str) -> str:
        """Write the reply, unless another process wrote one first; returns the final reply."""
        with self._lock:
            given = [key, reply.encode(errors="surrogatepass")]
            self._table.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", given)
            known = self._known(key)
        assert known is not None
        return known
