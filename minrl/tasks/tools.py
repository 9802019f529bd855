"""Functions as tools in an episode: `@task(..., tools=[calculator])`, or `--tools path/to/file.py:calculator`.

    the policy   <tool_call> {"name": "calculator", "arguments": {"expression": "6 * 7"}} </tool_call>
    the tool     42
    the policy   <answer> 42 </answer>

The schema of a function comes from its type hints and its docstring; the chat template shows it. A completion may hold
several calls, which run in its order. The task is given the role's last turn alone, without a call that was not run.
"""

import asyncio
import inspect
import json
import random
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Annotated, Any, NamedTuple

from minrl.dataflow import Episode, Example, Job, Mistake, Prompt, Turn, UserError, require
from minrl.models.chat import tools_text
from minrl.tasks.definition import is_importable
from minrl.tasks.grader import Grader, Reason
from minrl.tasks.task import Task, ToolDefinition, relayed
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound, Settings
from minrl.utils.text import first_line, unmarked

HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""Qwen's and Hermes' calls: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

HARMONY = re.compile(r"to=functions\.([\w.-]+)[^{]*?<\|message\|>(.*?)(?=<\|(?:call|end|start)\|>|\Z)", re.DOTALL)
"""gpt-oss' calls: `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`."""

MISTRAL = "[TOOL_CALLS]"
"""What stands before Mistral's calls: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`."""

NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\](.*?)(?=\[TOOL_CALLS\]|\Z)", re.DOTALL)
"""What stands behind it in later versions: `[TOOL_CALLS]NAME[ARGS]{...}`."""

LLAMA = "<|python_tag|>"
"""What may stand before Llama's calls, `{"name": ..., "parameters": {...}}`, which are a whole completion."""

SIMPLE: Mapping[str, Any] = {"string": str, "integer": int, "number": int | float, "boolean": bool}
TYPES = {**SIMPLE, "array": list, "object": dict, "null": NoneType}
"""The values of the types of a schema."""

NO_COSTS = {"tool_calls": 0.0, "tool_failed": 0.0}
"""What a role's calls take, as parts of its reward without a weight."""


@dataclass(frozen=True, kw_only=True)
class ToolsOptions(Settings):
    """How much a role may use functions in an episode."""

    prefix = "tools."
    calls: Annotated[int, Bound(least=1, most=1000)] = 4
    """Most calls of a role in an episode. Further calls are not run; a completion of such calls alone ends its turn."""
    characters: Annotated[int, Bound(least=16, most=100_000)] = 2000
    """Most characters of a result that are shown; more is cut off."""
    seconds: Annotated[float, Bound(least=0.1, most=3600)] = 60.0
    """Longest call of a method of an environment or of an MCP server's tool; a function has --reward-deadline-s."""


class Call(NamedTuple):
    """A call in a completion. A wrong one has a `problem`."""

    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True)
class ToolResult:
    """What became of a call: what the role is shown, and whether the call failed."""

    text: str
    failed: bool = False


@dataclass(frozen=True)
class Tools:
    """What an episode with tools needs: the most calls of a role, what makes a role's first message of the task's own,
    what finds the calls in a completion with what stands before them, and what runs one.
    """

    most: int
    shown: Callable[[Prompt, Example], Prompt]
    find: Callable[[str], tuple[str, Sequence[Any]] | None]
    run: Callable[[Any, Example], Job | ToolResult]


def find_calls(completion: str) -> tuple[str, list[Call]] | None:
    """What a completion says before its calls, and the calls; None if it calls nothing. They are read as the
    tokenizer's own `parse_response` did, where it has one, else in each form of the models named above.

    >>> find_calls('So: <tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>')
    ('So: ', [Call(name='add', arguments={'x': 1}, problem='')])
    >>> find_calls("<answer> 42 </answer>") is None
    True
    """
    if (message := getattr(completion, "message", None)) is not None:
        return _if_any(message.get("content") or "", map(_call, message.get("tool_calls") or ()))
    if harmony := [*HARMONY.finditer(completion)]:
        return completion[: harmony[0].start()], [_named(*one.groups()) for one in harmony]
    said = after_thoughts(completion)
    if hermes := [*HERMES.finditer(said)]:
        return said[: hermes[0].start()], [call for one in hermes for call in _calls(one[1])]
    before, found, behind = said.partition(MISTRAL)
    if found:
        return before, [_named(*one.groups()) for one in NAMED.finditer(behind)] or _calls(behind)
    text = said.strip()
    calls = _calls(text.removeprefix(LLAMA)) if text.startswith(("{", LLAMA)) else []
    return _if_any("", (one for one in calls if text.startswith(LLAMA) or (one.name and "parameters" in text)))


