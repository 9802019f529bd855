"""Rewards that raise. By themselves, because a worker imports the module of the reward that it calls."""

import os
from tempfile import NamedTemporaryFile

from minrl.dataflow import Example, Reward


def unfinished(completion: str, example: Example) -> Reward:
    raise NotImplementedError


def forgets_to_return(completion: str, example: Example) -> float | None:
    if max(example["numbers"]) == 5:
        return 1.0


def noted(completion: str, example: Example) -> float:
    """Leaves a file for each completion that it has seen."""
    with NamedTemporaryFile(dir=example["folder"], prefix="seen", delete=False):
        return float(completion.count("7"))


def breaks_at_odd_lengths(completion: str, example: Example) -> float:
    words = len(completion.split())
    if words % 2:
        os._exit(3)
    return float(words == 2)


def raises_at_odd_lengths(completion: str, example: Example) -> float:
    words = len(completion.split())
    if words % 2:
        raise RuntimeError(f"cannot judge {words} words")
    return 1.0 / (1 + words)
