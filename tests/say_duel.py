"""A game in a file, for whole runs: two players, each of whom says 7 twice."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from minrl.dataflow import Episode, Example, Prompt, Reward, Turn
from minrl.tasks.task import Task, TaskDefinition, split
from tests.say_sevens import NoOptions, count_sevens, demonstration

DUEL = f"{Path(__file__)}:duel"
AGAIN = "numbers 7"
ROLES = ("black", "white")


def play(example: Example, rng: Random) -> Episode:
    """Each says something twice, in turns; the reward is the share of 7 in all that it said."""
    said: dict[str, list[str]] = {role: [] for role in ROLES}
    for prompt in (example.prompt, AGAIN):
        for role in ROLES:
            said[role].append((yield Turn(role, prompt)))
    return {role: Reward(count_sevens(" ".join(texts), example).value) for role, texts in said.items()}


def demonstrated(example: Example, rng: Random) -> Sequence[tuple[Prompt, str]]:
    return [(prompt, demonstration(example, rng)) for prompt in (example.prompt, AGAIN)]


def make(options: NoOptions, data_path: str) -> Task:
    examples = [Example(str(n), f"numbers {' '.join(str(n))}", {"number": n}) for n in range(32)]
    words = ("numbers", *"0123456789")
    return Task(split(examples, 0.3), None, episode=play, demonstrations=demonstrated, vocabulary=words)


duel = TaskDefinition(NoOptions, make)
