"""A task: a dataset, a reward, and optionally an episode and demonstrations.

A hash of the problem's identity (`Example.id`) splits training and held-out examples. No seed changes it: a held-out
problem is held out in every run, and in the warm start of the base model.
"""

import contextlib
import functools
import hashlib
import math
import random
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from minrl.dataflow import SOLO, Episode, Example, Job, Message, Prompt, Reward, Turn, require
from minrl.tasks.checked import played, require_example, reward_of, rewards_of
from minrl.tasks.grader import Grader, worst_reward
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound, LocalPath, Natural, Settings, meant
from minrl.utils.text import stable_text

Demonstration = str | Sequence[tuple[Prompt, str]]
"""A completion of the example's prompt, or one role's turns in an episode: each with its prompt and completion."""

Demonstrations = Callable[[Example, random.Random], Demonstration]
"""An imperfect play of the example, for the warm start of the embedded base model."""

HeldOut = Annotated[float, Bound(least=0, most=1)]
"""Share of the problems that is never trained on. 1: all of them; 0: none, where another task is evaluated."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Settings):
    """What every task has as an option."""

    data_path: LocalPath = ""
    """Local file in place of the task's dataset. Empty: what the task names or generates."""
    max_tokens: Natural = 0
    """Longest completion of one turn, in tokens. 0: that of the run."""

    def require_no_data(self, made: str) -> None:
        """Refuse a local file for a task that makes what it poses."""
        path, name = self.data_path, self.prefix.removesuffix(".") or "this task"
        require(not path, f"{name} makes its own {made} and takes no --data-path, got {path!r}")


@dataclass(frozen=True)
class Dataset:
    """The training and held-out examples of a task. One of both may be empty: what is only evaluated, or only trained.

    No `key` may be on both sides: the identity of the problem, or what the task splits by.
    """

    train: Sequence[Example]
    held_out: Sequence[Example]
    key: Callable[[Example], str] = field(default_factory=lambda: identity_of)

    def __post_init__(self) -> None:
        for example in (*self.train, *self.held_out):
            require_example(example)
        require(len(self.train) + len(self.held_out) > 0, "a dataset needs examples, got none")
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
    """The text of a completion as a run sampled it: with its token ids, the final stop token among them, the training
    step, the mark of the thought that its prompt opened, whether the limit cut it off, and the message with calls of
    tools that the tokenizer's own `parse_response` read. A text from elsewhere has none of these.
    """

    ids: tuple[int, ...] = ()
    step: int = 0
    opened: str = ""
    truncated: bool = False
    message: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, text: str, ids: Sequence[int], step: int, opened: str = "") -> "Sampled":
        """The text with these ids."""
        made = cls(text)
        made.ids, made.step, made.opened = tuple(ids), step, opened
        return made


@dataclass(frozen=True)
class Task:
    """A dataset plus a reward; a task of one turn needs only these two."""

    dataset: Dataset
    reward: Callable[[str, Example], Reward | float] | None
    """A function of the completion and the example. None if no single completion of an episode can be scored."""
    episode: Callable[[Example, random.Random], Episode] | None = None
    """A generator of (example, rng) in place of the single turn: several turns, several roles."""
    demonstrations: Demonstrations | None = None
    """Imperfect plays, from which the embedded base model learns the form."""
    vocabulary: tuple[str, ...] = ()
    """The words of prompts and demonstrations, for the tokenizer of the embedded base model."""
    group: bool = False
    """Whether the reward is called with all completions of a prompt: with a list of them and a list of their examples.
    It returns a list of rewards, in which None does not apply."""
    cheap: bool = False
    """Whether the reward is a pure function of microseconds, to be run in this process."""
    frozen_opponent: bool = False
    """Whether episodes ask for frozen turns, which a loaded model that does not learn plays."""
    notes: Callable[[], Sequence[str]] = tuple
    """Lines that a run shows at its start; raises UserError if the task cannot run on this machine."""
    worst: float = 0.0
    """Paid for a completion that broke the reward: by its time, its memory, or the end of its process."""
    warm: Callable[[], object] | None = None
    """Loads what the reward needs, before its deadline counts."""
    seconds: float = 0.0
    """What the reward's own limits allow: its deadline is no earlier."""
    solution: Callable[[Example], str | None] | None = None
    """A short completion that solves the example, in the form of the demonstrations; None if its data has none. A run
    warns if it is longer than a completion may be, and `minrl audit` expects it to earn the full reward."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion, beside those of the run."""
    name: str = ""
    """Set by `load_task`, for messages."""
    max_tokens: int = 0
    """The longest completion of one turn, set by `load_task` from the options; 0: that of the run."""

    def __fspath__(self) -> str:
        """What `TrainerConfig(task=...)` keeps of it: its name, under which it is registered."""
        from minrl.tasks import register

        return register(self.name or "task", self)

    def __post_init__(self) -> None:
        got = type(self.dataset).__name__
        takes = f"a task takes a Dataset, got {got}: make one with split(examples, held_out_share=0.2)"
        require(isinstance(self.dataset, Dataset), takes)
        takes = f"stop_strings must be a list of texts, got {self.stop_strings!r}"
        require(not isinstance(self.stop_strings, str), takes)
        require(self.reward is not None or self.episode is not None, "a task needs a reward or an episode")
        require(self.reward is not None or not self.group, "an episode rewards its roles: only a reward has group=True")

    @property
    def members(self) -> Mapping[str, "Task"]:
        """The tasks that it consists of, by `Example.task`: itself, unless it is a mixture."""
        return {"": self}

    def schedule(self, seed: int, step: int, groups: int) -> list[str]:
        """The task of each group of a step, by `Example.task`."""
        return [""] * groups

    def play(self, example: Example, rng: random.Random) -> Episode:
        """One episode of the example: the task's own, or a single turn. Its rewards are `Reward`s."""
        return played(self.name, self.episode, example, rng) if self.episode else self._single_turn(example)

    def reward_job(self, completion: str, example: Example) -> Job:
        """The work that makes the `Reward` of a completion."""
        assert self.reward is not None
        function = functools.partial(rewards_of if self.group else reward_of, self.name, self.reward)
        grader = Grader(function, functools.partial(worst_reward, self.worst), self.warm, self.seconds)
        return Job(grader, (completion, example), cheap=self.cheap, group=self.group)

    def _single_turn(self, example: Example) -> Episode:
        completion = yield Turn(SOLO, example.prompt)
        return {SOLO: (yield self.reward_job(completion, example))}


