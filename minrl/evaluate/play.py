"""Plays what is missing: a row of completions.jsonl for each episode, with what each role said and its reward.

Rows are on disk once their batch has been played. A row names what it was made from, by a hash of the sampling and the
example, and counts for every command with the same. A single turn names what its reward was made from too, and is
rewarded again, without a model, where that has changed. An episode of several turns is played again: its programs may
answer differently the next time.

The seeds are those of train.py's own evaluation and depend on the settings alone, not on batches or earlier commands.
"""

import gc
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from loguru import logger

from minrl.dataflow import SOLO, Episode, Example, Job, Message, Reward, Turn, UserError, require
from minrl.engines import make_engine
from minrl.engines.torch_engine import EngineWithOpponent
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import NamedModel
from minrl.models.chat import shown, tool_as_user, tools_of, with_tools_as_text
from minrl.models.distributed import Processes
from minrl.rewards.chat_client import ChatClient, ChatError, ChatRefusal, no_answer
from minrl.rewards.episode import Play, run_jobs
from minrl.rewards.judge import Judge, judged
from minrl.rewards.workers import Failure, Workers
from minrl.rollout import EPISODE, Plan, completion_seed, heard_by, rollout
from minrl.run.base_model import require_known_prompts
from minrl.run.preflight import answer_findings
from minrl.run.setup import load_policy
from minrl.tasks import Task
from minrl.utils.files import append_jsonl, cut_jsonl, fsync, read_jsonl
from minrl.utils.text import digest_of, end_of

SAMPLED, GREEDY = "sampled", "greedy"
PURPOSE = "evaluation"
"""The purpose of the seeds, as in train.py's evaluation."""

NOBODY = ""
"""The role in an episode that failed before the model's first turn."""

TALKS = 4
"""Episodes that a server plays at a time, for each of its concurrent requests."""

Row = dict[str, Any]


class Key(NamedTuple):
    """An episode. `mode` is `sampled` or `greedy`, `number` counts the held-out examples."""

    model: str
    task: str
    mode: str
    number: int
    sample: int
    made_from: str


@dataclass(frozen=True, eq=False)
class Cell:
    """A model on a task. `samples` are the completions of each example by mode; `made_by` is what a completion depends
    on beside weights, mode and example, `scored_by` what its reward does.
    """

    model: NamedModel
    name: str
    task: Task
    examples: Sequence[Example]
    samples: Mapping[str, int]
    made_by: Mapping[str, Any]
    scored_by: Mapping[str, Any]

    @cached_property
    def scored_from(self) -> list[str]:
        """What the rewards of each example are made from; where a reward sees a group, its size too."""
        scored_by = {**self.scored_by, **({"samples": dict(self.samples)} if self.task.group else {})}
        return [digest_of([scored_by, example.fields]) for example in self.examples]

    @cached_property
    def made_from(self) -> dict[str, list[str]]:
        """What the completions of each example are made from, by mode."""
        found = {}
        for mode in self.samples:
            settings = self.made_by if mode == SAMPLED else {**self.made_by, "temperature": 0.0}
            found[mode] = [digest_of([settings, one.id, one.prompt]) for one in self.examples]
            if self.task.episode is not None:
                found[mode] = [digest_of(both) for both in zip(found[mode], self.scored_from, strict=True)]
        return found

    def key(self, mode: str, number: int, sample: int) -> Key:
        """The key of an episode."""
        return Key(self.model.name, self.name, mode, number, sample, self.made_from[mode][number])

    @cached_property
    def keys(self) -> list[Key]:
        """Every episode, in order."""
        numbers = range(len(self.examples))
        return [self.key(mode, n, one) for mode, most in self.samples.items() for n in numbers for one in range(most)]

    def done(self, rows: Mapping[Key, Row]) -> dict[Key, Row]:
        """The rows that need not be played again. Weights that are unknown, as of a model elsewhere, are the same."""
        found = ((key, rows[key]) for key in self.keys if key in rows)
        return {k: row for k, row in found if "error" not in row and len({*self._weights(row)}) < 2}

    def _weights(self, row: Row) -> Iterator[str]:
        return filter(None, (row["weights"], self.model.fingerprint))

    def scored(self, rows: Mapping[Key, Row]) -> dict[Key, Row]:
        """Those of which the rewards are right too."""
        return {k: row for k, row in self.done(rows).items() if row["scored_by"] == self.scored_from[k.number]}

    def missing(self, rows: Mapping[Key, Row]) -> list[Key]:
        """The episodes that are to be played."""
        done = self.done(rows)
        return self._whole([key for key in self.keys if key not in done])

    def _whole(self, keys: Sequence[Key]) -> list[Key]:
        """The episodes; where a reward sees a group, with one of a group all of it."""
        groups = {(key.mode, key.number) for key in keys}
        return [key for key in self.keys if (key.mode, key.number) in groups] if self.task.group else list(keys)

    def unscored(self, rows: Mapping[Key, Row]) -> list[Row]:
        """The rows that lack their rewards."""
        done, scored = self.done(rows), self.scored(rows)
        return [done[key] for key in self._whole([key for key in done if key not in scored]) if key in done]

    def failures(self, rows: Mapping[Key, Row]) -> Iterator[str]:
        """Why servers gave no answer, and judges no verdict."""
        for row in (rows[key] for key in self.keys if key in rows):
            if "error" in row:
                yield row["error"]
            elif not row["scored_by"]:
                yield from filter(None, (one["unscorable"] for one in row["roles"].values()))


