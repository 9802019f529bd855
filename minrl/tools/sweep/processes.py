"""Several runs of train.py, one after another or some at once, each on cores or a card of its own.

A run is a process whose output goes to a log. The first signal lets every run end its step and save it, a second one
stops them at once, as it does a single run. No run outlives the sweep, however that ends.
"""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from types import FrameType

from minrl.tools.sweep.plan import Planned
from minrl.types import require
from minrl.utils.processor import own_cores
from minrl.utils.signals import answered, die_with_parent

TRAINER = (sys.executable, "-m", "minrl", "train")

LOOK_S = 0.1
"""How often the runs are looked at, in seconds."""


@dataclass(frozen=True)
class Place:
    """Where a run computes: its cores, and its card as CUDA_VISIBLE_DEVICES names it (empty: whatever there is)."""

    cores: Sequence[int]
    card: str = ""

    def enter(self) -> None:
        """Called in the new process."""
        die_with_parent()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)


@dataclass
class Going:
    """A run that is going on."""

    run: Planned
    place: Place
    process: Popen[bytes]
    started: float


@dataclass(frozen=True)
class Failed:
    """A run that failed, with its exit status and its log."""

    run: Planned
    status: int
    log: Path

    def __str__(self) -> str:
        how = (
            f"ended with status {self.status}" if self.status >= 0 else f"killed by {signal.Signals(-self.status).name}"
        )
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{self.run.name} {how}: {lines[-1].strip() if lines else 'it said nothing'} (log {self.log})"


def places(count: int, device: str) -> list[Place]:
    """Places for so many runs at once: a card each where there are cards, else an equal share of the cores each."""
    cores, cards = own_cores(), visible_cards() if count > 1 and device != "cpu" else []
    most, what = (len(cards), "card") if cards else (len(cores), "core")
    require(
        count <= max(most, 1),
        f"--at-once {count}: each run needs a {what} of its own, and there {'is' if most == 1 else 'are'} {most}: give "
        f"at most {most}",
    )
    shares = [cores[place * len(cores) // count : (place + 1) * len(cores) // count] or cores for place in range(count)]
    return [Place(share, cards[place] if cards else "") for place, share in enumerate(shares)]


def visible_cards() -> list[str]:
    """The CUDA cards that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return (given.split(",") if given else [str(number) for number in range(count)])[:count]


class Stop:
    """Counts the signals that came; `number` is the first one, 0 before it."""

    def __init__(self) -> None:
        self.number, self.count = 0, 0

    def answer(self, number: int, _frame: FrameType | None) -> None:
        """A signal handler, which leaves the signal to the loop: it knows which runs are going on."""
        self.number, self.count = self.number or number, self.count + 1


def train_all(
    runs: Sequence[Planned], where: Sequence[Place], logs: Path, say: Callable[[str], None]
) -> tuple[list[Failed], int]:
    """Train the runs, as many at once as there are places. Returns those that failed, and the signal that stopped the
    sweep (0: none).
    """
    stop, passed_on, failed = Stop(), 0, []
    waiting, free, going = deque(runs), list(where), list[Going]()
    logs.mkdir(parents=True, exist_ok=True)
    with answered(stop.answer):
        try:
            while going or (waiting and not stop.number):
                while waiting and free and not stop.number:
                    going.append(_start(waiting.popleft(), free.pop(0), logs))
                    number = len(runs) - len(waiting)
                    say(f"{number} of {len(runs)}: {going[-1].run.name} (log {_log(logs, going[-1].run)})")
                if stop.count > passed_on:
                    passed_on = stop.count
                    say(f"{signal.Signals(stop.number).name}: the runs end their step; a second signal stops at once")
                    for one in going:
                        one.process.send_signal(stop.number)
                time.sleep(LOOK_S)
                for one in [one for one in going if one.process.poll() is not None]:
                    going.remove(one)
                    free.append(one.place)
                    failed += _ended(one, logs, stop, say)
        finally:
            for one in going:
                one.process.kill()
                one.process.wait()
    return failed, stop.number


def _start(run: Planned, place: Place, logs: Path) -> Going:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # stdout and stderr in order: the log ends with the error
    if place.card:
        environment["CUDA_VISIBLE_DEVICES"] = place.card
    with _log(logs, run).open("wb") as log:
        process = Popen(
            [*TRAINER, *run.flags, "--resume=auto"],
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C reaches it once, by this process
            preexec_fn=place.enter,
        )
    return Going(run, place, process, time.monotonic())


def _log(logs: Path, run: Planned) -> Path:
    return logs / f"{run.name}.txt"


def _ended(one: Going, logs: Path, stop: Stop, say: Callable[[str], None]) -> list[Failed]:
    """What is said of a run that has ended; in a list, if it failed."""
    status, seconds = one.process.returncode, time.monotonic() - one.started
    if status == 0:
        say(f"{one.run.name} is complete after {seconds:.0f} s")
        return []
    if stop.number:
        say(f"{one.run.name} was stopped")
        return []
    found = Failed(one.run, status, _log(logs, one.run))
    say(str(found))
    return [found]