@dataclass(frozen=True)
class ToolDefinition:
    """A line of TOOLS: the dataclass of the tool's options, and the function that lets a task be played with it, which
    is also given the functions that are tools.
    """

    options: type
    wrap: Callable[..., Task]
    functions: tuple[Callable[..., Any], ...] = ()

    @property
    def key(self) -> str:
        """The name under which its options stand."""
        return self.options.prefix.removesuffix(".")  # type: ignore[attr-defined]

    @property
    def modules(self) -> set[str]:
        """The modules that it is written in."""
        return {one.__module__ for one in (self.wrap, *self.functions)}


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


def reference(example: Example) -> str:
    """What a judge or a teacher knows of a right answer: the example's `answer`, else all its fields."""
    fields = {name: value for name, value in example.fields.items() if name not in ("completion", "prompt")}
    known = fields.get("answer", fields)
    return known if isinstance(known, str) else stable_text(known, ensure_ascii=False)


def split(examples: Iterable[Example], held_out_share: float, by: Callable[[Example], str] = identity_of) -> Dataset:
    """Training and held-out examples, each in an order that only their identities decide.

    Examples with the same `by` stay on one side: the identity of the problem, or what problems share that show each
    other's solutions. If all have the same, they are trained on, unless the share is 1.
    """
    ordered = in_hash_order(examples)
    held_out = [example for example in ordered if is_held_out(by(example), held_out_share)]
    if held_out_share < 1 and len({by(example) for example in ordered}) == 1:
        held_out = []
    names = {by(example) for example in held_out}
    return Dataset([example for example in ordered if by(example) not in names], held_out, by)


def in_hash_order(examples: Iterable[Example]) -> list[Example]:
    """The examples in a pseudo-random order, so that the first n are a sample."""
    return sorted(examples, key=lambda example: (_fraction(example.id), example.id))


def _fraction(example_id: str) -> float:
    """A number in [0, 1) that the identity alone decides."""
    digest = hashlib.sha256(example_id.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def relayed(play: Episode, answered: Callable[[Any], Generator[Any, Any, Any]]) -> Generator[Any, Any, Any]:
    """What an episode returns that is sent what `answered` returns of each step, and yields what that yields."""
    with contextlib.closing(play):
        value: Any = None
        while True:
            try:
                step = play.send(value)
            except StopIteration as end:
                return end.value
            value = yield from answered(step)


def extract_answer(completion: str) -> str | None:
    """The text of the one `<answer>...</answer>` outside the thoughts; None if there is none or more than one. Empty
    tags before others only name them.

    >>> extract_answer("<think> <answer> 3 + 4 </answer>, no </think> <answer> 3 + 5 </answer>")
    '3 + 5'
    >>> extract_answer("<answer> 1 </answer> <answer> 2 </answer>") is None
    True
    """
    before, tag, last = after_thoughts(completion).rpartition("<answer>")
    said = re.sub(r"<answer>\s*</answer>", "", before) + tag + last
    if said.count("<answer>") != 1 or said.count("</answer>") != 1:
        return None
    answer, closed, _ = said.partition("<answer>")[2].partition("</answer>")
    return answer.strip() if closed else None


PLACE = re.compile(r"\{(?:problem|question)\}")
"""Where the problem stands in a prompt of a file."""


def prompt_file(option: str, path: str, names: Iterable[str]) -> str:
    """The text of a prompt whose file an option names, less its last line end. `names` are its other values."""
    known = f"{', '.join(names)}, or a file"
    require(Path(path).is_file(), f"{option} must be {known}, got {path!r}{meant(path, names)}")
    text = Path(path).read_text(encoding="utf-8").removesuffix("\n")
    require(PLACE.search(text) is not None, f"{path} needs {{problem}} where the problem stands")
    return text


def filled(text: str, problem: str) -> str:
    """The prompt with the problem in its place.

    >>> filled("User: {problem} Assistant:", "1 + 1?")
    'User: 1 + 1? Assistant:'
    """
    return PLACE.sub(lambda _: problem, text)
