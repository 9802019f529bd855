"""The first stage: what is evaluated, and a completion of every episode that has none, model after model.

An evaluation is models x tasks x modes x examples x samples; each episode has a `Key`. Its seeds are those of
train.py's own evaluation and depend on the settings alone, so that it is sampled alike whenever it is sampled. A row of
completions.jsonl is on disk as soon as its batch (of a local model) or its episode (of a server) has been played.

A single turn is rewarded later, by `score`. An episode of several turns is rewarded as it is played, because its
programs may answer differently the next time.
"""

import dataclasses
import gc
import math
import random
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from loguru import logger

from minrl.dataflow import SOLO, Episode, Example, Job, Message, Prompt, Reward, Turn, UserError, require
from minrl.engines import make_engine
from minrl.engines.torch_engine import EngineWithOpponent
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import NamedModel
from minrl.evaluation import MIN_SAMPLES
from minrl.models.chat import told_by_user
from minrl.models.distributed import Processes
from minrl.policy import Policy
from minrl.rewards.chat_client import CONTENT_FILTER, ChatClient, ChatError, ChatRefusal, ChatReply, no_answer
from minrl.rewards.episode import Play
from minrl.rewards.judge import Judge, judged
from minrl.rewards.workers import Workers
from minrl.rollout import EPISODE, Plan, completion_seed, rollout
from minrl.run.base_model import check_words, prompts_read
from minrl.run.preflight import answer_findings
from minrl.run.setup import load_policy
from minrl.tasks import Task
from minrl.tasks.checked import named
from minrl.utils.console import activity
from minrl.utils.files import append_jsonl, fsync, is_torn, read_jsonl, write_jsonl

SAMPLED, GREEDY = "sampled", "greedy"
PURPOSE = "evaluation"
"""The purpose of the seeds, as in train.py's evaluation."""

FAILURES_IN_A_ROW = 20
"""Failed calls in a row after which a server is not asked any more."""

Row = dict[str, Any]


class Key(NamedTuple):
    """An episode. `mode` is `sampled` or `greedy`, `index` counts the held-out examples."""

    model: str
    task: str
    mode: str
    index: int  # type: ignore[assignment]  # not the method of a tuple, which nobody calls
    sample: int


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row."""
    return Key(*(row[name] for name in Key._fields))


@dataclass(frozen=True)
class EvaluatedTask:
    """A task, its held-out examples, and the number of completions of each by mode."""

    name: str
    task: Task
    examples: Sequence[Example]
    samples: Mapping[str, int] = field(default_factory=dict)

    def keys(self, model: NamedModel) -> Iterator[Key]:
        """Every episode of the task by the model."""
        for mode, samples in self.samples.items():
            for index in range(len(self.examples)):
                yield from (Key(model.name, self.name, mode, index, sample) for sample in range(samples))


@dataclass(frozen=True)
class EvaluationPlan:
    """Models and tasks, in the order in which they were named."""

    config: EvaluateConfig
    models: Sequence[NamedModel]
    tasks: Sequence[EvaluatedTask]
    opponents: Sequence[NamedModel] = ()

    def all_keys(self) -> Iterator[Key]:
        """Every episode, in the order of the finished files."""
        return (key for model in self.models for task in self.tasks for key in task.keys(model))

    def with_judge(self, judge: Judge | None) -> "EvaluationPlan":
        """The plan with the judge's part in the rewards of episodes of several turns."""
        played = [replace(t, task=judged(t.task, judge)) if t.task.episode is not None else t for t in self.tasks]
        return replace(self, tasks=played)

    def with_samples(self, rows: Iterable[Key]) -> "EvaluationPlan":
        """The plan with its numbers of samples. Without `--samples` there are as many as in the rows, or enough for
        `MIN_SAMPLES` in all; at temperature 0 there is a greedy completion alone.
        """
        config, held = self.config, {task.name: 0 for task in self.tasks}
        for key in rows:
            if key.mode == SAMPLED and key.task in held:
                held[key.task] = max(held[key.task], key.sample + 1)

        def samples(task: EvaluatedTask) -> dict[str, int]:
            automatic = held[task.name] or math.ceil(MIN_SAMPLES / len(task.examples))
            sampled = {SAMPLED: config.samples or max(automatic, *config.pass_at, 1)} if config.temperature else {}
            return {**sampled, **({GREEDY: 1} if config.greedy or not sampled else {})}

        return replace(self, tasks=[replace(task, samples=samples(task)) for task in self.tasks])

    def missing(self, model: NamedModel, task: EvaluatedTask, rows: Mapping[Key, Row]) -> list[Key]:
        """The episodes that have no completion. A failed call is none."""
        return [key for key in task.keys(model) if "error" in rows.get(key, {"error": ""})]


