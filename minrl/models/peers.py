"""Notices that another process of the run is gone, by connections that the kernel closes when a process ends.

Process 0 has one to each of the others and passes on what it learns. A collective operation notices by itself only
while it runs, and on cards not always.
"""

import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from multiprocessing.connection import wait
from types import FrameType

from torch import distributed

from minrl.models.launch import Launch
from minrl.types import UserError
from minrl.utils.signals import tell
from minrl.utils.text import first_line, printable, without_keys

LEFT = "left"
"""Says that a process ended in order."""

ABOUT = "process "
"""How what is passed on begins."""

PATIENCE_S = 3.0
"""Until the main thread is interrupted: an error that all have ends it before, and so does what it waits for."""

GRACE_S = 25.0
"""From then until this process ends by force, where a collective operation holds it."""

GREETING_S = 5.0
"""Until who connects has said who it is."""

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""After how many seconds a silent machine is asked, how often, and how many times."""

LONGEST = 500
"""Characters of a reason."""

FAILED = 1
"""Exit status of a process that lost another: the same command may succeed."""


class PeerGone(KeyboardInterrupt):
    """Ends what the main thread does. No task's code catches it."""


class LostPeer(UserError):
    """Another process of the run is gone."""

    status = FAILED


class Peers:
    """The other processes, watched by a thread until `close`. `names` says where each is."""

    def __init__(self, launch: Launch, store: distributed.Store, names: Sequence[str], timeout_s: float) -> None:
        self.lost = ""
        self._rank, self._names, self._ended = launch.rank, names, threading.Event()
        self._main = threading.main_thread()
        try:
            self._others = dict(_connections(launch, store, timeout_s))
        except (RuntimeError, OSError) as error:
            raise LostPeer(
                f"process {launch.rank} of {launch.count} could not connect to the others within {timeout_s:g} s, to "
                f"see whether they live: {first_line(error)}"
            ) from error
        self._usual = signal.signal(signal.SIGUSR2, self._interrupt)
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell the others how it ends inside. If another process is gone, that is the error."""
        try:
            yield
        except BaseException as error:
            collective = _of_a_collective(error)
            if collective and not self.lost:  # which may know before the thread
                self._ended.wait(PATIENCE_S)
            self._tell(self.lost or f"failed: {_reason(error)}")
            if self.lost or collective:
                raise LostPeer(self.lost or f"the processes of the run lost each other: {_reason(error)}") from error
            raise
        self._tell(LEFT)

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        signal.signal(signal.SIGUSR2, self._usual)

    def _tell(self, message: str) -> None:
        for connection in self._others:
            with suppress(OSError):  # it is gone too
                connection.sendall(f"{message}\n".encode())

    def _watch(self) -> None:
        left = dict(self._others)
        while left and not self._ended.is_set():
            for connection in wait(list(left), timeout=1.0):
                assert isinstance(connection, socket.socket)
                rank, message = left.pop(connection), _received(connection)
                if message != LEFT and not self._ended.is_set():
                    own = f"{ABOUT}{rank} of {len(self._names)} ({self._names[rank]}) {message or 'is gone'}"
                    self._end(message if message.startswith(ABOUT) else own)
                    return

    def _end(self, lost: str) -> None:
        """End this process, because another is gone."""
        self.lost = lost
        self._tell(lost)
        if self._ended.wait(PATIENCE_S):
            return
        signal.pthread_kill(self._main.ident or 0, signal.SIGUSR2)
        if not self._ended.wait(GRACE_S):
            tell(f"error: {lost}\n")
            os._exit(FAILED)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.lost and not self._ended.is_set():
            raise PeerGone(self.lost)


def _connections(launch: Launch, store: distributed.Store, timeout_s: float) -> Iterator[tuple[socket.socket, int]]:
    """A connection to each other process that is watched from here, with its rank."""
    if launch.rank > 0:
        port = int(store.get("peers"))
        connection = socket.create_connection((launch.address, port), timeout=timeout_s)
        connection.sendall(f"{ABOUT}{launch.rank}\n".encode())
        yield _kept_alive(connection), 0
        return
    awaited = {f"{ABOUT}{rank}": rank for rank in range(1, launch.count)}
    with _listening(launch) as listener:
        listener.settimeout(timeout_s)
        store.set("peers", str(listener.getsockname()[1]))
        while awaited:
            connection, _ = listener.accept()
            connection.settimeout(GREETING_S)  # whoever else connects may say nothing
            rank = awaited.pop(_received(connection), None)
            if rank is None:
                connection.close()
            else:
                yield _kept_alive(connection), rank


def _listening(launch: Launch) -> socket.socket:
    """A socket at a free port: of this machine only, if all processes are on it and meet at its loopback address. Other
    machines may know by another address what this one calls loopback.
    """
    found = socket.getaddrinfo(launch.address, None, type=socket.SOCK_STREAM)
    local = [one for one in found if ip_address(str(one[4][0])).is_loopback]
    if local and launch.nodes == 1:
        return socket.create_server((str(local[0][4][0]), 0), family=local[0][0])
    both = socket.has_dualstack_ipv6()
    return socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)


def _kept_alive(connection: socket.socket) -> socket.socket:
    """The connection, which breaks if the other machine says nothing for half a minute."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # other systems keep their own times
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _received(connection: socket.socket) -> str:
    """The next line; empty if the other side is gone."""
    with suppress(OSError), connection.makefile("r", encoding="utf-8", errors="replace") as lines:
        return lines.readline(4 * LONGEST).rstrip("\n")
    return ""


def _reason(error: BaseException) -> str:
    said = first_line(error) if isinstance(error, Exception) else type(error).__name__
    return without_keys(printable(said))[:LONGEST]


def _of_a_collective(error: BaseException) -> bool:
    return isinstance(error, distributed.DistError) or "gloo" in str(error).lower()
