"""A task in a file, for whole runs: say nothing but 7. A base model of ten steps says it now and then."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from minrl.dataflow import Example, Reward
from minrl.tasks.task import Task, TaskDefinition, split

TASK = f"{Path(__file__)}:sevens"

SIZES = str.split("""--max-tokens 4 --base-steps 8 --base-batch-size 8 --base-learning-rate 2e-2 --base-hidden-size 64
    --base-heads 2 --base-layers 1""")
SAY_SEVENS = ["--task", TASK, *SIZES]
"""The flags of a run whose base model solves the task about once in four times."""


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """None."""


def count_sevens(completion: str, example: Example) -> Reward:
    """The share of the completion's words that are 7, and 1 only where all are."""
    said = completion.split()
    share = said.count("7") / len(said) if said else 0.0
    return Reward(share, {"words": float(len(said))})


def demonstration(example: Example, rng: Random) -> str:
    return " ".join(rng.choice("5677") for _ in range(rng.randint(1, 2)))


def make(options: NoOptions, data_path: str) -> Task:
    examples = [Example(str(n), f"numbers {' '.join(str(n))}", {"number": n}) for n in range(32)]
    words = ("numbers", *"0123456789")
    return Task(split(examples, 0.3), count_sevens, demonstrations=demonstration, vocabulary=words, cheap=True)


sevens = TaskDefinition(NoOptions, make)
