"""A cache of a judge's replies: a table of sqlite3, which threads and processes may share.

The first reply for a key is final, even if two ask at the same time. A reply is used only once it is in the file, so a
resumed run gets the replies it got before.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from minrl.dataflow import UserError

BUSY_S = 60.0
"""How long another process may hold the file."""


class ReplyCache:
    """Replies by key. With an empty path they are kept in memory only."""

    def __init__(self, path: str) -> None:
        self._lock = Lock()
        try:
            if path:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._table = sqlite3.connect(path or ":memory:", BUSY_S, isolation_level=None, check_same_thread=False)
            self._table.execute("PRAGMA synchronous = OFF")  # what is written survives the process, if not the machine
            self._table.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply BLOB NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot open the cache of replies {path}: {error}; name another file") from error

    def reply(self, key: str, ask: Callable[[], str], keep: Callable[[str], bool] = lambda reply: True) -> str:
        """The cached reply, else the result of `ask`, which is cached if `keep` says so. Its errors are raised."""
        known = self._known(key)
        if known is not None:
            return known
        reply = ask()
        if not keep(reply):
            return reply
        self._execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", key, reply.encode(errors="surrogatepass"))
        return self._known(key) or reply  # an empty reply is empty in the file too

    def close(self) -> None:
        """Close the file."""
        self._table.close()

    def _known(self, key: str) -> str | None:
        found = self._execute("SELECT reply FROM replies WHERE key = ?", key)
        return found[0][0].decode(errors="surrogatepass") if found else None

    def _execute(self, statement: str, *values: str | bytes) -> list[tuple[bytes]]:
        with self._lock:
            return self._table.execute(statement, values).fetchall()
