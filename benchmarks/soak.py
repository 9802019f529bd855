"""Kill runs at random instants, continue them, and compare their end with that of a run that was never killed.

    python benchmarks/soak.py                                 every scenario, 200 kills
    python benchmarks/soak.py --kills 12 --minutes 5 --scenarios single sft

Each scenario runs once without a kill. Then trials follow: the same command, killed with SIGKILL (the process and all
that it started) at a random instant and continued, again and again, until it ends by itself. Its end must equal the
first run's bit for bit: the hash of the weights, every metric that is not a time, every rollout. The exit status is 1
if anything differs.
"""

import argparse
import contextlib
import gzip
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import ROOT, doing

MOST_KILLS_OF_A_TRIAL = 6
NOT_COMPARED = ("time/", "speed/", "memory/", "system/")
PATIENCE_S = 600.0
"""Longest time that one process may take to end by itself."""

SMALL = "--threads 1 --device cpu --eval-examples 8 --eval-samples 1"
BASE = "--base-steps 60 --base-hidden-size 64 --base-heads 2 "
HANOI = "--task hanoi --hanoi.min-disks 2 --hanoi.max-disks 2 --hanoi.peg-names 4 --max-tokens 32"
TRAINED = "--steps 8 --eval-every 3 --save-every 1 --keep-checkpoints 2 --rollouts-every 2"
PROMPTS = "--prompts-per-step 8 --group-size 8"
GAME = "--task tictactoe --algorithm rloo --max-tokens 12 --kl-coef 0.01 --minibatches-per-pass 2"
ROUNDS = """--rounds 4 --examples-per-round 8 --sample-batch-size 4 --samples-per-example 8 --batch-size 8
    --epochs-per-round 2"""
LAUNCH = "-m torch.distributed.run --standalone --nproc-per-node 2"


@dataclass(frozen=True)
class Scenario:
    """A program that makes runs: `command` is what stands between `python` and the flags."""

    name: str
    command: str
    flags: str

    def start(self, place: Path) -> list[str]:
        """The command of a run in a folder."""
        return [*self.command.split(), *self.flags.split(), *_folders(place)]

    def resume(self, place: Path) -> list[str]:
        """The command that continues the folder's run, if it has begun."""
        begun = list((place / "runs").glob("*/config.json"))
        if not begun:
            return self.start(place)
        return [*self.command.split(), "--resume", str(begun[0].parent), *_folders(place)]


@dataclass
class Tally:
    """A scenario's run without a kill, and what its trials came to."""

    whole_s: float
    expected: dict[str, Any]
    kills: int = 0
    trials: int = 0
    problems: list[str] = field(default_factory=list)


def all_scenarios(rows: Path) -> list[Scenario]:
    """Every kind of program that trains for hours."""
    hanoi = f"{HANOI} {BASE} {SMALL}"
    return [
        Scenario("single", "train.py", f"{hanoi} {TRAINED} {PROMPTS}"),
        Scenario("two_processes", f"{LAUNCH} train.py", f"{hanoi} {TRAINED} {PROMPTS}"),
        Scenario("sft", "-m minrl sft", f"{hanoi} {TRAINED} --batch-size 4 --data {rows}"),
        Scenario("expert_iteration", "-m minrl expert-iteration", f"{hanoi} {ROUNDS} --keep-checkpoints 2"),
        Scenario("self_play", "train.py", f"{GAME} {BASE} {SMALL} {TRAINED} {PROMPTS}"),
    ]


def _folders(place: Path) -> list[str]:
    return ["--runs-dir", str(place / "runs"), "--checkpoints-dir", str(place / "checkpoints")]


def run_outcome(place: Path) -> dict[str, Any]:
    """What must be equal at the end of a run, by name."""
    (folder,) = (path.parent for path in (place / "runs").glob("*/config.json"))
    summary = json.loads((folder / "summary.json").read_text())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    compared = [{k: v for k, v in line.items() if not k.startswith(NOT_COMPARED)} for line in metrics]
    rollouts = {path.name: gzip.decompress(path.read_bytes()) for path in (folder / "rollouts").glob("*.gz")}
    samples = {path.name: path.read_bytes() for path in (folder / "samples").glob("*.jsonl")}
    kept = sorted(path.name for path in (place / "checkpoints" / folder.name).iterdir())
    evaluations = {name: summary.get(name) for name in ("eval_before", "eval_after")}
    return {
        "weights": summary["weights_sha256"],
        "evaluations": evaluations,
        "metrics": compared,
        "rollouts": rollouts,
        "samples": samples,
        "checkpoints": kept,
    }


