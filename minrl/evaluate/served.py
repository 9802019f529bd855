"""A model behind an OpenAI-compatible server plays episodes, many at a time.

A failed call makes an error row without a completion, and the next run asks again. A request that the server refuses
for good, by a filter or for its length, counts as not solved and is not asked again.

Stop strings are not sent: servers differ in whether a text includes its stop, and most do not name it. The text is cut
here after the first one, where a local model would end.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from loguru import logger

from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.episodes import Recorder, episode_rng, row_of, through_stop, turn_seed
from minrl.evaluate.models import NamedModel
from minrl.evaluate.plan import Batch, PlannedTask
from minrl.evaluate.rows import Key, Row
from minrl.models.messages import told_by_user
from minrl.rewards.chat_client import CONTENT_FILTER, ChatClient, ChatError, ChatRefusal, ChatReply
from minrl.rewards.episode import Play
from minrl.rewards.workers import Workers
from minrl.types import Job, Message, Prompt

FAILURES_IN_A_ROW = 20
"""Failed calls in a row after which this run stops asking the server."""

AHEAD = 4
"""Episodes in progress for each call in flight, so that no call waits for the disk."""


class ServedSampler:
    """A server's model, with the temperature, seeds and limits of a local one."""

    def __init__(self, config: EvaluateConfig, model: NamedModel, workers: Workers) -> None:
        self.config, self.model, self.workers = config, model, workers
        self.client = connect(config, model)
        self._pool = ThreadPoolExecutor(config.api.api_concurrency)
        self._in_workers = threading.Lock()

    def play(self, task: PlannedTask, batches: Sequence[Batch]) -> Iterator[list[Row]]:
        """The rows of the episodes, in the order in which they end."""
        waiting = iter([(batch.mode.name, *episode) for batch in batches for episode in batch.episodes()])
        temperatures = {mode.name: mode.temperature for mode in task.modes}
        playing: set[Future[Row]] = set()
        failures = 0
        while True:
            for mode, index, sample in waiting:
                key = Key(self.model.name, task.name, mode, index, sample)
                playing.add(self._pool.submit(self._play, task, key, temperatures[mode]))
                if len(playing) >= AHEAD * self.config.api.api_concurrency:
                    break
            if not playing:
                return
            ended, playing = wait(playing, return_when=FIRST_COMPLETED)
            rows = [future.result() for future in ended]
            yield rows
            for row in rows:
                failures = failures + 1 if "error" in row else 0
            if failures >= FAILURES_IN_A_ROW:
                logger.error(f"{self.model.name}: {failures} failures in a row, the last: {rows[-1].get('error')}")
                waiting = iter(())
                playing = {future for future in playing if not future.cancel()}

    def close(self) -> None:
        """End the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.client.close()  # ends the calls that threads of the pool still wait for

    def _play(self, task: PlannedTask, key: Key, temperature: float) -> Row:
        """One episode from its first turn to its last."""
        example, recorder = task.examples[key.index], Recorder(task.task)
        play = Play(recorder.task, example, episode_rng(self.config.seed, key.index, key.sample))
        stops = (*self.config.stop_strings, *task.task.stop_strings)
        said: dict[str, _Conversation] = {}
        more: Row = {}
        play.advance(None)
        try:
            while (asked := play.pending) is not None:
                if isinstance(asked, Job):
                    with self._in_workers:
                        (answer,) = self.workers.run([asked])
                else:
                    conversation = said.setdefault(asked.role, _Conversation())
                    conversation.messages += as_messages(asked.message)
                    (reply,) = self.client.complete(
                        conversation.messages,
                        temperature=temperature,
                        max_tokens=self.config.limit_of(key.task),
                        seed=turn_seed(self.config.seed, key, asked.role, len(conversation.replies)),
                    )
                    answer = conversation.answer(until_stop(reply, stops))
                play.advance(answer)
        except ChatRefusal as refusal:
            play.fail(str(refusal))
            more["refused"] = refusal.kind
        except ChatError as error:
            return {**key.as_row(), "example": example.id, "error": str(error)}
        (record,) = recorder.records
        facts = {role: said[role].facts() for role in record.roles}
        if any(one["finish_reason"] == CONTENT_FILTER for one in facts.values()):
            more.setdefault("refused", CONTENT_FILTER)
        if names := {reply.model for one in said.values() for reply in one.replies} - {"", self.model.served_name}:
            more["served_as"] = sorted(names)
        return {**row_of(key, task, record, facts, play.failure), **more}


@dataclass
class _Conversation:
    """The messages and replies of one role so far."""

    messages: list[Message] = field(default_factory=list)
    replies: list[ChatReply] = field(default_factory=list)

    def answer(self, reply: ChatReply) -> str:
        """Add the model's reply."""
        self.messages.append({"role": "assistant", "content": reply.text})
        self.replies.append(reply)
        return reply.text

    def facts(self) -> Mapping[str, Any]:
        """The columns beside the text. `tokens` is None if the server did not count them; `length` is the finish reason
        of all turns if it is that of one, else the last reason other than `stop` is.
        """
        known = [reply.usage.completion_tokens for reply in self.replies if reply.usage.completion_tokens is not None]
        tokens = sum(known) if len(known) == len(self.replies) else None
        reasons = [reply.finish_reason for reply in self.replies if reply.finish_reason != "stop"] or ["stop"]
        return {"tokens": tokens, "finish_reason": "length" if "length" in reasons else reasons[-1]}


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


def connect(config: EvaluateConfig, model: NamedModel) -> ChatClient:
    """The client for a server's model. A missing key or a wrong address is refused."""
    api = config.api
    return ChatClient(
        model.served_name,
        model.base_url or "",
        timeout_s=api.api_timeout_s,
        concurrency=api.api_concurrency,
        retries=api.api_retries,
        key_variable=api.api_key_variable,
    )


def as_messages(prompt: Prompt) -> list[Message]:
    """A prompt as chat messages; a string is one message of the user, and so is what a tool says: servers take that
    only as the answer to a call in their own form.
    """
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(told_by_user, prompt))
