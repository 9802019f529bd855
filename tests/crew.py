"""Several processes of a run, forked from this one: real ones, with gloo between them, and nothing to import again."""

import functools
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState

LIMIT_S = 300.0
"""Until processes that wait for each other are taken for a deadlock."""


def crew(count: int, work: Callable[..., Any], *arguments: object, machines: int = 1) -> list[Any]:
    """What `work(*arguments)` returns in each of `count` processes, which find each other as torchrun's do. The error
    of one ends them all.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        children = [_fork(rank, count, machines, port, folder, work, arguments) for rank in range(count)]
        failed, deadline = wait_for(children, time.monotonic() + LIMIT_S)
        texts = [(folder / f"{rank}.txt").read_text() for rank in range(count) if (folder / f"{rank}.txt").exists()]
        assert not failed, f"processes {failed} failed:\n" + "\n".join(texts)
        assert not deadline, "the processes wait for each other"
        return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(count)]


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """The test in a process of its own: limits of memory and processor time hold for all threads of a process."""

    @functools.wraps(test)
    def run(*arguments: object, **fixtures: object) -> None:
        crew(1, functools.partial(test, *arguments, **fixtures))

    return run


def _fork(
    rank: int, count: int, machines: int, port: int, folder: Path, work: Callable[..., Any], arguments: tuple
) -> int:
    child = os.fork()
    if child:
        return child
    try:
        local = count // machines
        places = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
        if count > 1:
            os.environ.update({name: str(value) for name, value in places.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        PartialState._reset_state()  # the parent's: it is alone
        (folder / f"{rank}.pickle").write_bytes(pickle.dumps(work(*arguments)))
    except BaseException:
        (folder / f"{rank}.txt").write_text(f"{rank}: {traceback.format_exc()}")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def wait_for(children: list[int], deadline: float) -> tuple[list[int], bool]:
    """The ranks of those that failed, at the first of which the others are ended; and whether time was over."""
    failed, running = [], dict(enumerate(children))
    while running and not failed and time.monotonic() < deadline:
        for rank, child in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del running[rank]
                failed += [rank] if status else []
        time.sleep(0.01)
    for child in running.values():
        os.kill(child, signal.SIGKILL if failed else signal.SIGABRT)  # faulthandler shows where it waits
        os.waitpid(child, 0)
    return failed, bool(running) and not failed


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
