"""A task: a dataset, a reward, and optionally an episode and demonstrations.

A hash of the problem's identity (`Example.id`) splits training and held-out examples. No seed changes it: a held-out
problem is held out in every run, and in the warm start of the base model.
"""

import functools
import hashlib
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from minrl.dataflow import SOLO, Episode, Example, Job, Message, Prompt, Reward, Turn, UserError, require
from minrl.models.thoughts import after_thoughts
from minrl.tasks.checked import played, require_distinct, require_example, reward_of
from minrl.tasks.grader import Grader, unpaid

Demonstration = str | Sequence[tuple[Prompt, str]]
"""A completion of the example's prompt, or one role's turns in an episode: each with its prompt and completion."""

Demonstrations = Callable[[Example, random.Random], Demonstration]
"""An imperfect play of the example, for the warm start of the embedded base model."""

SPLIT = "make one with split(examples, held_out_share=0.2)"


@dataclass(frozen=True)
class Dataset:
    """The training and held-out examples of a task. Data for evaluation only has none to train on; train.py refuses it.

    No `key` may be on both sides: the identity of the problem, or what the task splits by.
    """

    train: Sequence[Example]
    held_out: Sequence[Example]
    key: Callable[[Example], str] = field(default_factory=lambda: identity_of)

    def __post_init__(self) -> None:
        count = len(self.train)
        for example in (*self.train, *self.held_out):
            require_example(example)
        require_distinct((*self.train, *self.held_out))
        require(len(self.held_out) > 0, f"a dataset needs held-out examples, got none beside {count} training ones")
        shared = set(map(self.key, self.train)) & set(map(self.key, self.held_out))
        require(not shared, f"held-out problems among the training ones: {sorted(shared)[:3]}")

    def sizes(self) -> tuple[int, int]:
        """The numbers of training and held-out examples. Reads the rows if that was deferred."""
        return len(self.train), len(self.held_out)


class DeferredDataset(Dataset):
    """A dataset whose rows are read when an example is first used."""

    _load: Callable[[], Dataset]

    def __init__(self, load: Callable[[], Dataset]) -> None:
        object.__setattr__(self, "_load", load)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the part is
        """Read the dataset for the first of its parts."""
        if name not in [part.name for part in fields(Dataset)]:
            raise AttributeError(name)
        vars(self).update(vars(loaded := self._load()))
        return getattr(loaded, name)


class Sampled(str):
    """The text of a completion as a run sampled it: with its token ids, the final stop token among them, and the
    training step. A text from elsewhere has neither.
    """

    ids: tuple[int, ...] = ()
    step: int = 0

    @classmethod
    def of(cls, text: str, ids: Sequence[int], step: int) -> "Sampled":
        """The text with these ids."""
        made = cls(text)
        made.ids, made.step = tuple(ids), step
        return made


