"""Kill runs at random instants, continue them, and compare their end with that of a run that was never killed.

    python benchmarks/soak.py                                 every scenario, 200 kills, 20 damaged checkpoints
    python benchmarks/soak.py --kills 12 --minutes 5 --scenarios single sft

Each scenario runs once without a kill. Then trials follow: the same command, killed with SIGKILL (the process and all
that it started) at a random instant between the first file that it writes and the end, and continued, again and again,
until it ends by itself. Its end must equal the first run's bit for bit: the hash of the weights, every metric that is
not a time, every rollout, every completion. Then the newest checkpoint of a run is damaged in 20 ways; each damage must
be recognised, and the checkpoint before it found. The exit status is 1 where anything differs.
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
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import ROOT, doing

MOST_KILLS_OF_A_TRIAL = 6
NOT_COMPARED = ("time/", "speed/", "memory/", "system/")
PATIENCE_S = 600.0
"""Longest time that one process may take to end by itself."""

SMALL = "--threads 1 --device cpu --eval-examples 8 --eval-samples 1"
BASE = "--base-steps 60 --base-hidden-size 64 --base-heads 2 --base-batch-size 16"
HANOI = "--task hanoi --hanoi.min-disks 2 --hanoi.max-disks 2 --hanoi.peg-names 4 --max-tokens 32"
TRAINED = "--steps 8 --eval-every 3 --save-every 1 --keep-checkpoints 2 --rollouts-every 2"
PROMPTS = "--prompts-per-step 8 --group-size 8"
GAME = "--task tictactoe --algorithm rloo --max-tokens 12 --kl-coef 0.01 --minibatches-per-pass 2"
ROUNDS = """--rounds 4 --examples-per-round 8 --sample-batch-size 4 --samples-per-example 8 --batch-size 8
    --epochs-per-round 2"""
LAUNCH = "-m torch.distributed.run --standalone --nproc-per-node 2"


@dataclass(frozen=True)
class Scenario:
    """A command that is killed: how it starts in a folder, how it goes on there, and what its end is compared by."""

    name: str
    start: Callable[[Path], Sequence[str]]
    resume: Callable[[Path], Sequence[str]]
    outcome: Callable[[Path], dict[str, Any]]


@dataclass
class Tally:
    """What the trials of a scenario came to."""

    whole_s: float = 0.0
    kills: int = 0
    trials: int = 0
    problems: list[str] = field(default_factory=list)


def program(name: str, command: str, flags: str) -> Scenario:
    """A program that makes runs: `command` is what stands between `python` and the flags."""

    def start(place: Path) -> list[str]:
        return [*command.split(), *flags.split(), *_folders(place)]

    def resume(place: Path) -> list[str]:
        begun = list((place / "runs").glob("*/config.json"))
        return [*command.split(), "--resume", str(begun[0].parent), *_folders(place)] if begun else start(place)

    return Scenario(name, start, resume, run_outcome)


def all_scenarios(rows: Path, model: Path) -> list[Scenario]:
    """Every kind of program that is left alone for hours."""
    hanoi = f"{HANOI} {BASE} {SMALL}"
    evaluation = f"""evaluate.py --models {model} --tasks hanoi --hanoi.min-disks 2 --hanoi.max-disks 3
        --hanoi.peg-names 4 --max-tokens 32 --samples 8 --batch-size 16 --threads 1 --device cpu --no-charts"""
    again: Callable[[Path], Sequence[str]] = lambda place: [*evaluation.split(), "--output", str(place / "evaluation")]  # noqa: E731
    return [
        program("single", "train.py", f"{hanoi} {TRAINED} {PROMPTS}"),
        program("two_processes", f"{LAUNCH} train.py", f"{hanoi} {TRAINED} {PROMPTS}"),
        program("sft", "-m minrl sft", f"{hanoi} {TRAINED} --batch-size 4 --data {rows}"),
        program("expert_iteration", "-m minrl expert-iteration", f"{hanoi} {ROUNDS} --keep-checkpoints 2"),
        program("self_play", "train.py", f"{GAME} {BASE} {SMALL} {TRAINED} {PROMPTS}"),
        Scenario("evaluation", again, again, evaluation_outcome),
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


def evaluation_outcome(place: Path) -> dict[str, Any]:
    """What must be equal at the end of an evaluation: every completion, once, and every figure."""
    folder = place / "evaluation"
    summary = json.loads((folder / "summary.json").read_text())
    completions = sorted((folder / "completions.jsonl").read_text().splitlines())
    return {"completions": completions, "results": summary["results"]}


class Soak:
    """The trials of all scenarios, a few at a time."""

    def __init__(self, place: Path, kills: int, minutes: float, seed: int, jobs: int) -> None:
        self.place, self.kills, self.jobs = place, kills, jobs
        self.started, self.rng = time.monotonic(), random.Random(seed)
        self.until = self.started + 60 * minutes
        self.tallies: dict[str, Tally] = {}
        self._turn = itertools.count()
        self.lock = threading.Lock()

    def run(self, scenarios: Sequence[Scenario]) -> None:
        """Each scenario once without a kill, then trials in turn until there were enough kills or time is up."""
        with ThreadPoolExecutor(self.jobs) as pool:
            wholes = list(pool.map(self._whole, scenarios))
            instants = {scenario.name: begun for scenario, (_, begun) in zip(scenarios, wholes, strict=True)}
            expected = {scenario.name: outcome for scenario, (outcome, _) in zip(scenarios, wholes, strict=True)}

            def trials() -> None:
                for number in itertools.count():
                    scenario = scenarios[self._next() % len(scenarios)]
                    if self._enough():
                        return
                    self._trial(scenario, instants[scenario.name], expected[scenario.name], number)

            for done in [pool.submit(trials) for _ in range(self.jobs)]:
                done.result()

    def _next(self) -> int:
        with self.lock:
            return next(self._turn)

    def _enough(self) -> bool:
        with self.lock:
            return sum(t.kills for t in self.tallies.values()) >= self.kills or time.monotonic() > self.until

    def _whole(self, scenario: Scenario) -> tuple[dict[str, Any], float]:
        """The end of a run that nobody kills, and the seconds until it wrote its first file."""
        doing(f"{scenario.name}: a run that nobody kills")
        place = self.place / scenario.name / "whole"
        place.mkdir(parents=True)
        started, begun = time.monotonic(), 0.0
        process = self._launch(scenario.start(place), place)
        while process.poll() is None:
            if not begun and _files(place):
                begun = time.monotonic() - started
            time.sleep(0.01)
        if process.returncode != 0:
            raise SystemExit(f"{scenario.name} does not run:\n{(place / 'output').read_text()[-2000:]}")
        self.tallies[scenario.name] = Tally(whole_s=time.monotonic() - started)
        print(
            f"{scenario.name}: {self.tallies[scenario.name].whole_s:.1f} s, first file after {begun:.1f} s", flush=True
        )
        return scenario.outcome(place), begun

    def _trial(self, scenario: Scenario, begun: float, expected: dict[str, Any], number: int) -> None:
        """One run that is killed up to a few times, and whose end is compared."""
        tally = self.tallies[scenario.name]
        place = Path(tempfile.mkdtemp(dir=self.place / scenario.name, prefix="trial-"))
        if number % 4:  # every fourth trial makes the base model itself, and may be killed while it does
            for base in (self.place / scenario.name / "whole").glob("checkpoints/base-*"):
                shutil.copytree(base, place / "checkpoints" / base.name)
        kills = 0
        while True:
            with self.lock:
                instant = self.rng.uniform(begun, tally.whole_s) if kills < MOST_KILLS_OF_A_TRIAL else PATIENCE_S
            doing(f"{self.jobs} at a time; {scenario.name} began last, after {kills} kills of this trial")
            process = self._launch(scenario.resume(place) if kills else scenario.start(place), place)
            if not _ended_before(process, instant):
                _kill_all(process)
                kills += 1
                continue
            break
        with self.lock:
            tally.kills, tally.trials = tally.kills + kills, tally.trials + 1
            total = sum(one.kills for one in self.tallies.values())
        problem = self._problem(scenario, place, process, expected)
        if problem:
            tally.problems.append(f"{place} after {kills} kills: {problem}")
        else:
            shutil.rmtree(place)
        print(f"{total} kills; {scenario.name}: {kills} kills, {problem or 'the same end'}", flush=True)

    def _problem(
        self, scenario: Scenario, place: Path, process: subprocess.Popen, expected: dict[str, Any]
    ) -> str | None:
        """How the end differs from the one expected, or None."""
        if process.returncode != 0:
            return f"exit status {process.returncode}: {(place / 'output').read_text()[-600:]}"
        try:
            found = scenario.outcome(place)
        except (OSError, ValueError, KeyError) as error:
            return f"no readable end: {error!r}"
        differing = [name for name in expected if found[name] != expected[name]]
        return f"other {' and '.join(differing)}" if differing else None

    def _launch(self, command: Sequence[str], place: Path) -> subprocess.Popen:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (place / "output").open("a") as output:
            return subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=output, text=True
            )


def _files(place: Path) -> bool:
    """Whether a program has written anything into the trial's folder."""
    return any(path.name != "output" for path in place.iterdir())


