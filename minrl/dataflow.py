"""The data types of the loop.

Only the standard library is imported here, so that tasks and reward workers can use them without loading torch.
"""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Message = Mapping[str, Any]
"""A chat message: `{"role": "system" | "user" | "assistant" | "tool", "content": text}`, or a list of parts of text."""

Prompt = str | list[Message]
"""A string goes to the model unchanged; a list of messages goes through the chat template."""

CausalModel = Any
"""A causal model of transformers. torch types Module attributes as Tensor or Module; its attributes are neither."""

SOLO = "policy"
"""The role in a task with a single player."""

ABOVE_MAXIMUM = "a reward must be at most its maximum"

LARGEST_FLOAT32 = 2.0**128 - 2.0**104

ROUNDING, TINY = 1e-9, 1e-12
"""Rewards are equal up to this share of the larger one, or this distance: the rounding error of a sum of thousands of
floats (1.1e-16 per addend).
"""


class UserError(ValueError):
    """A mistake that the user can fix. The message is one line: what was given and what is allowed."""


class Mistake(UserError):
    """A mistake in a task's own code, which no completion can be blamed for."""


def require(condition: bool, message: str, error: type[UserError] = UserError) -> None:
    """Raise the error with this message unless the condition holds."""
    if not condition:
        raise error(message)


@dataclass(frozen=True)
class Example:
    """A row of a dataset: the prompt, and the fields that the reward reads.

    `id` identifies the problem, not its wording. The split into training and held-out examples goes by it. `task` is
    set in a run of several tasks.

    >>> example = Example("3,5,7=9", "numbers 3 7 5 target 9", {"numbers": [3, 7, 5], "target": 9})
    >>> example["target"]
    9
    """

    id: str
    prompt: Prompt
    fields: Mapping[str, Any]
    category: Mapping[str, str] = field(default_factory=dict)
    task: str = ""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - fields hold what the task put there
        """A field. Raises `KeyError` if the example lacks it."""
        return self.fields[name]


@dataclass(frozen=True)
class Reward:
    """The reward of one completion. `value` is trained on; `parts` are for the curves.

    Only a full solution has the maximum, unless the task sets `full`, as a task that also rewards style does. All
    numbers are stored as floats. Raises `Mistake` if one is not finite or the value exceeds the maximum.

    >>> Reward(0.7 + 0.2 + 0.1).solved, Reward(0.9).solved
    (True, False)
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    maximum: float = 1.0
    full: bool | None = None

    def __post_init__(self) -> None:
        for name in ("value", "maximum"):
            object.__setattr__(self, name, finite(f"the {name} of a reward", getattr(self, name)))
        require(isinstance(self.parts, Mapping), f"a reward's parts must be a dict, got {self.parts!r:.80}", Mistake)
        parts = {str(name): finite(f"part {name!r} of a reward", part) for name, part in self.parts.items()}
        object.__setattr__(self, "parts", parts)
        require(
            self.value <= self.maximum or self._at_maximum,
            f"{ABOVE_MAXIMUM}, got {self.value:g} of {self.maximum:g}: pay less, or give Reward "
            "the highest value that a completion can have as `maximum`",
            Mistake,
        )
        require(self.full in (None, True, False), f"full must be True, False or None, got {self.full!r:.80}", Mistake)
        object.__setattr__(self, "full", self.full if self.full is None else bool(self.full))

    @property
    def solved(self) -> bool:
        """Whether this is the reward of a full solution."""
        return self._at_maximum if self.full is None else bool(self.full)

    @property
    def _at_maximum(self) -> bool:
        return same_reward(self.value, self.maximum)


def same_reward(one: float, other: float) -> bool:
    """Whether two rewards are equal but for rounding.

    >>> same_reward(0.1 + 0.2, 0.3), same_reward(0.3, 0.3001)
    (True, False)
    """
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=TINY)


def finite(what: str, number: Any) -> float:  # noqa: ANN401 - a task may give anything
    """The number as a float within the range of float32. A larger one would be infinite in the loss."""
    try:
        held = number.item() if hasattr(number, "item") else number  # of a tensor or an array
        value = math.nan if isinstance(held, str | bytes | bytearray) else float(held)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of a tensor of several values
        value = math.nan
    got = f"{number!r:.80} ({type(number).__name__})" + ": float32 ends at 3.4e38" * math.isfinite(value)
    require(abs(value) <= LARGEST_FLOAT32, f"{what} must be a finite number, got {got}", Mistake)
    return value


@dataclass(frozen=True)
class Turn:
    """The next message to one role. The episode receives that role's completion as text.

    A `frozen` role is played by a model that does not learn (`Task.frozen_opponent`). An `optional` turn, not a role's
    first, that the context has no room for is answered with an empty text; any other fails. `shown_by` says who wrote
    the message, such as `tool`, where rollouts are read.
    """

    role: str
    message: Prompt
    frozen: bool = False
    optional: bool = False
    shown_by: str = ""


@dataclass(frozen=True)
class TurnReward:
    """A reward of the last turn that a role has taken; an episode yields it at any time before its end.

    The rewards of a turn add up, and those of all turns are a part of the role's reward. What counts as solved is said
    by the reward that the episode returns alone. `--turn-credit turn` trains each turn on what it and later turns earn.
    """

    role: str
    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", finite("the reward of a turn", self.value))


@dataclass(frozen=True)
class Job:
    """Work for the reward workers: a picklable function and its arguments.

    A `cheap` job is a pure function of microseconds and runs in this process. One that `waits` for a server runs in a
    thread with a timeout of its own, and need not be picklable. The jobs of a `group` run as one, whose function takes
    a list in place of each argument and returns a list: `minrl.rewards.groups`.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    cheap: bool = False
    waits: bool = False
    group: bool = False