def read_rows(path: Path) -> dict[Key, Row]:
    """The rows of a file, of each episode the last. A torn last line, as a kill leaves it, is cut off."""
    cut_jsonl(path, lambda row: isinstance(row, dict) and row.keys() >= {*Key._fields})
    return {_key(row): row for row in read_jsonl(path)}


def add_rows(path: Path, rows: dict[Key, Row], new: Sequence[Row]) -> None:
    """Add new rows to the others and to the file; they are on disk when this returns."""
    append_jsonl(path, new)
    fsync(path)
    rows.update({_key(row): row for row in new})


def _key(row: Row) -> Key:
    return Key(*(row[name] for name in Key._fields))


# An episode as a row


def row_of(
    cell: Cell,
    key: Key,
    said: Mapping[str, Row],
    rewards: Mapping[str, Reward],
    failure: str | None,
    scored: bool = True,
) -> Row:
    """The row of a played episode: what each role said, and its reward or why it has none. Where a judge's server
    failed, a single turn is not scored yet, and a longer episode is an error, which the next command plays again.
    """
    example, row = cell.examples[key.number], {**key._asdict(), "weights": cell.model.fingerprint}
    why = end_of(failure) if failure else None
    unjudged = why is not None and no_answer(why)
    if unjudged and cell.task.episode is not None:
        return {**row, "example": example.id, "error": why}
    roles = {
        role: {**words, **verdict(rewards.get(role), why or (_unrewarded_role(role) if scored else None))}
        for role, words in (said or {NOBODY: {}}).items()
    }
    scored_by = cell.scored_from[key.number] if scored and not unjudged else ""
    return {**row, "scored_by": scored_by, "example": example.id, "category": dict(example.category), "roles": roles}


def verdict(reward: Reward | None, why: str | None) -> Row:
    """The columns of a reward, or of the reason why there is none."""
    if reward is None:
        return {"reward": None, "maximum": None, "solved": False, "parts": {}, "unscorable": why}
    value = {"reward": reward.value, "maximum": reward.maximum, "solved": reward.solved}
    return {**value, "parts": dict(reward.parts), "unscorable": None}


def _unrewarded_role(role: str) -> str:
    return f"the episode returned no reward for {role!r}, which took a turn"


def as_played(cell: Cell, judge: Judge | None, scored: bool) -> Task:
    """The task with the judge's part in its rewards, or without rewards."""
    return judged(cell.task, judge) if scored else replace(cell.task, episode=_unrewarded)


def _unrewarded(example: Example, _: random.Random) -> Episode:
    yield Turn(SOLO, example.prompt)
    return {SOLO: Reward(0.0)}  # which is not kept


def rescored(cell: Cell, rows: Sequence[Row], workers: Workers, judge: Judge | None) -> list[Row]:
    """Single turns with their rewards of now."""
    task = judged(cell.task, judge)
    plays = [Play(task, cell.examples[row["number"]], random.Random(0), (row["mode"], row["number"])) for row in rows]
    for play, row in zip(plays, rows, strict=True):
        play.advance(None)
        if SOLO in row["roles"]:
            play.advance(row["roles"][SOLO]["completion"])
        else:
            play.fail(row["roles"][NOBODY]["unscorable"])
    while run_jobs(plays, workers):
        pass
    return [
        {**row_of(cell, _key(row), row["roles"], play.rewards, play.failure), "weights": row["weights"]}
        for row, play in zip(rows, plays, strict=True)
    ]


# A model in this process


def open_player(
    config: EvaluateConfig,
    model: NamedModel,
    workers: Workers,
    judge: Judge | None,
    opponents: Sequence[NamedModel],
) -> "LocalPlayer | ServedPlayer":
    """The model, loaded or connected."""
    if model.served:
        return ServedPlayer(config, model, workers, judge)
    return LocalPlayer(config, model, workers, judge, opponents)


