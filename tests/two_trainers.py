"""A run of train.py whose task misbehaves at known moments, in one process or in several."""

import os
import signal
from collections import Counter
from pathlib import Path

from minrl import trainer
from minrl.dataflow import SOLO, Example, Reward, Turn, UserError
from minrl.tasks import TASK_DEFINITIONS, Task
from minrl.tasks.task import split
from minrl.utils.cli import run_main
from tests.runs import Run

PROMPTS, GROUP = 4, 4
FAILING_STEP, LAST_STEP = 2, 3


class Misbehaving:
    """Pays by the length, so that rewards differ. In one step no episode of the second half begins; in a later one
    Ctrl-C is pressed in the last process.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count, self.played = rank, count, Counter()
        examples = [Example(str(n), f"numbers {n // 4} {n % 4}", {}) for n in range(32)]
        self.dataset = split(examples, 0.5)
        self.held_out = {example.id for example in self.dataset.held_out}
        self.task = Task(self.dataset, lambda text, example: Reward(0.0), episode=self.episode, cheap=True)

    def episode(self, example, rng):
        if example.id not in self.held_out:
            self.begin_training_episode()
        said = (yield Turn(SOLO, example.prompt)).split()
        return {SOLO: Reward(sum(map(len, said)) % 4 / 3, {"words": float(len(said))})}

    def begin_training_episode(self):
        """The episodes of a process are numbered in the order of the step, of which it has an equal share."""
        share = PROMPTS * GROUP // self.count
        step, own = divmod(self.played["train"], share)
        self.played["train"] += 1
        if step + 1 == FAILING_STEP and self.rank * share + own >= PROMPTS * GROUP // 2:
            raise RuntimeError("this one does not begin")
        if step + 1 == LAST_STEP and self.rank == self.count - 1 and own == 0:
            signal.raise_signal(signal.SIGINT)


def run(model: str, place: str, rank: int = 0, count: int = 1) -> dict[str, int]:
    """Train until somebody presses Ctrl-C; the exit status, and what this process played."""
    misbehaving = Misbehaving(rank, count)
    TASK_DEFINITIONS["misbehaving"] = misbehaving.task
    flags = f"""--task misbehaving --model-id {model} --prompts-per-step {PROMPTS} --group-size {GROUP} --max-tokens 6
        --learning-rate 1e-3 --warmup-steps 0 --minibatches-per-pass 4 --eval-every 2 --eval-examples 8
        --eval-samples 4 --rollouts-every 1 --max-unscorable-frac 0.9 --reward-workers 6 --threads 1 --device cpu
        --quiet --no-preflight --steps 9"""
    try:
        status = Run(Path(place), flags.split()).here()
    finally:
        del TASK_DEFINITIONS["misbehaving"]
    return {"status": status, **misbehaving.played}


def main(model: str, folder: str, failing_rank: str = "") -> dict[str, int]:
    """What this process of several played. One fails while the others wait for it."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if failing_rank == str(rank):
        trainer.make_batch = refuse
    return run(model, folder, rank, count)


def refuse(*_: object) -> None:
    """A mistake that only one process finds."""
    raise UserError("this process cannot go on")


if __name__ == "__main__":
    run_main(lambda arguments: main(*arguments))
