"""What a task is: a dataset, a reward, and optionally an episode and demonstrations.

The split into training and held-out examples goes by the identity of the problem (`Example.id`), by a hash that
no seed of a run touches: what is held out once is held out always, in the warm start of the base model too.
"""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

from minrl.types import SOLO, Episode, Example, Job, Prompt, Reward, Turn, UserError

Demonstration = str | Sequence[tuple[Prompt, str]]
"""A completion of the example's prompt, or one role's turns in an episode: what it is shown, what it says."""

Demonstrations = Callable[[Example, random.Random], Demonstration]
"""An imperfect play of the example, for the warm start of the embedded base model."""


@dataclass(frozen=True)
class Dataset:
    """The examples a task trains on and those that are held out. Data that is for evaluation only has none to train
    on, which train.py refuses.

    `key` names what no two examples may have on both sides: the identity of the problem, or what the task splits by.
    """

    train: Sequence[Example]
    held_out: Sequence[Example]
    key: Callable[[Example], str] = field(default_factory=lambda: identity_of)

    def __post_init__(self) -> None:
        if not self.held_out:
            raise UserError(f"a dataset needs held-out examples, got none beside {len(self.train)} training ones")
        shared = set(map(self.key, self.train)) & set(map(self.key, self.held_out))
        assert not shared, f"held-out problems among the training ones: {sorted(shared)[:3]}"

    def sizes(self) -> tuple[int, int]:
        """How many training and held-out examples there are. Reads them, where that was deferred."""
        return len(self.train), len(self.held_out)


class DeferredDataset(Dataset):
    """A dataset whose rows are read when its examples are first asked for: a task's reward, its vocabulary and its
    options need none of them.
    """

    _load: Callable[[], Dataset]

    def __init__(self, load: Callable[[], Dataset]) -> None:
        object.__setattr__(self, "_load", load)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the part is
        """A part of the dataset, none of which is there yet."""
        parts = [part.name for part in fields(Dataset)]
        if name not in parts:
            raise AttributeError(name)
        loaded = self._load()
        for part in parts:
            object.__setattr__(self, part, getattr(loaded, part))
        return getattr(loaded, name)


@dataclass(frozen=True)
class Task:
    """A dataset plus a reward.

    A single-turn task needs only these two. `episode(example, rng)` replaces the single turn by a generator
    (several turns, several roles); its reward may be None where no single completion can be scored.
    `demonstrations` and `vocabulary` let the embedded base model play it.
    `cheap` rewards are pure functions of microseconds and run in this process.
    `frozen_opponent` says that episodes ask for frozen turns: a model that does not learn is loaded to play them.
    `shortest_answer(example)` is a solution in the form of the demonstrations, as short as there is one: where it takes
    more tokens than a completion may have, a run says so before it starts.
    `notes()` are lines that a run shows at its start; it raises `UserError` where the task cannot run on this machine.
    """

    dataset: Dataset
    reward: Callable[[str, Example], Reward] | None
    episode: Callable[[Example, random.Random], Episode] | None = None
    demonstrations: Demonstrations | None = None
    vocabulary: tuple[str, ...] = ()
    shortest_answer: Callable[[Example], str] | None = None
    cheap: bool = False
    frozen_opponent: bool = False
    notes: Callable[[], Sequence[str]] = tuple

    def __post_init__(self) -> None:
        assert self.reward is not None or self.episode is not None, "a task needs a reward or an episode"

    def play(self, example: Example, rng: random.Random) -> Episode:
        """One episode of the example: the task's own, or a single turn."""
        if self.episode is not None:
            return self.episode(example, rng)
        return self._single_turn(example)

    def _single_turn(self, example: Example) -> Episode:
        assert self.reward is not None
        completion = yield Turn(SOLO, example.prompt)
        reward = yield Job(self.reward, (completion, example), cheap=self.cheap)
        return {SOLO: reward}


@dataclass(frozen=True)
class TaskDefinition:
    """A line of TASK_DEFINITIONS: the dataclass of the task's options, and what makes the task from them.

    `make(options, data_path)`; `data_path` is empty where the user named no local file. `words(options)` are words
    that every embedded base model knows, whatever task it is made for: a task that offers them changes the model of
    each other task, and needs no data to say them. The vocabulary of a task is for its own model.
    """

    options: type
    make: Callable[[Any, str], Task]
    words: Callable[[Any], tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.options, type) and is_dataclass(self.options)):
            raise UserError(f"a task's options must be a dataclass, got {self.options!r}: decorate it with @dataclass")
        required = [f.name for f in fields(self.options) if f.default is MISSING and f.default_factory is MISSING]
        if required:
            raise UserError(f"each option of a task needs a default, {self.options.__name__}.{required[0]} has none")


def weighted(parts: Mapping[str, float], weights: Mapping[str, float]) -> Reward:
    """The mean of the parts by their weights: in [0, 1] where each part is, and 1 only where every part that has a
    weight is 1. Parts without a weight are shown and not paid.

    >>> weighted({"correct": 1.0, "format": 0.0, "length": 12.0}, {"correct": 3.0, "format": 1.0}).value
    0.75
    """
    assert all(0 <= parts[name] <= 1 for name in weights), f"a part outside [0, 1]: {parts}"
    total = math.fsum(weights.values())
    missing = math.fsum(weight * (1 - parts[name]) for name, weight in weights.items())
    return Reward(1 - missing / total, parts)


def is_held_out(example_id: str, share: float) -> bool:
    """Whether the problem belongs to the held-out share, by a hash of its identity.

    >>> is_held_out("3,5,7=9", 0.0), is_held_out("3,5,7=9", 1.0)
    (False, True)
    """
    return _fraction(example_id) < share


def identity_of(example: Example) -> str:
    """What two examples of one problem share."""
    return example.id


def split(examples: Iterable[Example], held_out_share: float, by: Callable[[Example], str] = identity_of) -> Dataset:
    """Training and held-out examples, each in an order that only their identities decide.

    `by` names what two examples must not have on both sides: examples of the same name stay together. By default it is
    the identity of the problem; a task whose problems show each other's solutions names what they share.
    """
    ordered = in_order_of_identity(examples)
    held_out = [example for example in ordered if is_held_out(by(example), held_out_share)]
    names = {by(example) for example in held_out}
    return Dataset([example for example in ordered if by(example) not in names], held_out, by)


def in_order_of_identity(examples: Iterable[Example]) -> list[Example]:
    """An order without system, so that the first n are a sample of them all."""
    return sorted(examples, key=lambda example: (_fraction(example.id), example.id))


def check_held_out_share(task: str, share: float) -> None:
    """Refuse a share that leaves nothing to evaluate on. 1 leaves nothing to train on, which evaluation needs not."""
    if not 0 < share <= 1:
        raise UserError(f"{task}.held_out_share must be in (0, 1], 1 for evaluation only, got {share}")


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
