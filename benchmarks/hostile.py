"""Score variants of hostile completions by the real tasks, workers and sandbox, beside honest ones, and report.

    python benchmarks/hostile.py --seconds 600
    python benchmarks/hostile.py --seconds 600 --task code --level limits --seed 1
    python benchmarks/hostile.py --seconds 600 --level all --sum runs/hostile/sum.json
    python benchmarks/hostile.py --replay runs/hostile/break-0001.json

The seeds are the cases of tests/hostile, and the programs there that attack the machine (`--task machine`). An attack
holds no right solution, so that every reward above its `most` is a break; so is a completion that cannot be scored, one
that takes longer than the deadline, an honest neighbour that is not paid, and whatever is found outside of the sandbox:
a connection to a listener, a changed file, what the sandbox's users left. A break is tried again, twice, and written to
a file. With `--sum` the counts of several calls are added up, and each has variants of its own.
"""

import argparse
import contextlib
import ctypes
import json
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from harness import ROOT, doing

from minrl.rewards.workers import Failure, Workers
from minrl.sandbox import calls
from minrl.types import Reward, UserError, require
from tests.hostile.cases import Case
from tests.hostile.census import is_worker, left_over, settled
from tests.hostile.machine_variants import TASK, machine_case, play_machine
from tests.hostile.playing import MEMORY, SECONDS, all_cases, play, task_of
from tests.hostile.variants import variant

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
DEADLINE_S = 60.0
CHUNK = 48
HONEST_SHARE = 0.15
WEIGHTS = {"rust": 0.003, "code": 0.2, "code_game": 0.04, "math": 0.03}
MACHINE_SHARE = 0.02
SLOW = ("rust", TASK)
"""Tasks of which a chunk takes minutes."""
"""Shares of the variants by task; the rest is divided among the other tasks."""

HASTE: Mapping[str, Mapping[str, float]] = {
    "code": {"timeout_s": 0.5},
    "code_game": {"time_limit_s": 1.0},
    "rust": {"build_seconds": 4.0, "test_seconds": 1.0},
    "math": {"timeout_s": 2.0},
}
"""Options of attacks, that one which hangs takes less of the time."""


@dataclass
class Tally:
    """What was seen of one task."""

    tried: int = 0
    held: int = 0
    honest: int = 0
    paid: int = 0
    unscorable: int = 0
    ended: int = 0
    slowest: float = 0.0
    most_memory: float = 0.0
    seconds: float = 0.0


COUNTS = ("tried", "held", "honest", "paid", "unscorable", "ended")


class Outside:
    """What programs must not reach: a listener, files of ours, and the memory of the machine."""

    def __init__(self, place: Path, level: str) -> None:
        self.place, self.level = place, level
        self.open = place / "open"
        self.open.mkdir()
        self.open.chmod(0o777)
        self.kept = place / "kept"
        self.kept.write_text("kept")
        self.kept.chmod(0o644)
        self.listeners = [socket.create_server(("127.0.0.1", 0))]
        self.port = self.listeners[0].getsockname()[1]
        for kind, address in ((socket.SOCK_DGRAM, ("127.0.0.1", self.port)),):
            self.listeners.append(socket.socket(socket.AF_INET, kind))
            self.listeners[-1].bind(address)
        self.slots = str(calls._message(calls.Call([]), "")["folder"])
        self.before = set(left_over(self.slots))
        self.lowest_mib, self._ended = available_mib(), Event()
        self.start_mib = self.lowest_mib
        Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.lowest_mib = min(self.lowest_mib, available_mib())

    def told(self, case: Case) -> Case:
        """The case with the places that it is to reach."""
        text = case.completion.replace("PORT", str(self.port)).replace("OUTSIDE", str(self.open))
        return replace(case, completion=text)

    def escapes(self) -> list[str]:
        """What was reached since the last look."""
        found = []
        for listener in select.select(self.listeners, [], [], 0)[0]:
            found.append(f"something came to port {self.port}")
            if listener.type == socket.SOCK_STREAM:
                listener.accept()[0].close()
            else:
                listener.recv(65536)
        if self.kept.read_text() != "kept":
            found.append(f"{self.kept} was changed")
        if self.level != "limits":  # where a folder that everybody may write to is what it says
            found += [f"{path} was made" for path in self.open.iterdir()]
        shutil.rmtree(self.open)
        self.open.mkdir()
        self.open.chmod(0o777)
        left = set(left_over(self.slots)) - self.before
        self.before |= left
        running = [pid for pid in settled() if not is_worker(pid)]
        return [*found, *sorted(left), *(f"process {pid} is still there" for pid in running)]

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        for listener in self.listeners:
            listener.close()


