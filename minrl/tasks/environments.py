"""Environments of TRL's form: classes whose public methods are the tools of an episode, which share its state.

    class Counter:
        def reset(self, **row) -> str | None: ...       begins an episode; a text ends the prompt
        def add(self, number: int) -> int: ...          a tool
        def get_reward(self) -> float: ...              the reward of the episode

They live in the process that plays the episodes, because they may hold what cannot be sent to another, such as a
connection. Each is used by one episode at a time, reset and used again. `random` and `numpy.random` are seeded by the
example when one is reset, and by the episode for its further methods, so that a resumed run plays the same.
"""

import asyncio
import inspect
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minrl.dataflow import SOLO, Episode, Example, Job, Mistake, Prompt, Turn, require
from minrl.tasks import tools
from minrl.tasks.conventions import finished, parameters, weighted_rewards
from minrl.tasks.grader import OutOfTime
from minrl.tasks.task import Task, ToolDefinition
from minrl.utils.text import unmarked

NOT_TOOLS = ("reset", "get_reward")


def environment(made: type, rewards: Any) -> tuple[list[Any], ToolDefinition]:  # noqa: ANN401 - a function, or some
    """The rewards of a task whose episodes are those of a class, and what plays them."""
    name, methods = made.__name__, methods_of(made)
    others = rewards if isinstance(rewards, list | tuple) else [rewards]
    require("reset" in methods, f"{name} is no environment: it has no method `reset`, which begins an episode")
    require(
        bool({*methods} - {*NOT_TOOLS}), f"{name} is no environment: it has no public method, which would be a tool"
    )
    needs = f"rewards of {name} must be functions of TRL's form, such as of `environments`, got {rewards!r:.80}"
    require(not others or bool(weighted_rewards(others)), needs)
    own = [get_reward] if "get_reward" in methods else []
    needs = f"nothing rewards the episodes of {name}: give it a method `get_reward`, or put @task(rewards=...) above it"
    require(bool(own or others), needs)
    return [*own, *others], ToolDefinition(tools.ToolsOptions, with_environment, (made,))


def methods_of(made: type) -> dict[str, Callable[..., Any]]:
    """The public methods of a class by name."""
    return {name: one for name, one in inspect.getmembers(made, inspect.isfunction) if not name.startswith("_")}


def get_reward(completions: list[Any], get_reward: list[Any], **_: object) -> list[Any]:
    """What the methods of this name returned, as a reward of TRL's form."""
    return get_reward


def with_environment(task: Task, options: tools.ToolsOptions, made: Any) -> Task:  # noqa: ANN401 - a class
    """The task, whose episodes are those of a class."""
    methods = {name: one for name, one in methods_of(made).items() if name not in NOT_TOOLS}
    schemas = tools.schemas_of(task.name, [*methods.values()])
    shown, idle, scored = partial(tools.with_schemas, schemas), list[Held](), replace(task, group=False)

    def run(own: Held, call: tools.Call, example: Example) -> Job | tools.ToolResult:
        waits = inspect.iscoroutinefunction(methods.get(call.name))
        arguments = (partial(own.call, call.name), call.arguments, options.characters)
        job = Job(tools.run_function, arguments, cheap=not waits, waits=waits)
        return tools.wrong_call(schemas, options, call, example) or job

    def play(example: Example, rng: random.Random) -> Episode:
        own = idle.pop() if idle else Held(made, options.seconds)
        observation, costs = own.reset(example, rng), dict(tools.NO_COSTS)
        try:
            prompt = shown(with_observation(made.__name__, example.prompt, observation), example)
            used = tools.Tools(options.calls, shown, tools.find_calls, partial(run, own))
            said = yield from tools.turn_with_tools(Turn(SOLO, prompt), used, example, costs)
            fields = {**example.fields, "environments": own.environment}
            if hasattr(made, "get_reward"):
                with mistaken_by(f"{made.__name__}.get_reward"):
                    fields["get_reward"] = own.call("get_reward")
            reward = yield scored.reward_job(said, replace(example, fields=fields))
        finally:
            if own.usable:
                idle.append(own)
        return {SOLO: replace(reward, parts={**reward.parts, **costs})}

    return replace(task, reward=None, group=False, episode=play)


