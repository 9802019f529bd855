"""Servers for programs of this machine: on loopback, asked by its own names, left by their clients at any moment."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from minrl.types import UserError
from minrl.utils.files import refusal

LOOPBACK = "127.0.0.1"
OWN_NAMES = (LOOPBACK, "localhost")
"""The hosts by whose name a client may ask. The port may be another: it may be forwarded."""


class Server(ThreadingHTTPServer):
    """A server that a client may leave at any moment."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's
        """Report a fault; a closed connection is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """What the handlers of such servers share."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "minrl", ""
    timeout = 60

    @property
    def asked_by_own_name(self) -> bool:
        """Whether the request names this machine. A page of another host whose name was bound to loopback (DNS
        rebinding) does not.
        """
        host = self.headers.get("Host", "")
        return (host.rpartition(":")[0] or host) in OWN_NAMES

    def log_message(self, *arguments: object) -> None:
        """Say nothing of each request."""


def listen(handler: type[Handler], port: int) -> Server:
    """A server on loopback. Port 0: any free one. Raises `UserError` if the port cannot be had."""
    try:
        return Server((LOOPBACK, port), handler)
    except OSError as error:
        why = f"port {port} of {LOOPBACK} cannot be had ({refusal(error)})"
        raise UserError(f"{why}: name another with --port, or 0 for any free one") from error
