"""The page of a run that is going on: a server on loopback, which the page asks for what is new.

Each file of rollouts is read once: its packed step is kept until the file changes or is cut away by a resume. A
request packs for about a second and answers with what there is, so that the newest step is on the screen at once.

Completions are hostile. Only loopback is served; names of other hosts (DNS rebinding) and paths that are not on the
list are refused; no path of a request reaches the file system; the browser may run this page's script and ask this
server, and nothing else.
"""

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs

from minrl.report.rollouts.build import (
    DAMAGED,
    PAGE,
    Limits,
    PackedStep,
    live_page,
    packed_step,
    packed_steps,
    run_facts,
    thinned,
    unpacked,
)
from minrl.run.folder import RunFolder
from minrl.utils.loopback import Handler, Server, listen
from minrl.utils.text import json_text

PACKING_S = 1.0
"""After so many seconds of packing a request is answered; the next one packs the rest."""

TAIL_BYTES = 1 << 16
"""The end of metrics.jsonl in which its last line is looked for."""

JSON, HTML, TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"


_NUMBER = re.compile(r"[0-9]{1,9}")


class Follower:
    """A run's packed steps, by their number, as its folder changes."""

    def __init__(self, folder: Path, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._limits, self._now = folder, limits, now
        self._facts = run_facts(folder)
        self._packed = packed_steps(folder / PAGE)  # a run makes its page at each evaluation
        self._about: dict[str, Any] = {}
        self._lock = Lock()

    def news(self) -> dict[str, Any]:
        """The run's facts, every step that is packed, without its rollouts, and whether more are to be packed."""
        with self._lock:
            files = RunFolder(self.folder).rollouts
            shown = thinned(sorted(files), self._limits.max_steps)
            more = self._pack(shown, files)
            steps = [self._listed(self._packed[step]) for step in shown if step in self._packed]
            counts = {"steps_written": len(files), "steps_shown": len(shown)}
            facts = {**self._refreshed(), **counts, **progress(self.folder)}
            news = {"run": facts, "steps": steps, "written": sorted(files), "more": more}
            return {**news, "version": hashlib.sha256(json_text(news).encode()).hexdigest()[:16]}

    def data(self, step: int) -> bytes | None:
        """The rollouts of a step as compressed JSON; None if it has none."""
        with self._lock:
            packed = self._packed.get(step)
        return base64.b64decode(packed.data) if packed is not None and packed.data else None

    def page(self) -> str:
        """The page, which asks for the steps."""
        return live_page(self._refreshed())

    def _pack(self, shown: list[int], files: Mapping[int, Path]) -> bool:
        """Pack the steps that are new or changed, the last first; returns whether time ran out before the end."""
        began, worked, kept = self._now(), False, dict[int, PackedStep]()
        for step in reversed(shown):
            if worked and self._now() - began > PACKING_S:
                earlier = {step: one for step, one in self._packed.items() if step in shown}
                self._packed = {**earlier, **kept}
                return True
            before = self._packed.get(step)
            with suppress(FileNotFoundError):  # a resume cut it away a moment ago
                kept[step] = packed_step(step, files[step], before, self._limits)
                worked = worked or kept[step] is not before
        self._packed = kept
        return False

    def _listed(self, packed: PackedStep) -> dict[str, Any]:
        if packed.about not in self._about:
            self._about = {one.about: unpacked(one.about) for one in self._packed.values()}
        return {"step": packed.step, "source": packed.source, "about": self._about[packed.about]}

    def _refreshed(self) -> dict[str, Any]:
        """The run's facts, which a resume may change; the last ones known where they cannot be read."""
        with suppress(OSError, ValueError, RecursionError):
            self._facts = run_facts(self.folder)
        return self._facts


def progress(folder: Path) -> dict[str, Any]:
    """How far the run is: the step of the last whole line of metrics.jsonl, when it was written (seconds since 1970),
    and whether the run ended. None before the first line; a torn last line is left out.
    """
    about: dict[str, Any] = {"step": None, "at": None, "ended": (folder / "summary.json").exists()}
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            about["at"] = os.fstat(file.fileno()).st_mtime
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:  # not there yet, or no longer
        return about
    for line in reversed(lines):
        with suppress(*DAMAGED):  # or its beginning is not in the tail
            return {**about, "step": int(json.loads(line)["step"])}
    return about


class _Handler(Handler):
    """Answers GET for the page, for what is new, and for the rollouts of a step."""

    follower: Follower

    def do_GET(self) -> None:
        """Answer; a request that is not on the list is refused."""
        path, _, query = self.path.partition("?")
        step = path.removeprefix("/step/")
        if not self.asked_by_own_name:
            self._answer(HTTPStatus.FORBIDDEN, TEXT, b"ask as localhost or 127.0.0.1\n")
        elif path == "/":
            self._answer(HTTPStatus.OK, HTML, self.follower.page().encode())
        elif path == "/news":
            news = self.follower.news()
            seen = parse_qs(query).get("seen") == [news["version"]]
            self._answer(HTTPStatus.NO_CONTENT if seen else HTTPStatus.OK, JSON, b"" if seen else _json(news))
        elif _NUMBER.fullmatch(step) and (data := self.follower.data(int(step))) is not None:
            self._answer(HTTPStatus.OK, JSON, data, {"Content-Encoding": "gzip"})
        else:
            self._answer(HTTPStatus.NOT_FOUND, TEXT, b"there is no such page\n")

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            **(more or {}),
        }
        if status != HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def open_server(folder: Path, limits: Limits, port: int) -> Server:
    """A server for the page of the run in `folder`, on loopback. Port 0: any free one."""
    handler = type("Handler", (_Handler,), {"follower": Follower(folder, limits)})
    return listen(handler, port)


def _json(values: Mapping[str, Any]) -> bytes:
    return json_text(values, separators=(",", ":")).encode()
