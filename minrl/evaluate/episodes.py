"""Episodes as rows of completions.jsonl, recorded while they are played.

A single turn is rewarded later, by scoring. An episode of several turns is paid as it is played: what its programs
answer may be different the next time.
"""

import dataclasses
import random
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from minrl.evaluate.plan import PlannedTask
from minrl.evaluate.rows import Key, Row
from minrl.rewards.chat_client import no_answer
from minrl.rollout import EPISODE, completion_seed
from minrl.tasks import Task
from minrl.tasks.checked import named
from minrl.types import SOLO, Episode, Example, Job, Reward, Turn

PURPOSE = "evaluation"
"""The purpose of the seeds: that of train.py's own evaluation, which samples the same completions."""


def episode_rng(seed: int, index: int, sample: int) -> random.Random:
    """The random numbers of an episode, the same as `rollout`'s."""
    return random.Random(completion_seed(seed, PURPOSE, 0, index, sample, EPISODE, 0))


def turn_seed(seed: int, key: Key, role: str, turn: int) -> int:
    """The seed of a completion, the same as `rollout`'s."""
    return completion_seed(seed, PURPOSE, 0, key.index, key.sample, role, turn)


def through_stop(text: str, stop_strings: Sequence[str]) -> str:
    """The text up to the end of the first stop string.

    >>> through_stop("one, two. three", ["two", ".", "four"])
    'one, two'
    """
    return text[: min((text.index(stop) + len(stop) for stop in stop_strings if stop in text), default=len(text))]


@dataclasses.dataclass
class Record:
    """The turns of an episode so far with their completions, and its rewards once it has ended."""

    turns: list[tuple[Turn, str]] = dataclasses.field(default_factory=list)
    rewards: Mapping[str, Reward] = dataclasses.field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        """The roles of the evaluated model that have spoken, in order."""
        return list(dict.fromkeys(turn.role for turn, _ in self.turns if not turn.frozen))


class Recorder:
    """A task whose episodes are recorded; a single turn is asked and not rewarded. A completion ends with its first
    stop string, which an engine may have sampled as a part of a longer token.
    """

    def __init__(self, task: Task, stop_strings: Sequence[str] = ()) -> None:
        self.records: list[Record] = []
        self._task, self._stop_strings = task, (*stop_strings, *task.stop_strings)
        self.task = dataclasses.replace(task, episode=self._episode)

    def _episode(self, example: Example, rng: random.Random) -> Episode:
        record = Record()
        self.records.append(record)
        episode = _prompt(example) if self._task.episode is None else self._task.play(example, rng)
        return self._recorded(episode, record)

    def _recorded(self, episode: Episode, record: Record) -> Generator[Turn | Job, Any, Mapping[str, Reward]]:
        value = None
        try:
            while True:
                asked = episode.send(value)
                value = yield asked
                if isinstance(asked, Turn):
                    value = through_stop(value, self._stop_strings)
                    record.turns.append((asked, value))
        except StopIteration as end:
            record.rewards = end.value
            return end.value
        finally:
            episode.close()


def _prompt(example: Example) -> Episode:
    yield Turn(SOLO, example.prompt)
    return {}


def row_of(
    key: Key, task: PlannedTask, record: Record, facts: Mapping[str, Mapping[str, Any]], failure: str | None
) -> Row:
    """A row of completions.jsonl. `facts` are the tokens and the finish reason of each role. An episode that lacks a
    judge's verdict is played again by the next command.
    """
    example = task.examples[key.index]
    if failure is not None and no_answer(reason := failure.strip().splitlines()[-1]):
        return {**key.as_row(), "example": example.id, "error": reason}
    row: Row = {**key.as_row(), "example": example.id, "category": dict(example.category)}
    if len(record.turns) == 1 and list(facts) == [SOLO]:
        (turn, completion), *_ = record.turns
        row.update({"prompt": turn.message, "completion": completion, **facts[SOLO]})
    else:
        row["turns"] = [
            {"role": turn.role, "prompt": turn.message, "completion": text, **({"frozen": True} if turn.frozen else {})}
            for turn, text in record.turns
        ]
        row["roles"] = {role: dict(of_role) for role, of_role in facts.items()}
    if failure is not None:
        row["failure"] = failure
    elif task.task.episode is not None:
        rewards = named(task.task.name, record.rewards)
        row["rewards"] = {role: dataclasses.asdict(reward) for role, reward in rewards.items()}
    return row


def facts_of(row: Row) -> Mapping[str, Mapping[str, Any]]:
    """The tokens and the finish reason of each role of a row."""
    return row["roles"] if "roles" in row else {SOLO: {name: row[name] for name in ("tokens", "finish_reason")}}