def read_rows(path: Path) -> dict[Key, Row]:
    """The whole rows of a file, of each episode the last. Damaged lines, as a kill or a full disk leaves them, are left
    out and reported.
    """
    damaged: list[object] = []
    rows = read_jsonl(path, damaged.append)
    whole = [row for row in rows if isinstance(row, dict) and row.keys() >= set(Key._fields)]
    lost = len(damaged) + len(rows) - len(whole) + is_torn(path)
    if lost:
        logger.warning(f"{path}: {lost} damaged lines are left out; they will be made again")
    return {key_of(row): row for row in whole}


def append_rows(path: Path, rows: dict[Key, Row], new: Sequence[Row]) -> None:
    """Add new rows to the others and to the file; they are on disk when this returns."""
    append_jsonl(path, new)
    fsync(path)
    rows.update({key_of(row): row for row in new})


def write_in_order(path: Path, plan: EvaluationPlan, rows: Mapping[Key, Row]) -> None:
    """Write every row once, those of the plan first and in its order."""
    write_jsonl(path, (rows[key] for key in dict.fromkeys([*(key for key in plan.all_keys() if key in rows), *rows])))


def generate(plan: EvaluationPlan, path: Path, rows: dict[Key, Row], workers: Workers) -> None:
    """Add the missing rows to `rows` and to the file."""
    keys = list(plan.all_keys())
    done = sum("error" not in rows.get(key, {"error": ""}) for key in keys)
    with activity("generating", len(keys), done) as report:
        for model in plan.models:
            missing = [plan.missing(model, task, rows) for task in plan.tasks]
            if not any(missing):
                continue
            logger.info(f"generating with {model.name}")
            with closing(sampler_of(plan, model, workers)) as sampler:
                for task, of_task in zip(plan.tasks, missing, strict=True):
                    for new in sampler.play(task, of_task) if of_task else ():
                        append_rows(path, rows, new)
                        done += len(new)
                        report(min(done, len(keys)), model.label)
            del sampler  # one model is released before the next one is loaded
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def sampler_of(plan: EvaluationPlan, model: NamedModel, workers: Workers) -> "ServedSampler | LocalSampler":
    """The model, connected or loaded."""
    if model.served:
        return ServedSampler(plan.config, model, workers)
    return LocalSampler(plan.config, model, workers, plan.opponents)


# Episodes as rows


def episode_rng(seed: int, key: Key) -> random.Random:
    """The random numbers of an episode, the same as `rollout`'s."""
    return random.Random(completion_seed(seed, PURPOSE, 0, key.index, key.sample, EPISODE, 0))


def turn_seed(seed: int, key: Key, role: str, turn: int) -> int:
    """The seed of a completion, the same as `rollout`'s."""
    return completion_seed(seed, PURPOSE, 0, key.index, key.sample, role, turn)


def through_stop(text: str, stop_strings: Sequence[str]) -> str:
    """The text up to the end of the first stop string.

    >>> through_stop("one, two. three", ["two", ".", "four"])
    'one, two'
    """
    return text[: min((text.index(stop) + len(stop) for stop in stop_strings if stop in text), default=len(text))]


@dataclass
class Record:
    """The turns of an episode so far with their completions, and its rewards once it has ended."""

    turns: list[tuple[Turn, str]] = field(default_factory=list)
    rewards: Mapping[str, Reward] = field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        """The roles of the evaluated model that have spoken, in order."""
        return list(dict.fromkeys(turn.role for turn, _ in self.turns if not turn.frozen))


