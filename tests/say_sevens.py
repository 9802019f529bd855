"""A task in a file, for whole runs: say nothing but 7. A base model of ten steps says it now and then."""

from pathlib import Path
from random import Random

from minrl.dataflow import Example, Reward
from minrl.tasks.task import Task, split

TASK = f"{Path(__file__)}:sevens"

SIZES = str.split("""--max-tokens 4 --base-steps 40 --base-hidden-size 64
    --base-heads 2 --base-layers 1""")
SAY_SEVENS = ["--task", TASK, *SIZES]
"""The flags of a run whose base model solves the task about once in four times."""


def count_sevens(completion: str, example: Example) -> Reward:
    """The share of the completion's words that are 7, and 1 only where all are."""
    said = completion.split()
    share = said.count("7") / len(said) if said else 0.0
    return Reward(share, {"words": float(len(said))})


def demonstration(example: Example, rng: Random) -> str:
    return " ".join(rng.choice("5677") for _ in range(rng.randint(1, 2)))


EXAMPLES = [Example(str(n), f"numbers {' '.join(str(n))}", {"number": n}) for n in range(32)]
WORDS = ("numbers", *"0123456789")

sevens = Task(split(EXAMPLES, 0.3), count_sevens, demonstrations=demonstration, vocabulary=WORDS, cheap=True)
