"""How long math's grading holds a step: 512 completions of 64 problems, graded by the default pool of workers.

    python benchmarks/grading_speed.py math500.json --step-s 60

Of each problem's eight completions three have the reference, one has it spelled otherwise, and four are wrong: three
with the reference of another problem, one with the reference plus one. `--hostile` of the 512 have instead what costs
up to the time limit, each another one. `--step-s` is the processor time of a step without grading. The share is of
processor time, which other programs on the machine do not change: that of this process and of the workers.
"""

import argparse
import json
import os
import random
import statistics
import time
from functools import partial
from pathlib import Path

from harness import doing

from minrl.rewards.workers import Failure, Workers
from minrl.tasks.math import MathOptions, reward, warm
from minrl.tasks.task import Dataset, Task
from minrl.types import Example
from minrl.utils.processor import processor_s


def main() -> None:
    """Print seconds, rate and share of the first step, with new workers, and of later ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a JSON list of rows with problem and answer")
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--hostile", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    rows, rng = json.loads(options.data.read_text()), random.Random(0)
    answers = [str(row["answer"]) for row in rows]
    examples = [Example("", "", {"problem": row["problem"], "answer": str(row["answer"])}) for row in rows]
    task = Task(Dataset([], examples[:1]), partial(reward, options=MathOptions()), warm=warm)
    workers, shares = Workers(0, 30.0), []
    for step in range(options.steps):
        jobs = []
        for example in rng.sample(examples, 64):
            gold = example["answer"]
            given = [gold] * 3 + [gold.replace(r"\frac", r"\dfrac") + " ", f"{gold}+1", *rng.choices(answers, k=3)]
            jobs += [task.paid(rf"so \boxed{{{answer}}}", example) for answer in given]
        for number in range(options.hostile):
            place = rng.randrange(len(jobs))
            jobs[place] = task.paid(rf"\boxed{{{number + 3}^{{9^{{{number + 9}}}}}}}", jobs[place].arguments[1])
        doing(f"step {step + 1}")
        started, before = time.perf_counter(), computed_by(workers)
        paid = workers.run(jobs)
        seconds, computed_s = time.perf_counter() - started, computed_by(workers) - before
        failed = sum(isinstance(one, Failure) for one in paid)
        shares.append(computed_s / (computed_s + options.step_s))
        print(f"step {step + 1}: {seconds:.2f} s, of a core {computed_s:.2f} s, {failed} failed, {shares[-1]:.2%}")
    workers.close()
    later = shares[1:] or shares
    print(f"later steps: {statistics.median(later):.2%} ({min(later):.2%} to {max(later):.2%}) of a step")


def computed_by(workers: Workers) -> float:
    """Seconds of processor time that this process, its idle workers and those that ended have spent."""
    return sum(os.times()[:4]) + sum(processor_s(one.process.pid, children=False) for one in workers._idle)


if __name__ == "__main__":
    main()