def _if_any(before: str, calls: Any) -> tuple[str, list[Call]] | None:  # noqa: ANN401 - an iterable of calls
    found = [*calls]
    return (before, found) if found else None


def _calls(text: str) -> list[Call]:
    """The calls in JSON: an object, or a list of them."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [Call("", {}, f"a call must be a JSON object: {error}")]
    return [_call(one) for one in (value if isinstance(value, list) and value else [value])]


def _named(name: str, arguments: str) -> Call:
    return _call({"name": name, "arguments": arguments})


def _call(value: Any) -> Call:  # noqa: ANN401 - whatever the JSON holds
    """The call that an object describes; its arguments may be a JSON text, as OpenAI has them."""
    match value.get("function", value) if isinstance(value, dict) else value:
        case {"name": str() as name, "arguments": given} | {"name": str() as name, "parameters": given}:
            pass
        case {"name": str() as name}:
            given = {}
        case _:
            return Call("", {}, 'a call must be an object such as {"name": ..., "arguments": {...}}')
    try:
        given = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        return Call(name, {}, f"the arguments of {name} must be a JSON object: {error}")
    right = isinstance(given, dict)
    return Call(name, given if right else {}, "" if right else f"the arguments of {name} must be a JSON object")


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function, as chat templates take it: its own, or from its type hints and its docstring,
    without `*args` and `**kwargs`, which a call by name cannot give.
    """
    if own := getattr(function, "schema", None):
        return own
    from transformers.utils import get_json_schema  # each reward worker would pay for the import

    name = getattr(function, "__name__", repr(function))
    try:
        schema = get_json_schema(function)
    except Exception as error:  # of the user's function: transformers' own, and what hints raise
        raise UserError(
            f"the tool {name} needs a type hint for each parameter, and a docstring that says what it does and, under "
            f"`Args:`, what each parameter is: {first_line(error)}"
        ) from error
    shown = schema["function"]["parameters"]
    for own in inspect.signature(function).parameters.values():
        if own.kind in (own.VAR_POSITIONAL, own.VAR_KEYWORD):
            del shown["properties"][own.name]
            shown["required"].remove(own.name)
    return schema


