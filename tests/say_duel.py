"""A game in a file, for whole runs: two players, each of whom says 7 twice."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from minrl.dataflow import Episode, Example, Prompt, Reward, Turn
from minrl.tasks.task import Task, split
from tests.say_sevens import EXAMPLES, WORDS, count_sevens, demonstration

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


duel = Task(split(EXAMPLES, 0.3), None, episode=play, demonstrations=demonstrated, vocabulary=WORDS)
