"""Two ways of doing the same work, timed in turns: what the benchmarks share.

Each side is a process of its own that waits while the other one runs, so that neither's threads, allocator or imports
touch the other's. A round is one turn of each side, in alternating order; its result is the ratio of the two. Before
a round the machine must be quiet; if it never was, the result says so.

A side is a function `side(turns, options)` that repeats: `turns.wait()`, work, `turns.done(seconds, facts)`. Facts that
both sides report under one name must be equal, so that the same work is compared.
"""

import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # train.py lies beside the package

QUIET = 0.05
"""Largest share of the machine that other processes may use while something is timed."""

PATIENCE_S = 20.0
"""How long to wait for a quiet machine before a round."""


def doing(what: str) -> None:
    """Print what begins now to stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {what}", file=sys.stderr, flush=True)


@dataclass
class Row:
    """One line of the table: ratios of the rounds, or values of a counter."""

    what: str
    against: str
    values: list[float]
    others_load: float = 0.0
    """Share of the machine that other processes used, in the worst round."""
    facts: Any = None
    """What each side reported in the last round."""

    def line(self) -> str:
        """The row of a Markdown table."""
        low, median, high = min(self.values), statistics.median(self.values), max(self.values)
        spread = "" if low == high else f" ({low:.3g} to {high:.3g})"
        noisy = f"; others used {self.others_load:.0%}" if self.others_load > QUIET else ""
        return f"| {self.what} | {self.against} | {median:.3g}{spread}{noisy} |"


class Turns:
    """A side's end of the conversation."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cpu_s = 0.0

    def ready(self) -> None:
        """Everything is imported and made."""
        self._connection.send("ready")

    def wait(self) -> int:
        """The number of the round that begins now. Ends the process after the last one."""
        number = self._connection.recv()
        if number is None:
            os._exit(0)  # a library's threads must not keep the process alive
        self._cpu_s = _cpu_seconds()
        return number

    def done(self, seconds: float, facts: Mapping[str, Any]) -> None:
        """What the turn took and what it did."""
        self._connection.send((seconds, dict(facts), _cpu_seconds() - self._cpu_s))


class Sides:
    """Processes that take turns. `sides` maps a name to a function at the top of a module."""

    def __init__(self, what: str, sides: Mapping[str, Callable[[Turns, Any], None]], options: Any) -> None:
        self._what = what
        context = multiprocessing.get_context("spawn")
        self._ends: dict[str, Connection] = {}
        self._processes = []
        for name, side in sides.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(side, theirs, options), daemon=True)
            process.start()
            theirs.close()
            self._ends[name] = ours
            self._processes.append(process)
            assert self._receive(name) == "ready"

    def rounds(self, count: int, warmup: int = 2) -> list[dict[str, Any]]:
        """Seconds and facts of each side in each round, and the share that other processes used meanwhile."""
        kept = []
        for number in range(count + warmup):
            doing(f"{self._what}: round {number + 1} of {warmup} + {count}")
            others = wait_until_quiet() if number >= warmup else 0.0
            seconds, facts, cpu = {}, {}, {}
            for name in list(self._ends)[:: 1 if number % 2 == 0 else -1]:
                before, started = _machine_busy_s(), time.perf_counter()
                self._ends[name].send(number)
                seconds[name], facts[name], cpu[name] = self._receive(name)
                elapsed = time.perf_counter() - started
                load = (_machine_busy_s() - before - cpu[name]) / elapsed / (os.cpu_count() or 1)
                others = max(others, load if elapsed > 0.2 else 0.0)  # the kernel counts in hundredths of a second
            require_equal(facts)
            if number >= warmup:
                kept.append({"seconds": seconds, "cpu_s": cpu, "facts": facts, "others_load": others})
        return kept

    def close(self) -> None:
        """End the processes."""
        for end, process in zip(self._ends.values(), self._processes, strict=True):
            end.send(None)
            process.join(10)
            process.kill()

    def _receive(self, name: str) -> Any:
        message = self._ends[name].recv()
        if isinstance(message, BaseException):
            raise RuntimeError(f"the side {name!r} failed") from message
        return message


def compare(what: str, against: str, sides: Mapping[str, Callable], options: Any, rounds: int, warmup: int = 2) -> Row:
    """Seconds of the first side over seconds of the second, round by round."""
    turns = Sides(what, sides, options)
    try:
        kept = turns.rounds(rounds, warmup)
    finally:
        turns.close()
    ours, theirs = sides
    seconds = {name: statistics.median(one["seconds"][name] for one in kept) for name in sides}
    cpu = statistics.median(one["cpu_s"][ours] / one["cpu_s"][theirs] for one in kept)
    listed = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in seconds.items())
    print(f"{what}: {listed}; ratio of CPU seconds {cpu:.3f}", flush=True)
    ratios = [one["seconds"][ours] / one["seconds"][theirs] for one in kept]
    load = max(one["others_load"] for one in kept)
    return Row(what, against, ratios, load, kept[-1]["facts"])


def require_equal(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to compare work that is not the same."""
    first, *others = facts.values()
    for other in others:
        for name in first.keys() & other.keys():
            assert first[name] == other[name], f"the sides differ in {name}: {facts}"


def wait_until_quiet() -> float:
    """Wait until nobody else computes. The share of the machine that others still use in the end."""
    started = time.perf_counter()
    while True:
        before, at = _machine_busy_s(), time.perf_counter()
        time.sleep(0.25)
        share = (_machine_busy_s() - before) / (time.perf_counter() - at) / (os.cpu_count() or 1)
        if share <= QUIET or time.perf_counter() - started > PATIENCE_S:
            return share


def show(rows: Sequence[Row]) -> None:
    """Print the machine and the table."""
    import torch

    cpu = Path("/proc/cpuinfo").read_text()
    model = cpu.partition("model name")[2].partition(":")[2].partition("\n")[0].strip() or platform.processor()
    print(f"{os.cpu_count()} cores, {model}, torch {torch.__version__}")
    print("| what | against | measured |", "|---|---|---|", *(row.line() for row in rows), sep="\n", flush=True)


def _serve(side: Callable[[Turns, Any], None], connection: Connection, options: Any) -> None:
    try:
        side(Turns(connection), options)
    except BaseException as error:
        traceback.print_exc()
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _machine_busy_s() -> float:
    """Seconds of all cores together that anything was computed, since the machine started."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, irq, softirq, _steal = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
