"""A cache of paid replies: a JSONL file by key, to which several processes may append.

The first reply for a key is final, even if two processes ask at the same time. A reply is used only after its line is
in the file, so a resumed run gets the replies it got before. A line that a kill cut off is skipped.
"""

import fcntl
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Lock

from minrl.types import UserError

BEGINNING = b'{"key": "'
"""The beginning of each line, which distinguishes a torn line from a file of another kind."""


class ReplyCache:
    """Replies by key, safe for threads and processes. With an empty path they are kept in memory only.

    A reply that is not `worth_keeping` is returned and not cached.
    """

    def __init__(self, path: str, worth_keeping: Callable[[str], bool] = lambda reply: True) -> None:
        self.path, self._worth_keeping = path, worth_keeping
        self._replies: dict[str, str] = {}
        self._asked: dict[str, Future[str]] = {}
        self._read_bytes, self._lock = 0, Lock()
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the cache lives
            except OSError as error:
                raise UserError(f"cannot open the cache of replies {path}: {error.strerror}") from error
            self._read_lines()

    def reply(self, key: str, ask: Callable[[], str]) -> str:
        """The cached reply, else the result of `ask`, which threads with the same key share. Its errors are raised and
        not cached.
        """
        with self._lock:
            if key in self._replies:
                return self._replies[key]
            asked = self._asked.get(key)
            if asked is None:
                mine = self._asked[key] = Future()
        if asked is not None:
            return asked.result()
        try:
            mine.set_result(self._kept(key, ask()))
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asked[key]
        return mine.result()

    def close(self) -> None:
        """Close the file."""
        if self.path:
            self._file.close()

    def _kept(self, key: str, reply: str) -> str:
        """Write the reply, unless another process wrote one first; returns the final reply."""
        if not self._worth_keeping(reply):
            return reply
        line = BEGINNING + json.dumps(key).encode()[1:] + b', "reply": ' + json.dumps(reply).encode() + b"}\n"
        with self._lock:
            if self.path:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                try:
                    torn = self._read_lines()
                    if key not in self._replies:
                        self._file.write(b"\n" + line if torn else line)
                finally:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            return self._replies.setdefault(key, reply)

    def _read_lines(self) -> bool:
        """Read the lines added since the last call. Whether the last one lacks its end."""
        self._file.seek(self._read_bytes)
        added = self._file.read()
        *_, rest = lines = added.split(b"\n")
        for line in filter(None, lines):
            self._take(line)
        self._read_bytes += len(added) - len(rest)
        return bool(rest)

    def _take(self, line: bytes) -> None:
        if line[: len(BEGINNING)] != BEGINNING[: len(line)]:
            raise UserError(f"{self.path} is no cache of replies: name another file, which is made where it is missing")
        try:
            entry = json.loads(line)
        except ValueError:  # torn: the reply was never used
            return
        if self._worth_keeping(entry["reply"]):
            self._replies.setdefault(entry["key"], entry["reply"])
