"""What writing metrics and rollouts costs a step, with each logger, side by side.

    python benchmarks/logging_cost.py                      the default task, 20 steps with each logger
    python benchmarks/logging_cost.py --steps 50

Each logger makes a run of its own from the same base model with the same seed, so all do the same work. The cost is the
run's own `time/log_s` over `time/step_s`: metrics, curves, histograms, samples, rollouts and the rollouts page. W&B
runs offline, and is left out where it is not installed. Rollouts are written in every tenth step, as by default.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from harness import doing

from minrl.run.folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The number of steps; what is not known goes to train.py."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_known_args()


def main() -> None:
    """Make the runs one after another, then print a line for each."""
    options, more = parse()
    loggers = [name for name in ("tensorboard", "wandb") if name == "tensorboard" or find_spec(name) is not None]
    with tempfile.TemporaryDirectory() as folder:
        for name in loggers:
            doing(f"{options.steps} steps with {name}")
            arguments = ["--logger", name, "--steps", str(options.steps), "--eval-every", "0", "--quiet", *more]
            places = ["--runs-dir", f"{folder}/{name}", "--checkpoints-dir", f"{folder}/checkpoints"]
            subprocess.run(
                [sys.executable, str(ROOT / "train.py"), *arguments, *places],
                check=True,
                env={**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
            )
        print(f"{'logger':12} {'s/step':>8} {'log s/step':>11} {'share':>8} {'most of a step':>15}")
        for name in loggers:
            (run,) = Path(folder, name).iterdir()
            # What is logged of the step before counts in a step: the first has the evaluation's, and is left out.
            lines = [line for line in RunFolder(run).metrics if line["step"] > 1]
            step, log = (sum(line[tag] for line in lines) for tag in ("time/step_s", "time/log_s"))
            most = max(line["time/log_s"] / line["time/step_s"] for line in lines)
            count = len(lines)
            print(f"{name:12} {step / count:8.3f} {log / count:11.4f} {log / step:8.2%} {most:15.2%}")


if __name__ == "__main__":
    main()