def available_mib() -> float:
    """The machine's free memory."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:")) / 1024


class Trial:
    """Variants in chunks, until the time is over."""

    def __init__(self, given: argparse.Namespace, level: str, place: Path) -> None:
        self.given, self.level = given, level
        self.rng = random.Random(f"{given.seed} {level} {given.task} {calls_before(given.sum)}")
        self.workers = Workers(given.workers, DEADLINE_S)
        self.outside = Outside(place, level)
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.machine_share = 1.0 if given.task == TASK else MACHINE_SHARE if not given.task else 0.0
        cases = [case for case in all_cases() if case.task.startswith(given.task)]
        refused = {name: why for name in {case.task for case in cases} if (why := refusal(name))}
        for name, why in refused.items():
            print(f"{name} is left out at this level: {why}", flush=True)
        cases = [case for case in cases if case.task not in refused]
        self.attacks, self.honest = _by_task(cases, False), _by_task(cases, True)
        require(
            bool(self.attacks) or given.task == TASK,
            f"no attacks on {given.task or 'any task'} at {level}: choose another task or level",
        )
        self.into = Path(given.into)
        self.breaks = 0
        self.floors: dict[str, float] = {}

    def floor(self, case: Case) -> float:
        """What an empty program earns on the row of a case: a variant may be none, and some tests ask for nothing."""
        row = json.dumps(dict(case.row), sort_keys=True)
        if case.task == "code" and row not in self.floors:
            (paid,) = play([replace(case, completion="pass")], self.workers, self.level)
            self.floors[row] = paid.value if isinstance(paid, Reward) else 0.0
        return self.floors.get(row, 0.0)

    def run(self) -> None:
        """Chunks of variants for the given seconds."""
        until = time.monotonic() + self.given.seconds
        while time.monotonic() < until:
            self.chunk([self.next() for _ in range(CHUNK // 2 if self.given.task in SLOW else CHUNK)])
            total = sum(tally.tried for tally in self.tallies.values())
            doing(f"{self.level}: {total} attacks, {self.breaks} breaks")

    def next(self) -> Case:
        """A variant of an attack, or of an honest answer."""
        if self.rng.random() < self.machine_share:
            return machine_case(self.level, self.rng)
        pool = self.honest if self.rng.random() < HONEST_SHARE and self.honest else self.attacks
        names = sorted(pool)
        rest = (1 - sum(WEIGHTS.values())) / max(1, sum(name not in WEIGHTS for name in names))
        (name,) = self.rng.choices(names, [WEIGHTS.get(name, rest) for name in names])
        case = variant(self.rng.choice(pool[name]), self.rng)
        if case.least > 0:
            return case
        return replace(case, most=max(case.most, self.floor(case)), options={**case.options, **HASTE.get(name, {})})

    def chunk(self, cases: list[Case]) -> None:
        """Play the cases side by side; look for what broke."""
        for case, problem in zip(cases, self.problems(cases), strict=True):
            if problem:
                again = [self.problems([case], count=False)[0] for _ in range(2)]
                self.write(case, problem, [one or "held" for one in again])
        if escapes := self.outside.escapes():
            guilty = [case for case in cases if self.escapes_alone(case)]
            for case in guilty or cases:  # where none does it again, others on this machine may have
                self.write(case, f"escaped: {escapes[:5]}", ["alone too" if guilty else "no case of these alone"])

    def escapes_alone(self, case: Case) -> bool:
        """Whether a case by itself reaches something outside."""
        self.problems([case], count=False)
        return bool(self.outside.escapes())

    def problems(self, cases: list[Case], count: bool = True) -> list[str]:
        """Why each case broke; empty where it held."""
        told = [case for case in cases if case.task != TASK]
        played = iter(play([self.outside.told(case) for case in told], self.workers, self.level))
        with ThreadPoolExecutor(self.given.workers) as threads:
            machine = [case for case in cases if case.task == TASK]
            ended = threads.map(lambda case: play_machine(case, self.outside.open), machine)
            results = [next(ended) if case.task == TASK else next(played) for case in cases]
        if count:
            for case, result in zip(cases, results, strict=True):
                self.count(case, result)
        return [problem_of(case, result) for case, result in zip(cases, results, strict=True)]

    def count(self, case: Case, result: Reward | Failure) -> None:
        """Add what was seen of a case."""
        tally, right = self.tallies[case.task], not problem_of(case, result)
        if case.least > 0:
            tally.honest, tally.paid = tally.honest + 1, tally.paid + right
        else:
            tally.tried, tally.held = tally.tried + 1, tally.held + right
        tally.unscorable += isinstance(result, Failure)
        if isinstance(result, Reward):
            tally.ended += any(name.startswith("grader_") and value for name, value in result.parts.items())
            tally.slowest = max(tally.slowest, result.parts.get(SECONDS, 0.0))
            tally.most_memory = max(tally.most_memory, result.parts.get(MEMORY, 0.0))
            tally.seconds += result.parts.get(SECONDS, 0.0)

    def write(self, case: Case, problem: str, again: list[str]) -> None:
        """Say a break and keep it for a replay."""
        self.breaks += 1
        self.into.mkdir(parents=True, exist_ok=True)
        path = self.into / f"break-{self.level}-{self.given.seed}-{self.breaks:04}.json"
        kept = {**asdict(case), "level": self.level, "problem": problem, "again": again}
        path.write_text(json.dumps(kept, indent=1, default=str))
        print(f"{case.task}, {case.family}: {case.name}: {problem}; again: {again}: {path}", flush=True)

    def close(self) -> None:
        """End the workers and stop watching."""
        self.workers.close()
        self.outside.close()


def refusal(name: str) -> str:
    """Why a run of the task would not start here; empty if it would."""
    try:
        task_of(name).notes()
    except UserError as error:
        return str(error)
    return ""


def _by_task(cases: list[Case], honest: bool) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases:
        if (case.least > 0) == honest and (honest or case.most < 1):
            found.setdefault(case.task, []).append(case)
    return found


def problem_of(case: Case, result: Any) -> str:
    """Why a result is a break; empty if it is none."""
    if isinstance(result, Failure):
        return f"unscorable: {result.reason.strip().splitlines()[-1][:300]}"
    if result.value > case.most + 1e-9:
        return f"paid {result.value:g}, at most {case.most:g}"
    if result.value < case.least - 1e-9:
        return f"paid {result.value:g}, at least {case.least:g}"
    return ""


def report(trial: Trial, seconds: float) -> None:
    """The table of a level."""
    drop = trial.outside.start_mib - trial.outside.lowest_mib
    print(f"\n{trial.level}, {seconds:.0f} s; the machine's free memory fell by at most {drop:.0f} MiB\n")
    print("| task | attacks | held | honest | paid | unscorable | grader ended | slowest, s | mean, s | most MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, tally in sorted(trial.tallies.items()):
        mean = tally.seconds / max(1, tally.tried + tally.honest)
        counts = [getattr(tally, name) for name in COUNTS]
        print(
            f"| {name} | {' | '.join(map(str, counts))} | {tally.slowest:.1f} | {mean:.2f} | {tally.most_memory:.0f} |"
        )
    sums = [sum(getattr(tally, name) for tally in trial.tallies.values()) for name in COUNTS]
    print(f"| all | {' | '.join(map(str, sums))} | | | |\n\n{trial.breaks} breaks", flush=True)


def calls_before(path: str) -> int:
    """How many calls a file of sums counts."""
    return len(json.loads(Path(path).read_text())) if path and Path(path).exists() else 0


def add_up(trial: Trial, seconds: float, path: str) -> None:
    """Add what was seen to a file of sums, and say the sums."""
    kept = json.loads(Path(path).read_text()) if calls_before(path) else []
    tallies = {name: asdict(tally) for name, tally in trial.tallies.items()}
    kept.append({"level": trial.level, "seconds": seconds, "breaks": trial.breaks, "tallies": tallies})
    Path(path).write_text(json.dumps(kept, indent=1))
    for level in sorted({one["level"] for one in kept}):
        mine = [one for one in kept if one["level"] == level]
        sums = {name: sum(tally[name] for one in mine for tally in one["tallies"].values()) for name in COUNTS}
        rust = sum(one["tallies"].get("rust", {}).get("tried", 0) for one in mine)
        print(f"sum of {len(mine)} calls at {level}, {sum(one['seconds'] for one in mine):.0f} s: {sums}, rust {rust}")
    print(f"all attacks: {sum(tally['tried'] for one in kept for tally in one['tallies'].values())}", flush=True)


@contextlib.contextmanager
def place_outside() -> Iterator[Path]:
    """A folder that others may pass, and that is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="hostile-outside-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def replay(path: Path) -> int:
    """Play the case of a file; 1 if it still breaks."""
    kept = json.loads(path.read_text())
    level = kept.pop("level")
    case = Case(**{name: value for name, value in kept.items() if name not in ("problem", "again")})
    if case.task == TASK:
        with place_outside() as place:
            print(result := play_machine(case, place))
        return int(isinstance(result, Failure))
    with contextlib.closing(Workers(1, DEADLINE_S)) as workers:
        (result,) = play([case], workers, level)
    problem = problem_of(case, result)
    print(f"{case.task}, {case.family}: {case.name}: {problem or 'held'} ({result})")
    return 1 if problem else 0


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Score variants of hostile completions and report what broke.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each level (default 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the variants")
    parser.add_argument("--task", default="", help="begin of the tasks' names; empty: all")
    parser.add_argument("--level", default="", help="of the sandbox; empty: the strongest; all: each of this machine")
    parser.add_argument("--workers", type=int, default=2, help="reward workers (default 2)")
    parser.add_argument("--into", default=str(ROOT / "runs" / "hostile"), help="folder of the breaks")
    parser.add_argument("--sum", default="", help="file in which the counts of several calls are added up")
    parser.add_argument("--replay", default="", help="file of a break to play again")
    return parser.parse_args()


def main() -> int:
    """A process for each level asked for; 1 if anything broke."""
    given = parsed()
    if given.replay:
        return replay(Path(given.replay))
    if given.level == "all":
        levels = [name for name in calls.LEVELS if not calls._unavailable(name)]
        return max(subprocess.run([sys.executable, *sys.argv, "--level", name]).returncode for name in levels)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    level, started = given.level or calls.level(), time.monotonic()
    calls.level = lambda: level
    with place_outside() as place, contextlib.closing(Trial(given, level, place)) as trial:
        trial.run()
        report(trial, time.monotonic() - started)
        if given.sum:
            add_up(trial, time.monotonic() - started, given.sum)
    return 1 if trial.breaks else 0


if __name__ == "__main__":
    sys.exit(main())
