"""The environments of the verifiers library, each a task: `--task verifiers:ENV`.

The library plays and scores: an environment's own `rollout` runs on the event loop of this process, and its rubric
scores what came of it. In place of OpenAI's client it is given one whose completions the run samples, so that a
conversation may only grow.
"""

import asyncio
import contextlib
import json
import logging
import queue
import random
import signal
from collections.abc import Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Annotated, Any

from minrl.dataflow import SOLO, Episode, Example, Job, Message, Mistake, Reward, Turn, UserError, require
from minrl.tasks.conventions import begun, event_loop
from minrl.tasks.data import Row, example_of_row, problem_of
from minrl.tasks.definition import RowOptions, TaskDefinition
from minrl.tasks.task import Dataset, Sampled, in_hash_order, split
from minrl.tasks.tools import find_calls
from minrl.utils.files import installed
from minrl.utils.settings import Bound
from minrl.utils.text import one_line, unmarked

MODEL = "policy"
TOO_LONG = "this model's maximum context length is reached"
"""Words by which the library knows a prompt that the context has no room for."""


@dataclass(frozen=True, kw_only=True)
class VerifiersOptions(RowOptions):
    """How an environment is made; without rows of its own for evaluation a share is held out."""

    prefix = "verifiers."
    arguments: str = ""
    """JSON object with arguments of its load_environment, such as {"n": 100}. Empty: its own defaults."""
    seconds: Annotated[float, Bound(least=0.1, most=86400)] = 600.0
    """Longest wait for the environment between two completions, and for its rubric."""


class Client:
    """Stands in for `AsyncOpenAI`: what is asked for waits in a queue until the run has sampled a completion. That is a
    whole conversation, the tools, and the future of the answer; nothing once the rollout has ended.
    """

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    async def _create(self, *, messages: list[Message], tools: Any = (), **sampling: Any) -> Any:  # noqa: ANN401
        answer = asyncio.get_running_loop().create_future()
        self.asked.put((deepcopy(messages), tools or (), answer))
        return await answer

    def next(self, seconds: float) -> tuple[Any, ...]:
        """What is asked next."""
        try:
            return self.asked.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"the environment took more than {seconds:g} s: raise its option seconds") from None


def define(name: str) -> TaskDefinition:
    """The task of that environment."""

    def dataset(options: VerifiersOptions) -> Dataset:
        options.require_no_data("examples")
        env = load(name, options.arguments)
        train, held_out = (
            {one.id: one for row in rows or () for one in [_example(env, row)]}.values()
            for rows in (env.dataset, env.eval_dataset)
        )
        require(bool(train or held_out), f"verifiers/{name} has no examples")
        apart = set(map(problem_of, held_out))
        rest = [one for one in train if problem_of(one) not in apart]
        if held_out and (rest or not train):
            return Dataset(in_hash_order(rest), in_hash_order(held_out), problem_of)
        return split(train, options.held_out_share, problem_of)  # without rows for evaluation, or with the same ones

    def more(options: VerifiersOptions) -> dict[str, Any]:
        return {"episode": partial(episode, load(name, options.arguments), options.seconds)}

    dataset.__module__ = name.replace("-", "_")  # the environment's own, where the task's program is looked for
    return TaskDefinition(dataset, None, VerifiersOptions, more)


def _example(env: Any, row: Row) -> Example:  # noqa: ANN401 - the library's
    """The example of a row of the environment's dataset. Its columns are what a rollout begins with."""
    # a table has None where another row has a key
    shown: list[Message] = [{key: v for key, v in one.items() if v is not None} for one in row["prompt"]]
    identity = {key: value for key, value in row.items() if key != "example_id"}
    return example_of_row(identity, _with_tools(shown, env.oai_tools or ()), {**row, "prompt": shown})


