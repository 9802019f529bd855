"""Kill runs at random instants, continue them, and compare their end with that of a run that was never killed.

    python benchmarks/soak.py                                 every scenario, 200 kills
    python benchmarks/soak.py --kills 12 --minutes 5 --scenarios single sft

Each scenario runs once without a kill. Then trials follow: the same command, killed with SIGKILL (the process and all
that it started) at a random instant and continued, again and again, until it ends by itself. Its end must equal the
first run's bit for bit: the hashes of weights and moments, every metric that is not a time, every rollout. The exit
status is 1 if anything differs.
"""

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from harness import ROOT, doing

from tests.runs import Run, write_rows

MOST_KILLS_OF_A_TRIAL = 6
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
ALONE = "-m minrl"
LAUNCH = "-m torch.distributed.run --standalone --nproc-per-node 2 -m minrl"


def all_scenarios(rows: Path) -> dict[str, tuple[str, str, str]]:
    """Every kind of program that trains for hours, by name: its launcher, the program, and its flags."""
    hanoi = f"{HANOI} {BASE} {SMALL}"
    return {
        "single": (ALONE, "train", f"{hanoi} {TRAINED} {PROMPTS}"),
        "two_processes": (LAUNCH, "train", f"{hanoi} {TRAINED} {PROMPTS}"),
        "sft": (ALONE, "sft", f"{hanoi} {TRAINED} --batch-size 4 --data {rows}"),
        "expert_iteration": (ALONE, "expert-iteration", f"{hanoi} {ROUNDS} --keep-checkpoints 2"),
        "self_play": (ALONE, "train", f"{GAME} {BASE} {SMALL} {TRAINED} {PROMPTS}"),
    }


@dataclass
class Tally:
    """A scenario's run without a kill, and what its trials came to."""

    launcher: str
    whole: Run
    whole_s: float
    kills: int = 0
    trials: int = 0
    problems: list[str] = field(default_factory=list)


def whole(place: Path, name: str, launcher: str, program: str, flags: str) -> Tally:
    """A run that nobody kills."""
    doing(f"{name}: a run that nobody kills")
    place.mkdir(parents=True)
    run, started = Run(place, flags.split(), program), time.monotonic()
    if _launch(launcher, run).wait() != 0:
        sys.exit(f"{name} does not run:\n{(place / 'output').read_text()[-2000:]}")
    return Tally(launcher, run, time.monotonic() - started)


def trial(folder: Path, tally: Tally, rng: random.Random) -> None:
    """One run that is killed up to a few times, and whose end is compared."""
    place, kills = Path(tempfile.mkdtemp(dir=folder, prefix="trial-")), 0
    run = Run(place, tally.whole.flags, tally.whole.program)
    if rng.random() < 0.75:  # otherwise it makes the base model itself, and may be killed then
        run.given_base_of(tally.whole)
    while True:
        begun = (run.folder / "config.json").exists()
        process = _launch(tally.launcher, run, *(["--resume", run.folder] if begun else []))
        instant = PATIENCE_S if kills >= MOST_KILLS_OF_A_TRIAL else rng.uniform(0, tally.whole_s)
        try:
            process.wait(timeout=instant)
            break
        except subprocess.TimeoutExpired:
            _kill_all(process)
            kills += 1
    tally.kills, tally.trials = tally.kills + kills, tally.trials + 1
    if problem := _problem(run, process, tally.whole):
        tally.problems.append(f"{place} after {kills} kills: {problem}")
    else:
        shutil.rmtree(place)


def _problem(run: Run, process: subprocess.Popen, whole: Run) -> str | None:
    """How the end differs from that of the run that nobody killed, or None."""
    if process.returncode != 0:
        return f"exit status {process.returncode}: {(run.place / 'output').read_text()[-600:]}"
    found, expected = run.end(), whole.end()
    differing = [name for name in expected if found[name] != expected[name]]
    return f"other {' and '.join(differing)}" if differing else None


def _launch(launcher: str, run: Run, *more: object) -> subprocess.Popen:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launcher.split(), *run.words(*more)]
    with (run.place / "output").open("a") as output:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)


def _kill_all(process: subprocess.Popen) -> None:
    """SIGKILL to the process and to all that it started, stopped first: one that is stopped starts no further one."""
    process.send_signal(signal.SIGSTOP)
    started = psutil.Process(process.pid).children(recursive=True)
    for one in (process, *started):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    psutil.wait_procs(started, timeout=30)


def make_rows(path: Path) -> None:
    """Demonstrations of Hanoi to fine-tune on."""
    from minrl.tasks import load_task
    from minrl.tasks.hanoi import HanoiOptions

    task, rng = load_task("hanoi", {"hanoi": HanoiOptions(min_disks=2, max_disks=2, peg_names=4)}), random.Random(0)
    assert task.demonstrations is not None
    rows = [{"prompt": one.prompt, "response": task.demonstrations(one, rng)} for one in task.dataset.train[:40]]
    write_rows(path, *rows)


def main() -> int:
    """Run the trials and print a line for each scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many in all (default 200)")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--scenarios", nargs="+", default=[], help="names; without any, all")
    given = parser.parse_args()
    place, rng, until = Path(tempfile.mkdtemp(prefix="soak-")), random.Random(given.seed), time.monotonic()
    until += 60 * given.minutes
    make_rows(place / "rows.jsonl")
    scenarios = all_scenarios(place / "rows.jsonl")
    names = given.scenarios or list(scenarios)
    tallies = {name: whole(place / name / "whole", name, *scenarios[name]) for name in names}
    for name in itertools.cycle(names):
        total = sum(tally.kills for tally in tallies.values())
        if total >= given.kills or time.monotonic() > until:
            break
        doing(f"{name}, after {total} kills")
        trial(place / name, tallies[name], rng)
    print("| what | alone, s | trials | kills | other ends |\n|---|---|---|---|---|")
    for name, tally in tallies.items():
        print(f"| {name} | {tally.whole_s:.1f} | {tally.trials} | {tally.kills} | {len(tally.problems)} |")
    problems = [problem for tally in tallies.values() for problem in tally.problems]
    print("\n".join(problems) or "every end is that of the run that was never killed")
    if not problems:
        shutil.rmtree(place)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
