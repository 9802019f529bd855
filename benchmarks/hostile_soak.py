"""Train on `code` and `rust` with hostile completions mixed in, and see that nothing on the machine grows.

    python benchmarks/hostile_soak.py --seconds 7200

A run of train.py with its own workers and sandbox, whose policy says an attack in 20 % and a right answer in 30 % of
its completions. Before each sampling, when no program runs, it counts: memory, descriptors, processes, files. The
table has the medians at the start, after a quarter, after half and at the end; what grew more than it may, fails.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import ROOT, doing

from tests.hostile.cases import Case

HOSTILE, HONEST = 0.2, 0.3
"""Shares of the completions."""

ROWS = 32
"""Copies of the problems under other names, of which a part is held out."""

MULTIPLE = 512
"""Tokens to whose multiples the given completions are filled: torch keeps memory for each new length of a stream."""

MAY_GROW = {
    "main process, MiB": (1.05, 32.0),
    "largest worker, MiB": (1.05, 16.0),
    "MiB in the temporary folder": (1.05, 8.0),
    "descriptors of the main process": (1.0, 2.0),
    "most descriptors of a worker": (1.0, 2.0),
    "threads of the main process": (1.0, 1.0),
    "files in the temporary folder": (1.0, 40.0),
}
"""What the end may have: a factor of the start, and so much more. Everything else: no more than the start."""

WARM, WARM_COUNTS = 0.1, 8
"""Share of the time, and counts, until the workers, caches and allocators have what they need."""


class Run:
    """One run of train.py in this process, and what was counted meanwhile."""

    def __init__(self, task: str, seconds: float, place: Path, seed: int) -> None:
        from tests.hostile.playing import all_cases, key_of

        self.task, self.place, self.seed = task, place, seed
        self.temporary = place / "temporary"
        self.temporary.mkdir()
        self.temporary.chmod(0o755)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.temporary)
        cases = [case for case in all_cases() if case.task == task and not case.options.get("mode")]
        self.by_key: dict[str, list[Case]] = {}
        for case in cases:
            self.by_key.setdefault(key_of(case.row), []).append(case)
        self.counted: list[dict[str, float]] = []
        self.said = {"hostile": 0, "honest": 0}
        self.stopping = False
        self.started, self.seconds = time.monotonic(), seconds
        doing(f"{task}: {len(cases)} cases of {len(self.by_key)} problems")

    def says(self, prompt: str, rng: random.Random) -> str | None:
        """An attack, a right answer, or nothing."""
        chosen, of_prompt = rng.random(), [cases for key, cases in self.by_key.items() if key in prompt]
        kind = "hostile" if chosen < HOSTILE else "honest"
        wanted = [case for cases in of_prompt for case in cases if (case.least > 0) == (kind == "honest")]
        if chosen >= HOSTILE + HONEST or not wanted:
            return None
        self.said[kind] += 1
        return rng.choice(wanted).completion

    def before(self) -> None:
        """Count; after its time ask the run to stop, as a user would."""
        from minrl.sandbox.calls import Call, _message
        from tests.hostile.census import census

        elapsed = time.monotonic() - self.started
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps is no growth
        if not self.counted or elapsed - self.counted[-1]["seconds"] > 1:
            slots = str(_message(Call([]), "")["folder"])
            self.counted.append({"seconds": elapsed, **census(self.temporary, slots)})
        doing(f"{self.task}: {len(self.counted)} counts, {self.said}")
        if elapsed > self.seconds and not self.stopping:  # a second signal would stop at once
            self.stopping = True
            signal.raise_signal(signal.SIGTERM)

    def train(self) -> dict[str, Any]:
        """The run; what was counted, and the metrics of its rewards."""
        from minrl.__main__ import main as run_program
        from tests.hostile.forced import save_reader, saying
        from tests.hostile.playing import write_rows

        cases = [case for cases in self.by_key.values() for case in cases]
        save_reader(self.place / "model", [case.completion for case in cases])
        options = write_rows(self.place / "rows.jsonl", cases, ROWS)
        flags = f"""--task {self.task} --data-path {self.place}/rows.jsonl --model-id {self.place}/model
            --runs-dir {self.place}/runs --checkpoints-dir {self.place}/checkpoints --device cpu --threads 1 --quiet
            --steps 1000000 --prompts-per-step 4 --group-size 8 --max-tokens 24 --learning-rate 1e-4 --no-preflight
            --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 2 --save-every 20 --rollouts-every 10
            --keep-checkpoints 2 --seed {self.seed} --max-unscorable-frac 1.0"""
        for name, value in options.items():
            flags += f" --{self.task}.{name.replace('_', '-')} {value}"
        with saying(self.says, self.before, MULTIPLE):
            status = run_program(["train", *flags.split()])
        (run,) = (self.place / "runs").glob("*")
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {"status": status, "said": self.said, "counted": self.counted, "metrics": metrics}


def table(counted: list[dict[str, float]]) -> tuple[list[str], list[str]]:
    """The lines of the table, and what grew more than it may."""
    end = counted[-1]["seconds"]
    warm = [one for one in counted[WARM_COUNTS:] if one["seconds"] >= WARM * end] or counted
    tenth = max(1, len(warm) // 10)
    places = [0, (len(warm) - tenth) // 4, (len(warm) - tenth) // 2, len(warm) - tenth]
    lines, problems = ["| what | start | a quarter | half | end |", "|---|---|---|---|---|"], []
    for name in [name for name in warm[0] if name != "seconds"]:
        values = [statistics.median(one[name] for one in warm[place : place + tenth]) for place in places]
        lines.append(f"| {name} | {' | '.join(f'{value:.0f}' for value in values)} |")
        factor, more = MAY_GROW.get(name, (1.0, 0.0))
        if values[-1] > factor * values[0] + more:
            problems.append(f"{name} grew from {values[0]:.0f} to {values[-1]:.0f}")
    return lines, problems


def report(task: str, result: dict[str, Any]) -> list[str]:
    """Print what a run did; all problems."""
    metrics = result["metrics"]
    unscorable = [line.get("reward/unscorable_frac", 0.0) for line in metrics]
    lines, problems = table(result["counted"])
    said = ", ".join(f"{count} {kind}" for kind, count in result["said"].items())
    print(f"\n{task}: {len(metrics)} steps, {result['counted'][-1]['seconds']:.0f} s, {said} completions\n")
    print("\n".join(lines), flush=True)
    if any(unscorable):
        problems.append(f"unscorable rollouts in {sum(share > 0 for share in unscorable)} of {len(metrics)} steps")
    if result["status"] not in (0, 128 + signal.SIGTERM):
        problems.append(f"the run ended with {result['status']}")
    return [f"{task}: {problem}" for problem in problems]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train with hostile completions mixed in; nothing may grow.")
    parser.add_argument("--seconds", type=float, default=7200.0, help="of all runs together (default 7200)")
    parser.add_argument("--tasks", nargs="+", default=["code", "rust"], help="one run each (default code rust)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", default="", help=argparse.SUPPRESS)  # a run of its own process
    return parser.parse_args()


def main() -> int:
    """A process for each task, one after the other."""
    given = parsed()
    if given.into:
        place = Path(given.into)
        result = Run(given.tasks[0], given.seconds, place, given.seed).train()
        (place / "result.json").write_text(json.dumps(result))
        return 0
    problems = []
    for task in given.tasks:
        with tempfile.TemporaryDirectory(prefix="hostile-soak-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)
            seconds = given.seconds / len(given.tasks)
            command = [sys.executable, __file__, "--tasks", task, "--into", folder, "--seconds", str(seconds)]
            ran = subprocess.run([*command, "--seed", str(given.seed)], cwd=ROOT)
            if not (Path(folder) / "result.json").exists():
                problems.append(f"{task}: the run ended with {ran.returncode}")
                continue
            problems += report(task, json.loads((Path(folder) / "result.json").read_text()))
    print("\n".join(problems) or "\nnothing grew")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
