"""What a task is: a dataset, a reward, and optionally an episode and demonstrations.

The split into training and held-out examples goes by the identity of the problem (`Example.id`), by a hash that
no seed of a run touches: what is held out once is held out always, in the warm start of the base model too.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minrl.types import SOLO, Episode, Example, Job, Reward, Turn, UserError

Demonstrations = Callable[[Example, random.Random], str]
"""An imperfect completion of the example, for the warm start of the embedded base model."""


@dataclass(frozen=True)
class Dataset:
    """The examples a task trains on and those that are held out."""

    train: Sequence[Example]
    held_out: Sequence[Example]

    def __post_init__(self) -> None:
        if not self.train or not self.held_out:
            raise UserError(
                f"a dataset needs training and held-out examples, got {len(self.train)} and {len(self.held_out)}"
            )
        shared = {e.id for e in self.train} & {e.id for e in self.held_out}
        assert not shared, f"held-out problems among the training ones: {sorted(shared)[:3]}"


@dataclass(frozen=True)
class Task:
    """A dataset plus a reward.

    A single-turn task needs only these two. `episode(example, rng)` replaces the single turn by a generator
    (several turns, several roles). `demonstrations` and `vocabulary` let the embedded base model play it.
    `cheap` rewards are pure functions of microseconds and run in this process.
    """

    dataset: Dataset
    reward: Callable[[str, Example], Reward]
    episode: Callable[[Example, random.Random], Episode] | None = None
    demonstrations: Demonstrations | None = None
    vocabulary: tuple[str, ...] = ()
    cheap: bool = False

    def play(self, example: Example, rng: random.Random) -> Episode:
        """One episode of the example: the task's own, or a single turn."""
        if self.episode is not None:
            return self.episode(example, rng)
        return self._single_turn(example)

    def _single_turn(self, example: Example) -> Episode:
        completion = yield Turn(SOLO, example.prompt)
        reward = yield Job(self.reward, (completion, example), cheap=self.cheap)
        return {SOLO: reward}


@dataclass(frozen=True)
class TaskDefinition:
    """A line of TASK_DEFINITIONS: the dataclass of the task's options, and what makes the task from them.

    `make(options, data_path)`; `data_path` is empty where the user named no local file.
    """

    options: type
    make: Callable[[Any, str], Task]


def is_held_out(example_id: str, share: float) -> bool:
    """Whether the problem belongs to the held-out share, by a hash of its identity.

    >>> is_held_out("3,5,7=9", 0.0), is_held_out("3,5,7=9", 1.0)
    (False, True)
    """
    return _fraction(example_id) < share


def split(examples: Iterable[Example], held_out_share: float) -> Dataset:
    """Training and held-out examples by identity, each in an order that only their identities decide."""
    ordered = sorted(examples, key=lambda example: (_fraction(example.id), example.id))
    held_out = [example for example in ordered if is_held_out(example.id, held_out_share)]
    return Dataset(train=ordered[len(held_out) :], held_out=held_out)


def _fraction(example_id: str) -> float:
    """A number in [0, 1) that the identity alone decides."""
    digest = hashlib.sha256(example_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def extract_answer(completion: str) -> str | None:
    """The text of the one `<answer>...</answer>`; None where there is none or more than one.

    >>> extract_answer("<think> 3 + 5 </think> <answer> 3 + 5 </answer>")
    '3 + 5'
    >>> extract_answer("<answer> 1 </answer> <answer> 2 </answer>") is None
    True
    """
    if completion.count("<answer>") != 1 or completion.count("</answer>") != 1:
        return None
    _, _, rest = completion.partition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    return answer.strip() if closed else None