Episode = Generator[Turn | TurnReward | Job, Any, Mapping[str, Reward | float]]
"""One play of a task. It yields turns, rewards of turns and jobs, and returns the reward of each role. Episodes advance
in any order."""


@dataclass(frozen=True)
class Request:
    """A request for one completion. Requests with the same ids share the computation of the prompt.

    `frozen` requests the frozen opponent's completion instead of the policy's.
    """

    ids: list[int]
    seed: int
    max_tokens: int
    frozen: bool = False


@dataclass(frozen=True)
class Completion:
    """A sampled completion: `ids` with the final stop token, and the log-probability (nats) of each at sampling.
    `finish_reason` is `stop`, or `length` if the limit cut it off.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str


@dataclass(frozen=True)
class PlayedTurn:
    """One turn of an episode. `text` is set for frozen roles only; other roles have rollouts."""

    role: str
    seed: int
    finish_reason: str
    text: str | None = None
    shown_by: str = ""


@dataclass(frozen=True)
class LostEpisode:
    """An episode that failed before the policy's first turn. It counts as an unscorable completion without a rollout.

    `role` is empty if it is unknown.
    """

    example_id: str
    role: str = ""
    task: str = ""
    reward: None = None
    num_sampled: float = math.nan
    truncated: bool = False


@dataclass
class Rollout:
    """One role's sequence in an episode.

    A prompt of two tokens and a sampled turn of three (shapes `[L]` = 5):

    ids              [11, 12, 21, 22, 2]
    loss_mask        [ 0,  0,  1,  1, 1]     True where the policy sampled, including the end token
    rollout_logprobs [0., 0., -.1, -2., -.3]  nats, as reported by the engine; 0 elsewhere
    turns            [(2, 5)]                bounds of each sampled turn
    turn_rewards     []                      what each turn earned itself; empty if none was rewarded
    prompt_length    2                       tokens that all rollouts of the group share

    `text` is all that follows the first prompt, in several turns with the messages between them. `slot` and `sample`
    identify the episode in the step; `episode` lists all its turns, `message` is the role's first,
    `task` that of the example, `max_tokens` the task's own limit of a turn (0: the run's).
    """

    ids: list[int]
    loss_mask: list[bool]
    rollout_logprobs: list[float]
    turns: list[tuple[int, int]]
    prompt_length: int
    example_id: str
    group: int
    sample: int
    role: str
    seed: int
    weight_version: int
    finish_reason: str = "stop"
    reward: Reward | None = None
    text: str = ""
    slot: int = 0
    episode: list[PlayedTurn] = field(default_factory=list)
    task: str = ""
    message: Prompt = ""
    max_tokens: int = 0
    turn_rewards: list[float] = field(default_factory=list)

    @property
    def player(self) -> str:
        """Whose baseline its reward moves: the role, of several tasks in its own."""
        return f"{self.task}/{self.role}" if self.task else self.role

    @property
    def truncated(self) -> bool:
        """Whether the length limit cut a turn off."""
        return self.finish_reason == "length"

    @cached_property
    def num_sampled(self) -> int:
        """How many tokens the policy sampled."""
        return sum(self.loss_mask)


@dataclass
class TrainState:
    """The state of a run besides weights and moments."""

    step: int = 0
    examples_drawn: int = 0
    policy_version: int = 0
    skipped_steps: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    baselines: dict[str, float] = field(default_factory=dict)
    temperature: float = 0.0
    solve_rates: dict[str, float] = field(default_factory=dict)
    held_out: list[list[int | float]] = field(default_factory=list)
    """The held-out scores of the trained task so far, a row for each evaluation: `minrl.run.stopping.Score`."""
    tasks: dict[str, "TrainState"] = field(default_factory=dict)
    """The examples drawn and solve rates of each of several tasks."""
    ahead: Any = None
    """With --overlap the next step's `minrl.rollout.Rollouts`, which a checkpoint holds in a file of its own."""

    def of(self, task: str) -> "TrainState":
        """The state that holds the examples drawn and solve rates of a task."""
        return self.tasks.setdefault(task, TrainState()) if task else self
