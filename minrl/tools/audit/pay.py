"""What a task pays for given texts, and how its code breaks, in the reward workers that a run has.

A reward is called in a worker under its deadline; one that cannot be sent there but is cheap is called here, as a run
does. An episode is played in this process, as in a run, with the same text in every turn; its jobs go to the workers.
"""

import copy
import functools
import io
import math
import pickle
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from minrl.models.messages import text_of
from minrl.rewards.episode import Play
from minrl.rewards.workers import Failure, Workers
from minrl.tasks import Task
from minrl.tasks.checked import MISTAKE, Checking, as_reward
from minrl.tasks.columns import ColumnReward
from minrl.tasks.grader import Grader, Reason
from minrl.types import Example, Job, Mistake, Prompt, Turn

MOST_TURNS = 1000
"""Turns after which an episode is taken for endless."""

SHOWN = 200
"""Characters of a reason, or of what is printed, that are kept."""

Kind = Literal["paid", "none", "frozen", "raises", "example", "nan", "types", "slow", "crash"]

BROKE: dict[Reason, Kind] = {"timeout": "slow", "memory": "crash", "crash": "crash"}


@dataclass(frozen=True)
class Paid:
    """What was paid, or how the task's code failed. `none`: a function of TRL's form paid None, that is not at all.
    `frozen`: the episode asked for a model that does not learn, which is not here.
    """

    kind: Kind = "paid"
    value: float = 0.0
    solved: bool = False
    maximum: float = 1.0
    reason: str = ""
    printed: str = ""

    @property
    def same(self) -> tuple[Kind, float]:
        """What two calls must agree in."""
        return self.kind, self.value

    @property
    def failed(self) -> bool:
        """Whether the task's code did something that it must not."""
        return self.kind not in ("paid", "none", "frozen")


def pay(task: Task, asked: Sequence[tuple[Example, str | None]], workers: Workers) -> list[Paid]:
    """What the task pays for each text. None stands for a copy of what the policy is shown, turn by turn."""
    if task.episode is not None:
        return _played(task, asked, workers)
    assert task.reward is not None
    grader = Grader(functools.partial(attempt, task.name, task.reward), broke, task.warm, task.seconds)
    here = task.cheap and not _picklable(grader)
    texts = [(shown(example.prompt) if text is None else text, example) for example, text in asked]
    return [_unless_failed(result) for result in workers.run([Job(grader, each, cheap=here) for each in texts])]


def pay_together(task: Task, asked: Sequence[tuple[Example, str]], workers: Workers) -> list[Paid]:
    """What a function of TRL's form pays for the texts in one call."""
    assert isinstance(task.reward, ColumnReward)
    examples, texts = [example for example, _ in asked], [text for _, text in asked]
    (result,) = workers.run([Job(Grader(task.reward.together, broke), (texts, examples))])
    if isinstance(result, Failure | Paid):
        return [_unless_failed(result)] * len(asked)
    return [Paid("none") if one is None else Paid(value=float(one)) for one in result]


def shown(prompt: Prompt) -> str:
    """The text of a prompt, of chat messages without their roles."""
    return prompt if isinstance(prompt, str) else "\n".join(map(text_of, prompt))


def broke(reason: Reason) -> Paid:
    """The result of a reward that a completion broke."""
    said = {"timeout": "no reward within the deadline", "memory": "out of memory, or too deep a recursion"}
    return Paid(BROKE[reason], reason=said.get(reason, "the process of the reward ended"))


def attempt(task: str, reward: Callable[[str, Example], Any], completion: str, example: Example) -> Paid:
    """Call a reward, and tell apart what it does wrong. Runs in a worker."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            with Checking(task, example):
                paid = _called(reward, completion, example)
        except Mistake as error:  # what was paid and raised is told apart inside: this is of the example
            paid = Paid("example", reason=_line(error))
    return replace(paid, printed=printed.getvalue().strip()[:SHOWN])


def _called(reward: Callable[[str, Example], Any], completion: str, example: Example) -> Paid:
    try:
        given = reward(completion, example)
    except (MemoryError, RecursionError):
        raise  # the grader knows these
    except Mistake as error:  # of a Reward that the function made, or of a list that it returned
        return Paid("types" if isinstance(reward, ColumnReward) else "nan", reason=_line(error))
    except (Exception, SystemExit) as error:  # the task's own code
        return Paid("raises", reason=f"{type(error).__name__}: {_line(error)}")
    if given is None and isinstance(reward, ColumnReward):
        return Paid("none")
    try:
        paid = as_reward(given)
    except Mistake as error:
        return Paid("nan" if _is_number(given) else "types", reason=_line(error))
    return Paid(value=paid.value, solved=paid.solved, maximum=paid.maximum)


def _is_number(given: Any) -> bool:  # noqa: ANN401 - a task's code may return anything
    try:
        return not isinstance(given, str | bytes) and isinstance(float(given), float)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _unless_failed(result: Paid | Failure) -> Paid:
    return (
        Paid("raises", reason=_line(result.reason.strip().splitlines()[-1])) if isinstance(result, Failure) else result
    )


def _line(error: object) -> str:
    return " ".join(str(error).split())[:SHOWN]


def _picklable(grader: Grader) -> bool:
    try:
        return bool(pickle.dumps(grader))
    except Exception:  # a task's objects may raise anything
        return False


def _played(task: Task, asked: Sequence[tuple[Example, str | None]], workers: Workers) -> list[Paid]:
    """Play all episodes together: each round their jobs run, and every turn that is due is answered with the text."""
    before = [copy.deepcopy(example.fields) for example, _ in asked]
    plays = [Play(task, example, Random(0)) for example, _ in asked]
    ends: dict[int, Paid] = {}
    due: dict[int, Any] = dict.fromkeys(range(len(plays)))
    for _ in range(MOST_TURNS):
        if not due:
            break
        jobs: dict[int, Job] = {}
        for number, value in due.items():
            plays[number].advance(value)
            pending = plays[number].pending
            if isinstance(pending, Turn) and pending.frozen:
                ends[number] = Paid("frozen")
                plays[number].fail("it is played against a model that is not here")
            elif isinstance(pending, Job):
                jobs[number] = pending
        answers = {n: _answer(plays[n].pending, asked[n][1]) for n in due if isinstance(plays[n].pending, Turn)}
        due = answers | dict(zip(jobs, workers.run(list(jobs.values())), strict=True))
    ends |= {number: Paid("slow", reason=f"no end after {MOST_TURNS} turns") for number in due}
    return [ends.get(n) or _end(play, asked[n][0], before[n]) for n, play in enumerate(plays)]


def _answer(turn: Turn | Job | None, text: str | None) -> str:
    assert isinstance(turn, Turn)
    return shown(turn.message) if text is None else text


def _end(play: Play, example: Example, before: object) -> Paid:
    """What a finished episode paid. Where several roles played, the least: what one wins, another may lose."""
    if play.problem is not None:
        kind: Kind = "types" if play.problem.startswith(MISTAKE) else "raises"
        kind = "example" if kind == "types" and example.fields != before else kind
        return Paid(kind, reason=_line(play.problem.strip().splitlines()[-1]))
    least = min(play.rewards.values(), key=lambda reward: reward.value)
    assert math.isfinite(least.value)
    return Paid(value=least.value, solved=least.solved, maximum=least.maximum)