class Recorder:
    """A task whose episodes are recorded; a single turn is sampled and not rewarded. A completion ends with its first
    stop string, which an engine may have sampled as a part of a longer token.
    """

    def __init__(self, task: Task, stop_strings: Sequence[str]) -> None:
        self.records: list[Record] = []
        self._task, self._stop_strings = task, (*stop_strings, *task.stop_strings)
        self.task = replace(task, episode=self._episode)

    def _episode(self, example: Example, rng: random.Random) -> Episode:
        self.records.append(Record())
        episode = _single_turn(example) if self._task.episode is None else self._task.play(example, rng)
        return self._recorded(episode, self.records[-1])

    def _recorded(self, episode: Episode, record: Record) -> Generator[Turn | Job, Any, Mapping[str, Reward]]:
        value = None
        with closing(episode):
            while True:
                try:
                    asked = episode.send(value)
                except StopIteration as end:
                    record.rewards = end.value
                    return end.value
                value = yield asked
                if isinstance(asked, Turn):
                    value = through_stop(value, self._stop_strings)
                    record.turns.append((asked, value))


def _single_turn(example: Example) -> Episode:
    yield Turn(SOLO, example.prompt)
    return {}


def row_of(
    key: Key, task: EvaluatedTask, record: Record, facts: Mapping[str, Mapping[str, Any]], failure: str | None
) -> Row:
    """A row of completions.jsonl. `facts` are the tokens and the finish reason of each role. An episode that lacks a
    judge's verdict is an error, which the next command plays again.
    """
    example = task.examples[key.index]
    if failure is not None and no_answer(reason := failure.strip().splitlines()[-1]):
        return {**key._asdict(), "example": example.id, "error": reason}
    row: Row = {**key._asdict(), "example": example.id, "category": dict(example.category)}
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


# A model in this process


class Batch(NamedTuple):
    """Episodes that are played together: consecutive samples of consecutive examples."""

    mode: str
    examples: range
    samples: range


