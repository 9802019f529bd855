"""Episodes, recorded and replayed.

A row of completions.jsonl holds every turn. Scoring replays the episode with the recorded completions as answers: its
`rng` has the same seed, and its jobs return their recorded results (see `results`). The rewards are computed then.
"""

import dataclasses
import json
import random
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from minrl.evaluate.plan import PlannedTask
from minrl.evaluate.results import packed
from minrl.evaluate.rows import Key, Row
from minrl.rollout import EPISODE, completion_seed
from minrl.tasks import Task
from minrl.types import SOLO, Episode, Example, Job, Reward, Turn
from minrl.utils.text import json_text

JOBS = "jobs"
"""The column with the results of an episode's jobs. Rows of earlier versions lack it."""

PURPOSE = "evaluation"
"""The purpose of the seeds. It is that of train.py's own evaluation, which samples the same completions."""


@dataclasses.dataclass
class Said:
    """The turns of an episode so far with their completions, and the results of its jobs."""

    turns: list[tuple[Turn, str]] = dataclasses.field(default_factory=list)
    answered: list[tuple[int, Any]] = dataclasses.field(default_factory=list)

    @property
    def roles(self) -> list[str]:
        """The roles of the evaluated model that have spoken, in order."""
        return list(dict.fromkeys(turn.role for turn, _ in self.turns if not turn.frozen))

    @property
    def results(self) -> list[Any]:
        """The jobs' results that a replay needs. A reward after the last turn is none: scoring computes it."""
        told = [after < len(self.turns) or not isinstance(result, Reward) for after, result in self.answered]
        last = max((number for number, one in enumerate(told, 1) if one), default=0)
        return [result for _, result in self.answered[:last]]


class Recorder:
    """A task whose episodes are recorded. A single turn is rewarded later, by scoring. A completion ends with its first
    stop string, which an engine may have sampled as a part of a longer token.
    """

    def __init__(self, task: Task, stop_strings: Sequence[str] = ()) -> None:
        self.records: list[Said] = []
        self._task, self._stop_strings = task, (*stop_strings, *task.stop_strings)
        self.task = dataclasses.replace(task, episode=self._episode)

    def _episode(self, example: Example, rng: random.Random) -> Episode:
        said = Said()
        self.records.append(said)
        episode = _prompt(example) if self._task.episode is None else self._task.play(example, rng)
        return self._recorded(episode, said)

    def _recorded(self, episode: Episode, said: Said) -> Generator[Turn | Job, Any, Mapping[str, Reward]]:
        """The episode, with its answers recorded."""
        value = None
        try:
            while True:
                asked = episode.send(value)
                value = yield asked
                if isinstance(asked, Turn):
                    value = through_stop(value, self._stop_strings)
                    said.turns.append((asked, value))
                else:
                    said.answered.append((len(said.turns), value))
        except StopIteration as end:
            return end.value
        finally:
            episode.close()


def _prompt(example: Example) -> Episode:
    yield Turn(SOLO, example.prompt)
    return {}


def through_stop(text: str, stop_strings: Sequence[str]) -> str:
    """The text up to the end of the first stop string.

    >>> through_stop("one, two. three", ["two", ".", "four"])
    'one, two'
    """
    return text[: min((text.index(stop) + len(stop) for stop in stop_strings if stop in text), default=len(text))]


def episode_rng(seed: int, index: int, sample: int) -> random.Random:
    """The random numbers of an episode, the same as `rollout`'s."""
    return random.Random(completion_seed(seed, PURPOSE, 0, index, sample, EPISODE, 0))


def turn_seed(seed: int, key: Key, role: str, turn: int) -> int:
    """The seed of a completion, the same as `rollout`'s."""
    return completion_seed(seed, PURPOSE, 0, key.index, key.sample, role, turn)


def row_of(
    key: Key, task: PlannedTask, said: Said, spoken: Mapping[str, Mapping[str, Any]], failure: str | None
) -> Row:
    """A row of completions.jsonl. `spoken` has the tokens and the finish reason of each role."""
    example = task.examples[key.index]
    row: Row = {**key.as_row(), "example": example.id, "category": dict(example.category)}
    if len(said.turns) == 1 and list(spoken) == [SOLO]:
        (turn, completion), *_ = said.turns
        row.update({"prompt": turn.message, "completion": completion, **spoken[SOLO]})
    else:
        row["turns"] = [
            {"role": turn.role, "prompt": turn.message, "completion": text, **({"frozen": True} if turn.frozen else {})}
            for turn, text in said.turns
        ]
        row["roles"] = {role: dict(facts) for role, facts in spoken.items()}
    if task.task.episode is not None:
        row[JOBS] = packed(said.results, task.programs)
    return row if failure is None else {**row, "failure": failure}


@dataclasses.dataclass(frozen=True)
class SaidTurn:
    """A turn of a row."""

    role: str
    prompt: Any
    completion: str


def turns_of(row: Row) -> list[SaidTurn]:
    """The turns of a row, in order."""
    if "turns" in row:
        return [SaidTurn(turn["role"], turn["prompt"], turn["completion"]) for turn in row["turns"]]
    return [SaidTurn(SOLO, row["prompt"], row["completion"])]


def as_stored(message: Any) -> Any:  # noqa: ANN401 - a prompt, as JSON gives it back
    """A prompt after a round trip through JSON."""
    return json.loads(json_text(message))


def spoken_of(row: Row) -> dict[str, dict[str, Any]]:
    """The tokens and the finish reason of each role of a row."""
    if "roles" in row:
        return row["roles"]
    return {SOLO: {"tokens": row["tokens"], "finish_reason": row["finish_reason"]}}