@dataclass(frozen=True)
class Task:
    """A dataset plus a reward.

    A single-turn task needs only these two. `episode(example, rng)` replaces the single turn by a generator (several
    turns, several roles); its reward may be None if no single completion can be scored.
    `demonstrations` and `vocabulary` let the embedded base model play it.
    `cheap` rewards are pure functions of microseconds and run in this process.
    `frozen_opponent`: episodes ask for frozen turns, which a loaded model that does not learn plays.
    `shortest_answer(example)` is a shortest solution in the form of the demonstrations. If it has more tokens than a
    completion may have, a run says so before it starts.
    `solution(example)` is a completion that solves it, for `python -m minrl audit`; None if its data has none.
    Where a task does not say, its shortest answer is one.
    `notes()` are lines that a run shows at its start; it raises UserError if the task cannot run on this machine.
    `worst` is paid for a completion that broke the reward: by its time, its memory, or the end of its process.
    `warm()` loads what the reward needs, before its deadline counts.
    `seconds` are those that the reward's own limits allow: its deadline is no earlier.
    `max_tokens` is the longest completion of one turn that a run grants the task; 0: as long as those of others.
    `stop_strings` end a completion, beside those of the run.
    `name` is set by `load_task`, for messages.
    """

    dataset: Dataset
    reward: Callable[[str, Example], Reward | float] | None
    episode: Callable[[Example, random.Random], Episode] | None = None
    demonstrations: Demonstrations | None = None
    vocabulary: tuple[str, ...] = ()
    shortest_answer: Callable[[Example], str] | None = None
    cheap: bool = False
    frozen_opponent: bool = False
    notes: Callable[[], Sequence[str]] = tuple
    worst: float = 0.0
    warm: Callable[[], object] | None = None
    seconds: float = 0.0
    solution: Callable[[Example], str | None] | None = None
    stop_strings: tuple[str, ...] = ()
    name: str = ""
    max_tokens: int = 0

    def __fspath__(self) -> str:
        """What `TrainerConfig(task=...)` keeps of it: its name, under which it is registered."""
        from minrl.tasks import register

        return register(self)

    def __post_init__(self) -> None:
        require(
            isinstance(self.dataset, Dataset), f"a task takes a Dataset, got {type(self.dataset).__name__}: {SPLIT}"
        )
        require(self.reward is not None or self.episode is not None, "a task needs a reward or an episode")

    @property
    def members(self) -> Mapping[str, "Task"]:
        """The tasks that it consists of, by `Example.task`: itself, unless it is a mixture."""
        return {"": self}

    def schedule(self, seed: int, step: int, groups: int) -> list[str]:
        """The task of each group of a step, by `Example.task`."""
        return [""] * groups

    def play(self, example: Example, rng: random.Random) -> Episode:
        """One episode of the example: the task's own, or a single turn. It pays in `Reward`s."""
        return played(self.name, self.episode, example, rng) if self.episode else self._single_turn(example)

    def paid(self, completion: str, example: Example) -> Job:
        """The work that makes the `Reward` of a completion."""
        assert self.reward is not None
        function = functools.partial(reward_of, self.name, self.reward)
        grader = Grader(function, functools.partial(unpaid, self.worst), self.warm, self.seconds)
        return Job(grader, (completion, example), cheap=self.cheap)

    def _single_turn(self, example: Example) -> Episode:
        completion = yield Turn(SOLO, example.prompt)
        return {SOLO: (yield self.paid(completion, example))}


@dataclass(frozen=True)
class TaskDefinition:
    """A line of TASK_DEFINITIONS: the dataclass of the task's options, and the function that makes the task.

    `make(options, data_path)`: `data_path` is empty if the user named no local file. `words(options)` are words that
    every embedded base model knows, whatever its task: they change the models of all tasks, and need no data. A task's
    vocabulary is for its own model. `tool` names a row of TOOLS with which the task is always played.
    """

    options: type
    make: Callable[[Any, str], Task]
    words: Callable[[Any], tuple[str, ...]] | None = None
    tool: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.options, type) and is_dataclass(self.options)):
            raise UserError(f"a task's options must be a dataclass, got {self.options!r}: decorate it with @dataclass")
        required = [f.name for f in fields(self.options) if f.default is MISSING and f.default_factory is MISSING]
        if required:
            raise UserError(f"each option of a task needs a default, {self.options.__name__}.{required[0]} has none")
        _require_settable(self.options)

    @property
    def module(self) -> str:
        """The module that the task is written in."""
        return self.make.__module__

    @property
    def path(self) -> str:
        """The local file or folder of its own rows; empty if it has none."""
        return ""


@dataclass(frozen=True)
class ToolDefinition:
    """A line of TOOLS: the dataclass of the tool's options, and the function that lets a task be played with it."""

    options: type
    wrap: Callable[[Task, Any], Task]


def _require_settable(options: type) -> None:
    """Refuse options that a flag cannot set, or that config.json cannot hold."""
    try:
        hints = get_type_hints(options)
    except Exception as error:  # an annotation is the user's and may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"the types of {options.__name__} cannot be resolved: {reason}") from error
    for one in fields(options):
        if one.init and not _settable(hints[one.name]):
            raise UserError(
                f"{options.__name__}.{one.name} is of type {hints[one.name]}, which no flag can set: take int, "
                "float, str, bool, Literal, Path, a tuple or list of the first five, or one of these | None"
            )