class Soak:
    """The trials of all scenarios, in turn."""

    def __init__(self, place: Path, kills: int, minutes: float, seed: int) -> None:
        self.place, self.kills = place, kills
        self.until, self.rng = time.monotonic() + 60 * minutes, random.Random(seed)
        self.tallies: dict[str, Tally] = {}

    def run(self, scenarios: Sequence[Scenario]) -> None:
        """Each scenario once without a kill, then trials in turn until there were enough kills or time is up."""
        for scenario in scenarios:
            self.tallies[scenario.name] = self._whole(scenario)
        for number, scenario in enumerate(itertools.cycle(scenarios)):
            total = sum(tally.kills for tally in self.tallies.values())
            if total >= self.kills or time.monotonic() > self.until:
                return
            doing(f"{scenario.name}, after {total} kills")
            self._trial(scenario, self.tallies[scenario.name], number)

    def _whole(self, scenario: Scenario) -> Tally:
        """A run that nobody kills."""
        doing(f"{scenario.name}: a run that nobody kills")
        place = self.place / scenario.name / "whole"
        place.mkdir(parents=True)
        started = time.monotonic()
        if _launch(scenario.start(place), place).wait() != 0:
            sys.exit(f"{scenario.name} does not run:\n{(place / 'output').read_text()[-2000:]}")
        return Tally(time.monotonic() - started, run_outcome(place))

    def _trial(self, scenario: Scenario, tally: Tally, number: int) -> None:
        """One run that is killed up to a few times, and whose end is compared."""
        place = Path(tempfile.mkdtemp(dir=self.place / scenario.name, prefix="trial-"))
        if number // len(self.tallies) % 4:  # every fourth trial makes the base model itself, and may be killed then
            for base in (self.place / scenario.name / "whole").glob("checkpoints/base-*"):
                shutil.copytree(base, place / "checkpoints" / base.name)
        kills = 0
        while True:
            is_last = kills >= MOST_KILLS_OF_A_TRIAL
            instant = PATIENCE_S if is_last else self.rng.uniform(0, tally.whole_s)
            process = _launch(scenario.resume(place) if kills else scenario.start(place), place)
            try:
                process.wait(timeout=instant)
                break
            except subprocess.TimeoutExpired:
                _kill_all(process)
                kills += 1
        tally.kills, tally.trials = tally.kills + kills, tally.trials + 1
        if problem := _problem(place, process, tally.expected):
            tally.problems.append(f"{place} after {kills} kills: {problem}")
        else:
            shutil.rmtree(place)


def _problem(place: Path, process: subprocess.Popen, expected: dict[str, Any]) -> str | None:
    """How the end differs from the one expected, or None."""
    if process.returncode != 0:
        return f"exit status {process.returncode}: {(place / 'output').read_text()[-600:]}"
    try:
        found = run_outcome(place)
    except (OSError, ValueError, KeyError) as error:
        return f"no readable end: {error!r}"
    differing = [name for name in expected if found[name] != expected[name]]
    return f"other {' and '.join(differing)}" if differing else None


def _launch(command: Sequence[str], place: Path) -> subprocess.Popen:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (place / "output").open("a") as output:
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=output)


def _kill_all(process: subprocess.Popen) -> None:
    """SIGKILL to the process and to all that descend from it, none of which is asked."""
    doomed = [process.pid]
    for pid in doomed:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)  # one that is stopped starts no further process
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                doomed += [int(child) for child in children.read_text().split()]
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(map(_alive, doomed[1:])):
        time.sleep(0.01)  # those whose parent is gone too are reaped by the system


def _alive(pid: int) -> bool:
    """Whether a process computes or may write still; one that nobody reaped does neither."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def make_rows(path: Path) -> None:
    """Demonstrations of Hanoi to fine-tune on."""
    from minrl.tasks import load_task
    from minrl.tasks.hanoi import HanoiOptions

    task, rng = load_task("hanoi", {"hanoi": HanoiOptions(min_disks=2, max_disks=2, peg_names=4)}), random.Random(0)
    assert task.demonstrations is not None
    rows = [{"prompt": one.prompt, "response": task.demonstrations(one, rng)} for one in task.dataset.train[:40]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> int:
    """Run the trials and print a line for each scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many in all (default 200)")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--scenarios", nargs="+", default=[], help="names; without any, all")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    make_rows(place / "rows.jsonl")
    scenarios = all_scenarios(place / "rows.jsonl")
    soak = Soak(place, given.kills, given.minutes, given.seed)
    soak.run([one for one in scenarios if not given.scenarios or one.name in given.scenarios])
    print("| what | alone, s | trials | kills | other ends |\n|---|---|---|---|---|")
    for name, tally in soak.tallies.items():
        print(f"| {name} | {tally.whole_s:.1f} | {tally.trials} | {tally.kills} | {len(tally.problems)} |")
    problems = [problem for tally in soak.tallies.values() for problem in tally.problems]
    print("\n".join(problems) or "every end is that of the run that was never killed")
    if not problems:
        shutil.rmtree(place)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
