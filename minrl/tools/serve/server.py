"""The endpoint: OpenAI's paths over HTTP, on loopback.

A thread for each connection reads and writes; the thread that samples is another. Only programs of this machine are
served: names of other hosts (DNS rebinding) are refused, and a page of a browser cannot ask, because a body that is
not declared as JSON is refused and no other page is allowed to declare it (CORS).
"""

import select
import socket
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from http import HTTPStatus
from queue import Empty, Queue
from typing import Any
from urllib.parse import unquote

from minrl.tools.serve.answers import Answer
from minrl.tools.serve.asking import ApiError, Asked, read
from minrl.tools.serve.choices import Begun, Event, Failed, Job, Said
from minrl.tools.serve.sampler import Sampler
from minrl.utils.loopback import LOOPBACK, Handler, Server, listen
from minrl.utils.text import json_text

CHAT, TEXT, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"

MOST_BYTES = 8 * 2**20
"""Longest body of a request."""

MOST_DISCARDED = 64 * 2**20
"""Bytes of a longer one that are read and thrown away, so that its sender reads the answer."""

LOOK_EVERY_S = 0.1
"""How often somebody who waits for an answer is looked for."""

DISCARD_S = 2.0


class ApiServer:
    """The endpoint of one model. It listens from the first on, so that a port that is taken is known at once, and
    answers from `start` on.
    """

    def __init__(self, name: str, port: int) -> None:
        self.name, self.created = name, int(time.time())
        self.sampler: Sampler | None = None
        self.http: Server = listen(type("ApiHandler", (_Handler,), {"api": self}), port)
        self._writing: list[Job] = []

    @property
    def url(self) -> str:
        """What clients take as their base URL."""
        return f"http://{LOOPBACK}:{self.http.server_port}/v1"

    def answer(self, asked: Asked) -> Generator[Event | None, None, None]:
        """What the sampler tells of the request, and None while it tells nothing. When nobody reads on, the request is
        cancelled.
        """
        assert self.sampler is not None
        if asked.model and asked.model != self.name:
            raise ApiError(
                f"the model {asked.model!r:.80} is not served here, {self.name!r} is",
                HTTPStatus.NOT_FOUND,
                "model",
                "model_not_found",
            )
        events: Queue[Event] = Queue()
        job = Job(asked, events.put)
        self._writing.append(job)
        try:
            self.sampler.submit(job)
            while True:
                try:
                    yield events.get(timeout=LOOK_EVERY_S)
                except Empty:
                    yield None
        finally:
            job.cancelled = True
            self._writing.remove(job)

    def model(self) -> dict[str, Any]:
        """The model as clients list it."""
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "minrl"}

    def close(self, patience_s: float = 2.0) -> None:
        """End; answers that are being written have so many seconds."""
        until = time.monotonic() + patience_s
        while self._writing and time.monotonic() < until:
            time.sleep(0.01)
        self.http.server_close()


class _Handler(Handler):
    """Answers the requests of one connection."""

    api: ApiServer

    def do_GET(self) -> None:
        """List the model, or show it."""
        try:
            self._require_own_name()
            path = unquote(self.path.partition("?")[0])
            if path not in (MODELS, f"{MODELS}/{self.api.name}"):
                raise _no_such(path)
            model = self.api.model()
            self._send(HTTPStatus.OK, {"object": "list", "data": [model]} if path == MODELS else model)
        except ApiError as error:
            self._send(error.status, error.body())

    def do_POST(self) -> None:
        """Answer a chat or completions."""
        try:
            self._require_own_name()
            body = self._body()
            path = self.path.partition("?")[0]
            if path not in (CHAT, TEXT):
                raise _no_such(path)
            kind = self.headers.get_content_type()
            if kind != "application/json":
                raise ApiError("send JSON, with the header Content-Type: application/json", 415)
            asked = read(body, chat=path == CHAT)
            with closing(self.api.answer(asked)) as events:
                self._respond(asked, events)
        except ApiError as error:
            self._send(error.status, error.body())
            self._discard()

    def _respond(self, asked: Asked, events: Iterator[Event | None]) -> None:
        """Write the answer, in parts or whole."""
        told = self._told(asked, events)
        begun = next(told)
        assert isinstance(begun, Begun)
        answer = Answer(asked, self.api.name, begun)
        if not asked.stream:
            self._send(HTTPStatus.OK, answer.whole([one for one in told if isinstance(one, Said)]))
            return
        self.close_connection = True  # its end is that of the stream
        self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream; charset=utf-8", "Connection": "close"})
        tokens = 0
        try:
            for part in answer.begin():
                self._event(part)
            for said in told:
                assert isinstance(said, Said)
                tokens += len(said.tokens)
                self._event(answer.part(said))
        except ApiError as error:
            self._event(error.body())
            return
        if asked.include_usage:
            self._event(answer.counted(tokens))
        self.wfile.write(b"data: [DONE]\n\n")

    def _told(self, asked: Asked, events: Iterator[Event | None]) -> Iterator[Begun | Said]:
        """The events up to the last one. Raises `ApiError` if the request fails, `ConnectionError` if its client is
        gone.
        """
        left = asked.choices
        for event in events:
            if isinstance(event, Failed):
                raise event.error
            if event is not None:
                yield event
                left -= isinstance(event, Said) and bool(event.finish_reason)
            elif self._left():
                raise ConnectionAbortedError("the client is gone")
            if not left:
                return

    def _left(self) -> bool:
        """Whether the client has closed the connection, on which it may also have sent its next request."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)

    def _require_own_name(self) -> None:
        if not self.asked_by_own_name:
            self.close_connection = True
            raise ApiError("ask as localhost or 127.0.0.1", HTTPStatus.FORBIDDEN)

    def _body(self) -> bytes:
        """The body. Raises `ApiError` if it is too long, or does not say how long it is."""
        length = self.headers.get("Content-Length", "")
        self.close_connection = True  # what is not read is no next request
        if not (length.isascii() and length.isdigit()):
            raise ApiError("send the body with a Content-Length", HTTPStatus.LENGTH_REQUIRED)
        if len(length) > 18 or int(length) > MOST_BYTES:
            raise ApiError(f"a body has at most {MOST_BYTES} bytes, got {length:.20}", 413)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionAbortedError("the client is gone")
        self.close_connection = self.headers.get("Connection", "").lower() == "close" or (
            self.request_version < "HTTP/1.1"
        )
        return body

    def _discard(self) -> None:
        """Before the connection is closed, read what a client still sends: it would not see the answer otherwise."""
        if not self.close_connection:
            return
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(DISCARD_S)
        discarded = 0
        while discarded < MOST_DISCARDED and (more := len(self.connection.recv(2**16))):
            discarded += more

    def _send(self, status: int, values: Mapping[str, Any]) -> None:
        body = json_text(values).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        more = {"Connection": "close"} if self.close_connection else {}
        common = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **more}
        for name, value in {**common, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _event(self, values: Mapping[str, Any]) -> None:
        self.wfile.write(f"data: {json_text(values)}\n\n".encode())


def _no_such(path: str) -> ApiError:
    known = f"POST {CHAT}, POST {TEXT}, GET {MODELS}"
    return ApiError(f"there is no {path[:80]!r} here: {known}", HTTPStatus.NOT_FOUND)