def with_observation(name: str, prompt: Prompt, observation: object) -> Prompt:
    """The prompt with what `reset` returned at its end, as TRL has it."""
    right = observation is None or isinstance(observation, str)
    require(right, f"{name}.reset must return a text or None, got {observation!r:.80}", Mistake)
    text = unmarked(observation) if isinstance(observation, str) else ""
    if isinstance(prompt, str):
        return prompt + text
    said = prompt[-1]["content"]
    nothing = f"{name}.reset returned {observation!r} and the row has no prompt: return what the model is to be shown"
    require(bool(said or text), f"{nothing}, or name rows with a column `prompt` by --data-path or @task", Mistake)
    more: Any = text if isinstance(said, str) else [{"type": "text", "text": text}] * bool(text)
    return [*prompt[:-1], {**prompt[-1], "content": said + more}]


class Held:
    """An environment, with the state that `random` and `numpy.random` have in its methods.

    It is no more `usable` when a call has not returned in time: an answer that comes later would be taken for another.
    """

    def __init__(self, made: type, seconds: float) -> None:
        self.name, self.seconds, self.usable = made.__name__, seconds, True
        with mistaken_by(f"{self.name}()"):
            self.environment = made()

    def reset(self, example: Example, rng: random.Random) -> Any:  # noqa: ANN401 - whatever the method returns
        """Begin an episode of the example: `reset` takes the columns of the row, and a `seed`."""
        given = {"seed": random.Random(example.id).getrandbits(31), **example.fields}
        takes = parameters(self.environment.reset)
        if not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            given = {name: value for name, value in given.items() if name in takes}
        self._states = seeded(example.id)
        with mistaken_by(f"{self.name}.reset"):
            observation = self.call("reset", **given)
        self._states = seeded(rng.getrandbits(64))
        return observation

    def call(self, method: str, /, **given: object) -> Any:  # noqa: ANN401 - whatever the method returns
        """What a method returns. Raises `Mistake` if that takes too long."""
        function = getattr(self.environment, method)
        try:
            if inspect.iscoroutinefunction(function):  # of several at a time
                return finished(asyncio.wait_for(function(**given), self.seconds))
            before = exchanged(self._states)
            try:
                with time_limit(self.seconds):
                    return function(**given)
            except SystemExit as error:  # the trainer is not ended by an environment
                raise RuntimeError(f"sys.exit({error.code!r})") from error
            finally:
                self._states = exchanged(before)
        except (OutOfTime, TimeoutError) as error:
            self.usable = False
            raise Mistake(f"{self.name}.{method} did not return within {self.seconds:g} s (--tools.seconds)") from error


def seeded(seed: int | str) -> tuple[Any, Any]:
    """States of `random` and `numpy.random`."""
    own = random.Random(seed)
    return own.getstate(), np.random.RandomState(own.getrandbits(32)).get_state()


def exchanged(states: tuple[Any, Any]) -> tuple[Any, Any]:
    """Set the states of `random` and `numpy.random`, and return those before."""
    before = random.getstate(), np.random.get_state()
    random.setstate(states[0])
    np.random.set_state(states[1])
    return before


@contextmanager
def mistaken_by(name: str) -> Iterator[None]:
    """What the user's method raises in the block as a `Mistake` in one line."""
    try:
        yield
    except Mistake:
        raise
    except Exception as error:
        line = f"{name} raised {type(error).__name__}: {error}"
        raise Mistake(line).with_traceback(error.__traceback__) from error


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """In the block, raise `OutOfTime` after so many seconds by the clock, and again each second for code that caught
    it. Works in a main thread, where episodes are played; elsewhere Python raises `ValueError`.
    """

    def expire(*_: object) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