def batches(keys: Iterable[Key], size: int) -> Iterator[Batch]:
    """Batches of at most `size` episodes in which all keys are.

    >>> list(batches([Key("m", "t", "sampled", index, sample) for index in range(3) for sample in (2, 3)], 8))
    [Batch(mode='sampled', examples=range(0, 2), samples=range(2, 4)), \
Batch(mode='sampled', examples=range(2, 3), samples=range(2, 4))]
    """
    for mode, of_mode in groupby(keys, key=lambda key: key.mode):
        samples: dict[int, list[int]] = {}
        for key in of_mode:
            samples.setdefault(key.index, []).append(key.sample)
        together = max(1, size // (1 + max(map(max, samples.values()))))
        for _, found in groupby(samples.items(), key=lambda one: one[0] // together):
            block = dict(found)
            first, end = min(map(min, block.values())), max(map(max, block.values())) + 1
            for start in range(first, end, size):
                yield Batch(mode, range(min(block), max(block) + 1), range(start, min(start + size, end)))


class LocalSampler:
    """A checkpoint, a local model or a hub's, with its engine. It plays by the same `rollout` that trains."""

    def __init__(
        self, config: EvaluateConfig, model: NamedModel, workers: Workers, opponents: Sequence[NamedModel] = ()
    ) -> None:
        self.config, self.model, self.workers = config, model, workers
        processes = Processes(config.model)
        self.policy = load_policy(model.name, config.model, processes)
        self.engine = make_engine(config.engine, self.policy, config.batch_size, lambda: "the same command resumes")
        for opponent in opponents:  # none or one
            frozen = load_policy(opponent.name, config.model, processes)
            self.engine = EngineWithOpponent(self.engine, frozen, self.policy, config.engine.engine_cache_gib)

    def check(self, task: EvaluatedTask) -> None:
        """Refuse a task whose prompts the model does not take."""
        check_prompts(self.policy, self.model, task, self.engine.context_length, self.config.limit_of(task.name))

    def play(self, task: EvaluatedTask, keys: Sequence[Key]) -> Iterator[list[Row]]:
        """The rows of each batch."""
        self.check(task)
        for batch in batches(keys, self.config.batch_size):
            yield self._play(task, batch)

    def close(self) -> None:
        """Release the engine and the weights."""
        self.engine.close()
        del self.engine, self.policy

    def _play(self, task: EvaluatedTask, batch: Batch) -> list[Row]:
        config, recorder = self.config, Recorder(task.task, self.config.stop_strings)
        plan = Plan(
            group_size=len(batch.samples),
            max_tokens=config.max_tokens,
            temperature=config.temperature if batch.mode == SAMPLED else 0.0,
            seed=config.seed,
            purpose=PURPOSE,
            step=0,
            first_slot=batch.examples.start,
            first_sample=batch.samples.start,
            stop_strings=config.stop_strings,
        )
        examples = task.examples[batch.examples.start : batch.examples.stop]
        played = rollout(self.policy, self.engine, self.workers, recorder.task, examples, plan)
        keys = [Key(self.model.name, task.name, batch.mode, i, n) for i in batch.examples for n in batch.samples]
        rollouts, rows = iter(played.rollouts), []
        for key, record, failure in zip(keys, recorder.records, played.reasons, strict=True):
            own = zip(record.roles, rollouts, strict=False)  # in this order: no rollout is taken beyond the roles
            facts = {role: {"tokens": one.num_sampled, "finish_reason": one.finish_reason} for role, one in own}
            rows.append(row_of(key, task, record, facts, failure))
        assert next(rollouts, None) is None, "a rollout of a role that was not recorded"
        return rows


def check_prompts(policy: Policy, model: NamedModel, task: EvaluatedTask, limit: int, max_tokens: int) -> None:
    """Refuse a model that has no room in `limit` tokens for any prompt, or lacks their words. Warn of prompts and
    answers that are too long. The prompts of a task's own episode are known only when it is played.
    """
    if task.task.episode is not None:
        return
    read = prompts_read(policy, [example.prompt for example in task.examples])
    check_words(policy, f"the prompts of {task.name} under {model.name}", read)
    full = sum(len(ids) >= limit for ids, _ in read)
    require(
        full < len(read),
        f"no prompt of {task.name} leaves room for a completion in the {limit} tokens that {model.name} takes: choose "
        "shorter examples or a longer context (another model, or --engine-context-length where it is set)",
    )
    if full:
        logger.warning(
            f"{full} of {len(read)} prompts of {task.name} fill the {limit} tokens that {model.name} takes: they are "
            "unscorable and count as not solved"
        )
    for finding in answer_findings(policy, task.name, task.task, task.examples, max_tokens):
        logger.warning(finding)


# A model behind an OpenAI-compatible server


class ServedSampler:
    """A server's model, with the temperature, seeds and limits of a local one, many episodes at a time.

    A failed call makes an error row, and the next command asks again. A request that the server refuses for good, by a
    filter or for its length, counts as not solved and is not asked again. Stop strings are not sent, as servers differ
    in whether a text includes its stop: the text is cut here, where a local model would end.
    """

    def __init__(self, config: EvaluateConfig, model: NamedModel, workers: Workers) -> None:
        self.config, self.model, self.workers = config, model, workers
        api = config.api
        self.client = ChatClient(
            model.served_name,
            model.base_url or "",
            timeout_s=api.api_timeout_s,
            concurrency=api.api_concurrency,
            retries=api.api_retries,
            key_variable=api.api_key_variable,
        )
        self._pool = ThreadPoolExecutor(api.api_concurrency)
        self._in_workers = threading.Lock()

    def check(self, task: EvaluatedTask) -> None:
        """Refuse a task whose prompts begin the answer, which servers close, and a server that does not answer."""
        prompts = [one.prompt for one in task.examples]
        begun = any(not isinstance(one, str) and one[-1:] and one[-1]["role"] == "assistant" for one in prompts)
        require(not begun, f"the prompts of {task.name} begin the answer, which no server continues: use a local model")
        try:
            known = self.client.served_models()
        except ChatError as error:
            raise UserError(f"{error}; nothing was asked of the model yet") from error
        if self.model.served_name not in known:
            names = ", ".join(known[:5]) or "no models"
            logger.warning(f"{self.model.name}: the server lists {names} and not this one")

    def play(self, task: EvaluatedTask, keys: Sequence[Key]) -> Iterator[list[Row]]:
        """The rows of the episodes, in the order in which they end."""
        futures, failures = [self._pool.submit(self._play, task, key) for key in keys], 0
        for future in as_completed(futures):
            if future.cancelled():
                continue
            row = future.result()
            yield [row]
            failures = failures + 1 if "error" in row else 0
            if failures == FAILURES_IN_A_ROW:
                logger.error(f"{self.model.name}: {failures} failures in a row, the last: {row['error']}")
                for waiting in futures:
                    waiting.cancel()

    def close(self) -> None:
        """End the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.client.close()  # ends the calls that threads of the pool still wait for

    def _play(self, task: EvaluatedTask, key: Key) -> Row:
        """One episode from its first turn to its last."""
        example, recorder = task.examples[key.index], Recorder(task.task, self.config.stop_strings)
        play = Play(recorder.task, example, episode_rng(self.config.seed, key))
        conversations: dict[str, _Conversation] = {}
        refused: str | None = None
        play.advance(None)
        try:
            while (asked := play.pending) is not None:
                if isinstance(asked, Job):
                    with self._in_workers:
                        (answer,) = self.workers.run([asked])
                else:
                    answer = self._ask(task, key, asked, conversations.setdefault(asked.role, _Conversation()))
                play.advance(answer)
        except ChatRefusal as refusal:
            play.fail(str(refusal))
            refused = refusal.kind
        except ChatError as error:
            return {**key._asdict(), "example": example.id, "error": str(error)}
        (record,) = recorder.records
        facts = {role: conversations[role].facts() for role in record.roles}
        if any(one["finish_reason"] == CONTENT_FILTER for one in facts.values()):
            refused = refused or CONTENT_FILTER
        return {**row_of(key, task, record, facts, play.failure), **({"refused": refused} if refused else {})}

    def _ask(self, task: EvaluatedTask, key: Key, turn: Turn, conversation: "_Conversation") -> str:
        conversation.messages += as_messages(turn.message)
        reply = self.client.complete(
            conversation.messages,
            temperature=self.config.temperature if key.mode == SAMPLED else 0.0,
            max_tokens=self.config.limit_of(key.task),
            seed=turn_seed(self.config.seed, key, turn.role, len(conversation.replies)),
        )
        reply = until_stop(reply, (*self.config.stop_strings, *task.task.stop_strings))
        conversation.messages.append({"role": "assistant", "content": reply.text})
        conversation.replies.append(reply)
        return reply.text


@dataclass
class _Conversation:
    """The messages and replies of one role so far."""

    messages: list[Message] = field(default_factory=list)
    replies: list[ChatReply] = field(default_factory=list)

    def facts(self) -> Mapping[str, Any]:
        """The columns beside the text. `tokens` is None if the server did not count them; `length` is the finish reason
        of all turns if it is that of one, else the last reason other than `stop` is.
        """
        known = [reply.usage.completion_tokens for reply in self.replies if reply.usage.completion_tokens is not None]
        reasons = [reply.finish_reason for reply in self.replies if reply.finish_reason != "stop"] or ["stop"]
        return {
            "tokens": sum(known) if len(known) == len(self.replies) else None,
            "finish_reason": "length" if "length" in reasons else reasons[-1],
        }


def until_stop(reply: ChatReply, stop_strings: Sequence[str]) -> ChatReply:
    """The reply up to the end of the first stop string. The number of its tokens is unknown if more text followed.

    >>> from minrl.rewards.chat_client import ChatUsage
    >>> reply = ChatReply("one, two. three", "length", ChatUsage(3, 7))
    >>> until_stop(reply, ["two", ".", "four"])
    ChatReply(text='one, two', finish_reason='stop', usage=ChatUsage(prompt_tokens=3, completion_tokens=None), model='')
    """
    if not any(stop in reply.text for stop in stop_strings):
        return reply
    text = through_stop(reply.text, stop_strings)
    usage = reply.usage if text == reply.text else replace(reply.usage, completion_tokens=None)
    return replace(reply, text=text, finish_reason="stop", usage=usage)


def as_messages(prompt: Prompt) -> list[Message]:
    """A prompt as chat messages; a string is one message of the user, and so is what a tool says: servers take that
    only as the answer to a call in their own form.
    """
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(told_by_user, prompt))