def _with_tools(prompt: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [{**prompt[0], "tools": [*tools]}, *prompt[1:]] if tools else prompt


def episode(env: Any, seconds: float, example: Example, rng: random.Random) -> Episode:  # noqa: ANN401
    """A rollout of the environment, and its rubric's score."""
    client = Client()
    rollout = env.rollout(deepcopy(dict(example.fields)), client, MODEL, {})
    ended = begun(rollout)
    ended.add_done_callback(lambda _: client.asked.put(()))
    try:
        yield from _answers(client, seconds)
        state = ended.result()
    finally:
        ended.cancel()
    if state["error"] is not None:
        raise state["error"]
    functions = env.rubric._get_reward_funcs()
    group = any(map(env.rubric._is_group_func, functions))
    return {SOLO: (yield Job(partial(scored, env, seconds), (state,), waits=True, group=group))}


def _answers(client: Client, seconds: float) -> Generator[Turn | Job, Any, None]:
    """Answer what the environment asks for until its rollout has ended."""
    said, names = list[Message](), dict[str, str]()  # the conversation, and the tools that were called
    while asked := (yield Job(client.next, (seconds,), waits=True)):
        messages, tools, answer = asked
        new, grown = messages[len(said) :], messages[: len(said)] == said != messages
        require(grown, "the environment changed what was said before, and a conversation may only grow", Mistake)
        known = [{"name": name, **one} if (name := names.get(one.get("tool_call_id"))) else one for one in new]
        shown = known if said else _with_tools(known, tools)
        text = yield Turn(SOLO, shown, optional=bool(said), shown_by=new[0]["role"] if said else "")
        message = _message(text, bool(tools))
        said = [*messages, message]
        names |= {call["id"]: unmarked(call["function"]["name"]) for call in message.get("tool_calls", ())}
        _send(answer, text, message)


def _message(text: str, tools: bool) -> dict[str, Any]:
    """The message of a completion, with its calls if there are tools. Arguments of a wrong call say what is wrong."""
    before, calls = (find_calls(text) if tools else None) or (text, [])
    functions = [{"name": one.name, "arguments": one.problem or json.dumps(one.arguments)} for one in calls]
    made = [{"id": f"call{n:05}", "function": one, "type": "function"} for n, one in enumerate(functions)]
    message = {"role": "assistant", "content": f"{getattr(text, 'opened', '')}{before}"}
    return {**message, "tool_calls": made} if made else message


def _send(answer: asyncio.Future, text: str, message: Message) -> None:
    """Give the environment the completion, in OpenAI's form, or the error of a context without room for one."""
    from openai import BadRequestError
    from openai.types.chat import ChatCompletion

    if not text and not isinstance(text, Sampled):  # an optional turn without room
        response: Any = SimpleNamespace(text=TOO_LONG, status_code=400, headers={}, request=None)
        error = BadRequestError(TOO_LONG, response=response, body=None)
        event_loop().call_soon_threadsafe(answer.set_exception, error)
        return
    reason = "length" if getattr(text, "truncated", False) else "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "finish_reason": reason, "logprobs": None, "message": message}
    made = {"id": "", "created": 0, "model": MODEL, "object": "chat.completion", "choices": [choice]}
    event_loop().call_soon_threadsafe(answer.set_result, ChatCompletion.model_validate(made))


def scored(env: Any, seconds: float, states: Any) -> Any:  # noqa: ANN401 - of one, or lists of them
    """The reward of a rollout that has ended, or of each of a group, by the environment's rubric."""
    if not isinstance(states, list):
        return scored(env, seconds, [states])[0]
    scoring = env.rubric.score_group(states, score_sem=contextlib.nullcontext())
    begun(scoring).result(seconds)
    most = sum(max(0.0, weight) for weight in env.rubric._get_reward_weights()) or 1.0
    return [Reward(one["reward"], one["metrics"] or {}, maximum=max(most, one["reward"])) for one in states]


@cache
def load(name: str, arguments: str) -> Any:  # noqa: ANN401 - the library's
    """The environment, which is made once with the same arguments."""
    library = load_library()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        env = library.load_environment(name, **json.loads(arguments or "{}"))
    except Exception as error:  # the environment's code may raise anything
        given = f" with the arguments {arguments}, a JSON object" if arguments else ""
        raise UserError(f"verifiers/{name} cannot be loaded{given}: {one_line(str(error)):.300}") from error
    finally:  # an environment takes them for itself
        for number, handler in handlers.items():
            signal.signal(number, handler)
    require(env.message_type == "chat", f"verifiers/{name} asks for completions of texts, and only chats are played")
    return env


@cache
def load_library() -> Any:  # noqa: ANN401 - the library
    """The library, loaded when first needed. It logs the first message of those that begin alike."""
    with installed("verifiers", "verifiers==0.1.9.post3"):
        import verifiers
    seen = set[str]()

    def is_first(record: logging.LogRecord) -> bool:
        known, start = len(seen), record.getMessage().partition(":")[0]
        seen.add(start)
        return len(seen) > known

    verifiers.setup_logging("WARNING")
    logging.getLogger("verifiers").handlers[0].addFilter(is_first)
    logging.getLogger("verifiers.utils.env_utils").setLevel(logging.CRITICAL)  # what it logs it raises too
    return verifiers