def wrong_arguments(schema: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What is wrong with the arguments of a call, in a line; empty if they are right."""
    known = schema["parameters"].get("properties", {})
    if lacking := [name for name in schema["parameters"].get("required", ()) if name not in given]:
        return f"{schema['name']} lacks the argument {lacking[0]}"
    for name, value in given.items():
        if name not in known:
            return f"{schema['name']} has no parameter {name}: {', '.join(known) or 'it takes none'}"
        kinds = known[name].get("type") or []
        kinds = [kinds] if isinstance(kinds, str) else kinds
        right = [isinstance(value, TYPES[kind]) and isinstance(value, bool) <= (kind == "boolean") for kind in kinds]
        if kinds and not any(right) and not (value is None and known[name].get("nullable")):
            return f"{name} of {schema['name']} must be of type {' or '.join(kinds)}, got {json.dumps(value):.80}"
    return ""


def run_function(function: Callable[..., Any], arguments: Mapping[str, Any], characters: int) -> ToolResult:
    """Call a function and say what it returned, or what it raised."""
    try:
        value = function(**arguments)
        value = asyncio.run(value) if inspect.iscoroutine(value) else value
        text, failed = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), False
    except UserError:  # not the model's doing: an environment or a server was lost
        raise
    except Exception as error:  # the arguments are the model's
        text, failed = f"[error] {type(error).__name__}: {error}", True
    text = unmarked(text)
    more = f"\n[cut off after {characters} characters]" if len(text) > characters else ""
    return ToolResult(text[:characters] + more, failed)


def stopped(reason: Reason) -> ToolResult:
    """What is said of a call that broke even what runs it."""
    return ToolResult(f"[stopped: {reason}]", failed=True)


def tool_message(prompt: Prompt, results: Sequence[tuple[Mapping[str, Any], str]]) -> Prompt:
    """What tools say to a role whose prompts are texts, or messages, as this one: further keys of the message, and its
    text.
    """
    if isinstance(prompt, str):
        return "".join(f"\n<tool_response>\n{text}\n</tool_response>\n" for _, text in results)
    return [{"role": "tool", **keys, "content": text} for keys, text in results]


def episode(task: Task, tools: Tools, example: Example, rng: random.Random) -> Episode:
    """The task's episode, in which every role may call tools before it ends a turn."""
    costs: dict[str, dict[str, float]] = {}

    def answered(step: Any) -> Generator[Any, Any, Any]:  # noqa: ANN401 - what an episode yields and is sent
        if not isinstance(step, Turn):
            return (yield step)
        first = step.role not in costs
        asked = replace(step, message=tools.shown(step.message, example)) if first else step
        return (yield from turn_with_tools(asked, tools, example, costs.setdefault(step.role, dict(NO_COSTS))))

    rewards = yield from relayed(task.play(example, rng), answered)
    return {
        role: replace(reward, parts={**reward.parts, **costs.get(role, NO_COSTS)}) for role, reward in rewards.items()
    }


def turn_with_tools(
    turn: Turn, tools: Tools, example: Example, costs: dict[str, float]
) -> Generator[Turn | Job, Any, str]:
    """What a role says in the end, after its calls."""
    while found := tools.find(text := (yield turn)):
        before, calls = found
        if costs["tool_calls"] == tools.most:
            return f"{getattr(text, 'opened', '')}{before}"  # a part of what was sampled
        results = list[tuple[Mapping[str, Any], str]]()
        for call in calls:
            if costs["tool_calls"] < tools.most:
                done = tools.run(call, example)
                result: ToolResult = (yield done) if isinstance(done, Job) else done
                costs["tool_calls"] += 1
                costs["tool_failed"] += result.failed
            else:
                result = ToolResult(f"[error] not run: at most {tools.most} calls")
            name = getattr(call, "name", "")
            keys = {"name": unmarked(name), "tool_call_id": f"call{len(results):05}"} if name else {}
            results.append((keys, result.text))
        message = tool_message(turn.message, results)
        turn = replace(turn, message=message, optional=True, shown_by="tool")
    return text


def offered(example: Example, names: Sequence[str]) -> Sequence[str]:
    """The tools of an example: those that its column `tools` names, by name or by schema, else all."""
    named: Any = example.fields.get("tools")
    if isinstance(named, str):  # a CSV's, or JSON
        named = json.loads(named) if named.lstrip().startswith("[") else named.split(",")
    if named is None:
        return names
    found = [one.strip() if isinstance(one, str) else one.get("function", one)["name"] for one in named]
    for one in found:
        require(one in names, f"`tools` names {one!r}, and the task has {', '.join(names)}", Mistake)
    return found


def schemas_of(task: str, functions: Sequence[Callable[..., Any]]) -> dict[str, dict[str, Any]]:
    """The schemas of the tools of a task by their names."""
    schemas = {schema["function"]["name"]: schema for schema in map(schema_of, functions)}
    require(len(schemas) == len(functions), f"two tools of {task} have one name: {', '.join(schemas)}")
    return schemas


def with_schemas(schemas: Mapping[str, Any], prompt: Prompt, example: Example) -> Prompt:
    """The prompt, which shows the tools of the example."""
    own = [schemas[name] for name in offered(example, [*schemas])]
    if not own:
        return prompt
    return f"{tools_text(own)}\n\n{prompt}" if isinstance(prompt, str) else [{**prompt[0], "tools": own}, *prompt[1:]]


def wrong_call(
    schemas: Mapping[str, Any], options: ToolsOptions, call: Call, example: Example, servers: Collection[str] = ()
) -> ToolResult | None:
    """What is said of a call that cannot be run; None if it can be. A server looks at the arguments itself."""
    names = offered(example, [*schemas])
    unknown = "" if call.name in names else f"there is no tool {call.name}, only {', '.join(names) or 'none'}"
    problem = call.problem or unknown
    if not problem and call.name not in servers:
        problem = wrong_arguments(schemas[call.name]["function"], call.arguments)
    return ToolResult(unmarked(f"[error] {problem}"[: options.characters]), failed=True) if problem else None


def with_tools(task: Task, options: ToolsOptions, *functions: Callable[..., Any]) -> Task:
    """The task, played with these functions as tools, in which a server stands for all of its own."""
    functions = tuple(
        each for one in functions for each in getattr(one, "tools", lambda s, one=one: [one])(options.seconds)
    )
    require(bool(functions), f"{task.name} is played with no tool: name functions, --tools path/to/file.py:name")
    schemas = schemas_of(task.name, functions)
    known = dict(zip(schemas, functions, strict=True))
    servers = {name for name, function in known.items() if getattr(function, "waits", False)}
    here = {name for name, function in known.items() if name not in servers and not is_importable(function)}

    def run(call: Call, example: Example) -> Job | ToolResult:
        arguments, waits = (known.get(call.name), call.arguments, options.characters), call.name in servers
        job = Job(Grader(run_function, stopped), arguments, cheap=call.name in here, waits=waits)
        return wrong_call(schemas, options, call, example, servers) or job

    own = Tools(options.calls, partial(with_schemas, schemas), find_calls, run)
    return replace(task, episode=partial(episode, task, own))


TOOL = ToolDefinition(ToolsOptions, with_tools)
