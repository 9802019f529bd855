"""Rewards that raise. By themselves, because a worker imports the module of the reward that it calls."""

from minrl.types import Example, Reward


def unfinished(completion: str, example: Example) -> Reward:
    raise NotImplementedError


def cannot_judge_2(completion: str, example: Example) -> Reward:
    if completion == "2":
        raise RuntimeError("cannot judge 2")
    return Reward(1.0)


def forgets_to_return(completion: str, example: Example) -> float | None:
    if max(example["numbers"]) == 5:
        return 1.0


def sorts_its_numbers(completion: str, example: Example) -> float:
    example["numbers"].sort()
    return 1.0 / example["numbers"][0]