class LocalPlayer:
    """A checkpoint, a local model or a hub's, with its engine. It plays by the same `rollout` that trains."""

    def __init__(
        self,
        config: EvaluateConfig,
        model: NamedModel,
        workers: Workers,
        judge: Judge | None,
        opponents: Sequence[NamedModel] = (),
    ) -> None:
        self.config, self.workers, self.judge, processes = config, workers, judge, Processes(config)
        self.policy = load_policy(model.name, config, processes)
        self.engine = make_engine(config, self.policy, config.batch_size, lambda: "the same command resumes")
        for opponent in opponents:  # none or one
            frozen = load_policy(opponent.name, config.with_settings(chat_template=""), processes)
            self.engine = EngineWithOpponent(
                self.engine,
                frozen,
                self.policy,
                config.engine_cache_gib,
                temperature=config.opponent_temperature,
                max_tokens=config.opponent_max_tokens,
            )
        self._failed = False

    def play(self, cell: Cell, missing: Sequence[Key]) -> Iterator[list[Row]]:
        """The rows of each batch. Those between the missing ones are played with them."""
        require_known_prompts(self.policy, cell.name, cell.task)
        for finding in answer_findings(self.policy, cell.name, cell.task, cell.examples, cell.task.max_tokens):
            logger.warning(finding)
        batches: dict[tuple[str, int], list[Key]] = defaultdict(list)
        for key in missing:
            batches[key.mode, key.number // max(1, self.config.batch_size // cell.samples[key.mode])].append(key)
        for (mode, _), keys in batches.items():
            numbers, samples = [key.number for key in keys], [key.sample for key in keys]
            yield self._play(cell, mode, range(numbers[0], numbers[-1] + 1), range(min(samples), max(samples) + 1))

    def _play(self, cell: Cell, mode: str, numbers: range, samples: range) -> list[Row]:
        config, temperature = self.config, self.config.temperature if mode == SAMPLED else 0.0
        plan = Plan(
            len(samples), config.max_tokens, temperature, config.seed, PURPOSE, 0, stop_strings=config.stop_strings
        )
        plan = replace(plan, first_slot=numbers.start, first_sample=samples.start)
        task, examples = as_played(cell, self.judge, config.score), cell.examples[numbers.start : numbers.stop]
        played = rollout(self.policy, self.engine, self.workers, task, examples, plan)
        said: dict[tuple[int, int], dict[str, Row]] = defaultdict(dict)
        rewards: dict[tuple[int, int], dict[str, Reward]] = defaultdict(dict)
        for one in played.rollouts:
            text = heard_by(self.policy, one.ids[: one.prompt_length], one.ids[one.prompt_length :])
            said[one.slot, one.sample][one.role] = {
                "prompt": one.message,
                "completion": text if len(one.turns) == 1 else one.text,
                "tokens": one.num_sampled,
                "finish_reason": one.finish_reason,
            }
            if one.reward is not None and config.score:
                rewards[one.slot, one.sample][one.role] = one.reward
        if played.failures and not self._failed:
            self._failed = True
            logger.warning(f"some episodes of {cell.name} cannot be scored, such as:\n{played.failures[0].strip()}")
        episodes = [(number, sample) for number in numbers for sample in samples]
        return [
            row_of(cell, cell.key(mode, *episode), said[episode], rewards[episode], failure, config.score)
            for episode, failure in zip(episodes, played.reasons, strict=True)
        ]

    def close(self) -> None:
        """Release the engine and the weights, before the next model is loaded."""
        self.engine.close()
        del self.engine, self.policy
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# A model behind an OpenAI-compatible server


class ServedPlayer:
    """A server's model, with the temperature, seeds and limits of a local one.

    A failed call makes an error row, and the next command asks again. A request that the server refuses for good, by a
    filter or for its length, counts as not solved and is not asked again. Stop strings are not sent, as servers differ
    in whether a text includes its stop: the text is cut here, where a local model would end.
    """

    def __init__(self, config: EvaluateConfig, model: NamedModel, workers: Workers, judge: Judge | None) -> None:
        self.config, self.workers, self.judge = config, workers, judge
        self.client = ChatClient(
            model.served_name,
            model.base_url or "",
            timeout_s=config.api_timeout_s,
            concurrency=config.api_concurrency,
            retries=config.api_retries,
            key_variable=config.api_key_variable,
        )
        try:
            known = self.client.served_models()
        except ChatError as error:
            self.client.close()
            raise UserError(f"{error}; nothing was asked of the model yet") from error
        if model.served_name not in known:
            names = ", ".join(known[:5]) or "no models"
            logger.warning(f"{model.name}: the server lists {names} and not this one")

    def play(self, cell: Cell, missing: Sequence[Key]) -> Iterator[list[Row]]:
        """The rows of a few episodes at a time, all of which wait for the longest."""
        require_whole(cell)
        size, keys = TALKS * self.config.api_concurrency, list[Key]()
        for key, following in zip(missing, [*missing[1:], None], strict=True):
            keys.append(key)
            together = cell.task.group and following is not None and following[:4] == key[:4]
            if following is not None and (len(keys) < size or together):
                continue
            rows, keys = self._play(cell, keys), []
            yield rows
            if all("error" in row for row in rows):
                logger.error(f"{cell.model.name}: none of {len(rows)} calls succeeded, the last: {rows[-1]['error']}")
                return

    def _play(self, cell: Cell, keys: Sequence[Key]) -> list[Row]:
        task = as_played(cell, self.judge, self.config.score)
        talks = [_Talk(self, cell, task, key) for key in keys]
        while any(talk.play.pending is not None for talk in talks):
            run_jobs([talk.play for talk in talks], self.workers)
            waiting = [talk for talk in talks if isinstance(talk.play.pending, Turn)]
            # in threads that a stopped evaluation does not wait for
            for result in self.workers.run([Job(talk.ask, waits=True) for talk in waiting]):
                assert not isinstance(result, Failure), result.reason
        return [talk.row() for talk in talks]

    def close(self) -> None:
        """End the connections."""
        self.client.close()


def require_whole(cell: Cell) -> None:
    """Refuse prompts that begin the answer, which servers close."""
    prompts = [one.prompt for one in cell.examples]
    begun = any(not isinstance(one, str) and one[-1:] and one[-1]["role"] == "assistant" for one in prompts)
    require(not begun, f"the prompts of {cell.name} begin the answer, which no server continues: use a local model")


class _Talk:
    """An episode that a server plays, with the messages of each role so far."""

    def __init__(self, player: ServedPlayer, cell: Cell, task: Task, key: Key) -> None:
        self.player, self.cell, self.key, self.error = player, cell, key, ""
        self.stops = (*player.config.stop_strings, *task.stop_strings)
        self.messages: dict[str, list[Message]] = defaultdict(list)
        self.said: dict[str, Row] = {}
        rng, group = random.Random(self._seed(EPISODE, 0)), (key.mode, key.number)
        self.play = Play(task, cell.examples[key.number], rng, group)
        self.play.advance(None)

    def _seed(self, role: str, turn: int) -> int:
        return completion_seed(self.player.config.seed, PURPOSE, 0, self.key.number, self.key.sample, role, turn)

    def ask(self) -> None:
        """Answer the turn that is pending."""
        turn, config = self.play.pending, self.player.config
        assert isinstance(turn, Turn)
        messages = self.messages[turn.role]
        turns = sum(one["role"] == "assistant" for one in messages)
        asked = [{"role": "user", "content": turn.message}] if isinstance(turn.message, str) else turn.message
        asked = with_tools_as_text(asked, "system") if tools_of(asked) else asked
        messages += map(tool_as_user, asked)  # a tool's words too: servers take them only as answers to calls
        try:
            reply = self.player.client.complete(
                messages,
                temperature=config.temperature if self.key.mode == SAMPLED else 0.0,
                max_tokens=self.cell.task.max_tokens,
                seed=self._seed(turn.role, turns),
            )
        except ChatRefusal as refusal:
            return self.play.fail(f"{refusal.kind}: {refusal}")
        except ChatError as error:
            self.error = str(error)
            return self.play.fail(self.error)
        ends = [reply.text.index(stop) + len(stop) for stop in self.stops if stop in reply.text]
        text = reply.text[: min(ends, default=None)]
        messages.append({"role": "assistant", "content": text})
        if not turn.frozen:
            tokens = reply.tokens if text == reply.text else None  # unknown if more followed
            self._heard(turn, text, tokens, "stop" if ends else reply.finish_reason)
        return self.play.advance(text)

    def _heard(self, turn: Turn, text: str, tokens: int | None, reason: str) -> None:
        """Add a turn to what its role said. The finish reason is `length` if it is that of one turn."""
        before = self.said.get(turn.role)
        if before is not None:
            text = f"{before['completion']}{shown(turn.message)}{text}"
            tokens = None if None in (tokens, before["tokens"]) else tokens + before["tokens"]
            reasons = (before["finish_reason"], reason)
            reason = "length" if "length" in reasons else next((one for one in reasons[::-1] if one != "stop"), "stop")
        prompt = turn.message if before is None else before["prompt"]
        self.said[turn.role] = {"prompt": prompt, "completion": text, "tokens": tokens, "finish_reason": reason}

    def row(self) -> Row:
        """The row of the episode, which has ended."""
        if self.error:
            example = self.cell.examples[self.key.number].id
            return {**self.key._asdict(), "weights": "", "example": example, "error": self.error}
        scored = self.player.config.score
        rewards = self.play.rewards if scored else {}
        return row_of(self.cell, self.key, self.said, rewards, self.play.failure, scored)