def _ended_before(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


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


def cut(share: float) -> Callable[[Path], None]:
    """Leave the first share of a file."""
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def flip(share: float) -> Callable[[Path], None]:
    """Turn one bit over at a place in the file."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(share * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return damage


def longer(path: Path) -> None:
    """A byte too many."""
    with path.open("ab") as file:
        file.write(b"\n")


def holding(text: str) -> Callable[[Path], None]:
    """Other JSON in the file."""
    return lambda path: path.write_text(text) and None


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    ("model.safetensors", cut(0.5)),
    ("model.safetensors", cut(0.0)),
    ("model.safetensors", longer),
    ("model.safetensors", Path.unlink),
    ("optimizer.safetensors", cut(0.9)),
    ("optimizer.safetensors", flip(0.0)),
    ("trainer.json", cut(0.5)),
    ("trainer.json", Path.unlink),
    ("trainer.json", holding("{}")),
    ("trainer.json", holding("[]")),
]


def unrecognised(checkpoints: Path) -> list[str]:
    """Which damages of the newest checkpoint in the folder go unnoticed or hide the one before it."""
    from minrl.run.checkpoint import damage, newest_complete

    problems = []
    for name, spoil in DAMAGES:
        with tempfile.TemporaryDirectory() as place:
            copy = Path(shutil.copytree(checkpoints, Path(place) / "run"))
            before, newest = sorted(copy.glob("step_*"))[-2:]
            spoil(newest / name)
            if damage(newest) is None or newest_complete(copy) != before:
                problems.append(f"{getattr(spoil, '__name__', spoil)} {name}")
    return problems


def make_rows(path: Path) -> None:
    """Demonstrations of Hanoi to fine-tune on."""
    from minrl.tasks import load_task
    from minrl.tasks.hanoi import HanoiOptions

    task, rng = load_task("hanoi", {"hanoi": HanoiOptions(min_disks=2, max_disks=2, peg_names=4)}), random.Random(0)
    assert task.demonstrations is not None
    rows = [{"prompt": one.prompt, "response": task.demonstrations(one, rng)} for one in task.dataset.train[:40]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_model(path: Path) -> None:
    """A model to evaluate: random weights, the words of Hanoi."""
    from minrl.config import ModelConfig
    from minrl.models.distributed import Processes
    from minrl.models.loading import small_qwen3, word_tokenizer
    from minrl.policy import as_policy
    from minrl.run.checkpoint import save_policy
    from minrl.tasks import load_task

    config, tokenizer = ModelConfig(device="cpu", threads=1), word_tokenizer(load_task("hanoi").vocabulary)
    save_policy(as_policy(small_qwen3(tokenizer, 64, 2, 2, 0), tokenizer, config, Processes(config)), path)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill runs at random instants and compare their ends.")
    parser.add_argument("--kills", type=int, default=200, help="how many in all (default 200)")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit (default 60)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trials at the same time")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--scenarios", nargs="+", default=[], help="names; all where none is given")
    return parser.parse_args()


def report(soak: Soak) -> list[str]:
    """The table of the trials; all problems."""
    print("\n| what | alone, s | trials | kills | other ends |\n|---|---|---|---|---|")
    for name, tally in soak.tallies.items():
        print(f"| {name} | {tally.whole_s:.1f} | {tally.trials} | {tally.kills} | {len(tally.problems)} |")
    total = sum(tally.kills for tally in soak.tallies.values())
    print(f"| all | {time.monotonic() - soak.started:.0f} | | {total} | |")
    return [problem for tally in soak.tallies.values() for problem in tally.problems]


def main() -> int:
    """Run the soak and print a line for each scenario."""
    given = parsed()
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    rows, model = place / "rows.jsonl", place / "model"
    make_rows(rows)
    make_model(model)
    scenarios = [one for one in all_scenarios(rows, model) if not given.scenarios or one.name in given.scenarios]
    soak = Soak(place, given.kills, given.minutes, given.seed, given.jobs)
    soak.run(scenarios)
    problems = report(soak)
    made = [path for path in place.glob("*/whole/checkpoints/*") if len(list(path.glob("step_*"))) > 1]
    if made:
        doing("damaging checkpoints")
        missed = unrecognised(made[0])
        print(f"{len(DAMAGES) - len(missed)} of {len(DAMAGES)} damages of a checkpoint were recognised")
        problems += [f"a damage that nobody noticed: {one}" for one in missed]
    print("\n".join(problems) or "every end is that of the run that was never killed")
    if not problems:
        shutil.rmtree(place)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
