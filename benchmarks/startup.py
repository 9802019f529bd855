"""Seconds from the end of the imports to the first optimizer step of `python train.py`.

    python benchmarks/startup.py

The default task and model, which is made first where it is not cached; no preflight, no first evaluation. Each round
is a fresh process. The rollout and the update of the first step are in it: they are shown apart.
"""

import argparse
import subprocess
import sys
import tempfile

from harness import ROOT, Row, doing, save, wait_until_quiet

FLAGS = ["--no-preflight", "--no-eval-first", "--eval-every", "0", "--eval-examples", "1", "--quiet"]

WATCHED = """
import sys, time
sys.path.insert(0, {root!r})
started = time.perf_counter()
from minrl import train
imported = time.perf_counter()
from minrl import update
from minrl.__main__ import console
step, sample = update.optimizer_step, train.sample_groups
first = []
def timed_rollout(*arguments):
    first.append(time.perf_counter())
    return sample(*arguments)
def watched(*arguments):
    result = step(*arguments)
    now = time.perf_counter()
    print("SECONDS", imported - started, now - imported, now - first[0], flush=True)
    raise SystemExit(0)
train.sample_groups, update.optimizer_step = timed_rollout, watched
console("train")
"""


def first_step(folder: str, checkpoints: str) -> tuple[float, float, float]:
    """Seconds of the imports, from there to the first optimizer step, and the part of that which is the step itself."""
    flags = [*FLAGS, "--runs-dir", f"{folder}/runs", "--checkpoints-dir", checkpoints]
    command = [sys.executable, "-c", WATCHED.format(root=str(ROOT)), *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    line = next((line for line in done.stdout.splitlines() if line.startswith("SECONDS")), None)
    assert line is not None, done.stderr[-2000:]
    imports, beyond, step = (float(value) for value in line.split()[1:])
    return imports, beyond, step


def main() -> None:
    """One row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpoints-dir", default=str(ROOT / "checkpoints"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        doing("making the base model, where there is none")
        first_step(folder, options.checkpoints_dir)  # makes the base model, fills the page cache
        loads, seconds = [], []
        for number in range(options.rounds):
            loads.append(wait_until_quiet())
            seconds.append(first_step(f"{folder}/{number}", options.checkpoints_dir))
    for imports, beyond, step in seconds:
        print(f"imports {imports:.2f} s, then {beyond:.2f} s, of which the first step {step:.2f} s", flush=True)
    beyond = [one[1] for one in seconds]
    facts, worst = {"seconds": seconds}, max(loads)
    rows = [
        Row("seconds of the imports", "0", 3.0, [one[0] for one in seconds], others_load=worst, facts=facts),
        Row("seconds from the imports to the first optimizer step", "0", 1.5, beyond, others_load=worst),
    ]
    save("startup", rows)


if __name__ == "__main__":
    main()