def _settable(hint: object) -> bool:
    inner = [kind for kind in get_args(hint) if kind is not NoneType]
    if NoneType in get_args(hint):
        return len(inner) == 1 and _settable(inner[0])
    if get_origin(hint) in (tuple, list):
        return bool(inner) and all(kind is Ellipsis or _is_simple(kind) for kind in inner)
    return hint is Path or _is_simple(hint)


def _is_simple(hint: object) -> bool:
    if get_origin(hint) is Literal:
        return all(isinstance(choice, str | int) for choice in get_args(hint))
    return hint in (int, float, str, bool)


def chat(system: str, user: str) -> list[Message]:
    """A prompt of a system message and a user message."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def weighted(parts: Mapping[str, float], weights: Mapping[str, float]) -> Reward:
    """The weighted mean of the parts: in [0, 1], and 1 only if every part that has a weight is 1. Other parts are
    reported only.

    >>> weighted({"correct": 1.0, "format": 0.0, "length": 12.0}, {"correct": 3.0, "format": 1.0}).value
    0.75
    """
    assert all(0 <= parts[name] <= 1 for name in weights), f"a part outside [0, 1]: {parts}"
    total = math.fsum(weights.values())
    missing = math.fsum(weight * (1 - parts[name]) for name, weight in weights.items())
    return Reward(1 - missing / total, parts)


def is_held_out(example_id: str, share: float) -> bool:
    """Whether a hash of its identity puts the problem into the held-out share.

    >>> is_held_out("3,5,7=9", 0.0), is_held_out("3,5,7=9", 1.0)
    (False, True)
    """
    return _fraction(example_id) < share


def identity_of(example: Example) -> str:
    """The identity of an example's problem."""
    return example.id


def split(examples: Iterable[Example], held_out_share: float, by: Callable[[Example], str] = identity_of) -> Dataset:
    """Training and held-out examples, each in an order that only their identities decide.

    Examples with the same `by` stay on one side: the identity of the problem, or what problems share that show each
    other's solutions.
    """
    ordered = in_order_of_identity(examples)
    held_out = [example for example in ordered if is_held_out(by(example), held_out_share)]
    names = {by(example) for example in held_out}
    return Dataset([example for example in ordered if by(example) not in names], held_out, by)


def in_order_of_identity(examples: Iterable[Example]) -> list[Example]:
    """The examples in a pseudo-random order, so that the first n are a sample."""
    examples = list(examples)
    for example in examples:
        require_example(example)
    return sorted(examples, key=lambda example: (_fraction(example.id), example.id))


def check_held_out_share(task: str, share: float) -> None:
    """Refuse a share that leaves nothing to evaluate on. 1 leaves nothing to train on, which is enough to evaluate."""
    require(0 < share <= 1, f"{task}.held_out_share must be in (0, 1], 1 for evaluation only, got {share}")


def _fraction(example_id: str) -> float:
    """A number in [0, 1) that the identity alone decides."""
    digest = hashlib.sha256(example_id.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


_EMPTY = re.compile(r"<answer>\s*</answer>")


def extract_answer(completion: str) -> str | None:
    """The text of the one `<answer>...</answer>` outside the thoughts; None if there is none or more than one. Empty
    tags before others only name them.

    >>> extract_answer("<think> <answer> 3 + 4 </answer>, no </think> <answer> 3 + 5 </answer>")
    '3 + 5'
    >>> extract_answer("<answer> 1 </answer> <answer> 2 </answer>") is None
    True
    """
    before, tag, last = after_thoughts(completion).rpartition("<answer>")
    said = _EMPTY.sub("", before) + tag + last
    if said.count("<answer>") != 1 or said.count("</answer>") != 1:
        return None
    answer, closed, _ = said.partition("<answer>")[2].partition("</answer>")
    return answer.strip() if closed else None
