"""Seconds from the end of the imports to the first optimizer step of `python train.py`.

    python benchmarks/startup.py

The default task and model, which is made first where it is not cached; no preflight, no first evaluation. Each round
is a fresh process. The rollout and the update of the first step are in it.
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
from minrl import trainer
imported = time.perf_counter()
from minrl import update
from minrl.__main__ import console
step = update.optimizer_step
def watched(*arguments):
    result = step(*arguments)
    print("SECONDS", imported - started, time.perf_counter() - imported, flush=True)
    raise SystemExit(0)
update.optimizer_step = watched
console("train")
"""


def first_step(folder: str, checkpoints: str) -> tuple[float, float]:
    """Seconds of the imports, and from there to the first optimizer step."""
    flags = [*FLAGS, "--runs-dir", f"{folder}/runs", "--checkpoints-dir", checkpoints]
    command = [sys.executable, "-c", WATCHED.format(root=str(ROOT)), *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    line = next((line for line in done.stdout.splitlines() if line.startswith("SECONDS")), None)
    assert line is not None, done.stderr[-2000:]
    imports, beyond = map(float, line.split()[1:])
    return imports, beyond


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
    imports, beyond = map(list, zip(*seconds, strict=True))
    rows = [
        Row("seconds of the imports", "0", imports, others_load=max(loads)),
        Row("seconds from the imports to the first optimizer step", "0", beyond, others_load=max(loads)),
    ]
    save("startup", rows)


if __name__ == "__main__":
    main()
