"""Python as a tool inside an episode: `countdown+python` is Countdown with it, and so with any other task.

    the policy   I compute it. <tool_call> print(48271 * 90353 % 977) </tool_call>
    the tool     55
    the policy   <answer> 55 </answer>

A completion ends with the first call in it, wherever it stands, in a thought too. A call holds a program, alone, in a
fence, or as chat models write calls: {"name": "python", "arguments": {"code": ...}}. A block of ```python is no call:
it is how other tasks are answered. The program runs in `minrl.sandbox`, and what it prints is the role's next message,
which is never trained on. The task is given the role's last turn alone, without the call that no run was left for: an
answer that stands in what the tool printed, or before a call, is none.

What a program prints follows from its source: each runs by itself, in an empty folder, with one hash seed, and its
`random` begins with one seed. A program that asks for the time, `os.urandom` or the machine, or that needs nearly all
of its seconds, may print something else when a resumed run plays its step again.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from minrl.dataflow import Example, Job, Prompt, require
from minrl.sandbox.calls import START_S, Limits, Outcome, describe, describe_python, python, run
from minrl.tasks.code import START
from minrl.tasks.grader import Grader
from minrl.tasks.task import Demonstrations, Task, ToolDefinition
from minrl.tasks.tools import ToolResult, Tools, episode, stopped, tool_message
from minrl.utils.settings import Bound, Settings
from minrl.utils.text import unmarked

OPEN, CLOSE = "<tool_call>", "</tool_call>"

INSTRUCTIONS = (
    "You may run Python before you answer: write a program inside <tool_call> </tool_call> and stop there; what it "
    "prints comes back. At most {calls} programs, each by itself, of {seconds:g} seconds and {characters} printed "
    "characters, with the standard library and without files or network. Then answer, without <tool_call>."
)

SEEDED = "__import__('random').seed(0)"
"""Lets a program's `random` begin with one seed."""

FENCES = ("```", "```python", "```py")
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{4,16}\b")
"""Where an object lies, which differs between two runs of a program."""


@dataclass(frozen=True, kw_only=True)
class PythonOptions(Settings):
    """How much Python a role may use in an episode."""

    prefix = "python."
    calls: Annotated[int, Bound(least=1, most=64)] = 4
    """Most programs of a role in an episode. A further call is not run and ends its turn."""
    seconds: Annotated[float, Bound(least=0.1, most=600)] = 2.0
    """Longest run of a program, in seconds of processor time; by the clock twice as many, for busy machines."""
    characters: Annotated[int, Bound(least=16, most=100_000)] = 2000
    """What is shown of the text that a program prints; more is cut off, and four times as many bytes end it."""
    memory_mib: Annotated[int, Bound(least=64, most=65_536)] = 512
    """Memory that a program may use."""

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits(
            wall_s=2 * self.seconds,
            cpu_s=self.seconds,
            memory_mib=self.memory_mib,
            processes=16,
            output_bytes=4 * self.characters,
        )


def find_call(completion: str) -> tuple[str, str] | None:
    """What a completion says before its call, and the text of the call; None if it calls nothing.

    >>> find_call("So: <tool_call> print(6 * 7) </tool_call>"), find_call("<answer> 42 </answer>")
    (('So: ', ' print(6 * 7) '), None)
    """
    said, closed, _ = completion.partition(CLOSE)
    before, opened, call = said.rpartition(OPEN)
    return (before, call) if opened and closed else None


def program_of(call: str) -> str:
    r"""The program in a call; empty where there is none.

    >>> program_of('{"name": "python", "arguments": {"code": "print(1)"}}'), program_of("```python\nprint(1)\n```")
    ('print(1)', 'print(1)')
    """
    text = call.strip()
    try:
        match json.loads(text):
            case {"name": "python", "arguments": {"code": str() as code}}:
                text = code.strip()
            case {"name": _} | {"arguments": _}:
                return ""
    except (ValueError, RecursionError):  # no JSON, so it is the program
        pass
    head, _, body = text.partition("\n")
    return body.removesuffix("```").rstrip() if head.rstrip() in FENCES and body.endswith("```") else text


def run_program(program: str, options: PythonOptions) -> ToolResult:
    """Run a program and say what it printed."""
    # not isolated (-I), which would ignore the hash seed
    command = [python()[0], "-s", "-S", "-B", "-c", f"{SEEDED}; {START}"]
    source = program.encode(errors="replace")
    outcome = run(command, {"program.py": source}, options.limits, environment={"PYTHONHASHSEED": "0"})
    printed = outcome.text if outcome.status in ("ok", "error", "output") else ""
    shown = unmarked(ADDRESS.sub("at 0x...", printed)).rstrip("\n")
    if len(shown) > options.characters:
        shown = f"{shown[: options.characters]}\n[cut off after {options.characters} characters]"
    problem = _problem(outcome, options)
    text = "\n".join(filter(None, [shown, problem])) or "[nothing was printed: print what you need]"
    return ToolResult(text, outcome.status != "ok")


def _problem(outcome: Outcome, options: PythonOptions) -> str:
    """How a program failed, in a line; empty if it did not."""
    if outcome.status == "error":
        last = outcome.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raised = unmarked(ADDRESS.sub("at 0x...", last))[: options.characters]
        return f"[error] {raised or f'exit status {outcome.exit_code}'}"
    return {
        "timeout": f"[stopped after {options.seconds:g} seconds]",
        "memory": f"[stopped at {options.memory_mib} MiB of memory]",
        "output": "[stopped: it printed too much]",
    }.get(outcome.status, "")


def with_instructions(prompt: Prompt, options: PythonOptions) -> Prompt:
    """The prompt with the tool's instructions: at the end of a system message, else in front of the first one."""
    said = INSTRUCTIONS.format(calls=options.calls, seconds=options.seconds, characters=options.characters)
    if isinstance(prompt, str):
        return f"{said}\n\n{prompt}"
    match prompt:
        case [{"role": "system", "content": str() as rules}, *others]:
            return [{"role": "system", "content": f"{rules}\n\n{said}"}, *others]
    return [{"role": "system", "content": said}, *prompt]


def python_tools(options: PythonOptions) -> Tools:
    """The tool, with these options, in an episode."""
    job = Grader(run_program, stopped, warm=python, seconds=START_S + options.limits.wall_s)

    def find(completion: str) -> tuple[str, list[str]] | None:
        found = find_call(completion)
        return found and (found[0], [found[1]])

    def run_call(call: str, example: Example) -> Job | ToolResult:
        program = program_of(call)
        return Job(job, (program, options)) if program else ToolResult("[error] no program", failed=True)

    return Tools(options.calls, lambda prompt, example: with_instructions(prompt, options), find, run_call)


WORDS = (OPEN, CLOSE, "<tool_response>", "</tool_response>", "print", "(", ")", "+", *map(str, range(19)))
"""The words of the calls in the demonstrations."""


def tool_demonstrations(shown: Demonstrations, options: PythonOptions) -> Demonstrations:
    """The task's demonstrations. Before half of those that do not call stands a call that has nothing to do with the
    problem: the form is shown, what it is good for is left to learn.
    """

    def demonstrations(example: Example, rng: random.Random) -> Sequence[tuple[Prompt, str]]:
        own = shown(example, rng)
        (prompt, text), *others = [(example.prompt, own)] if isinstance(own, str) else own
        first, second = rng.randint(0, 9), rng.randint(0, 9)
        asked = with_instructions(prompt, options)
        if find_call(text) or rng.random() < 0.5:
            return [(asked, text), *others]
        call = f"{OPEN} print ( {first} + {second} ) {CLOSE}"
        return [(asked, call), (tool_message(prompt, [({}, str(first + second))]), text), *others]

    return demonstrations


def with_python(task: Task, options: PythonOptions) -> Task:
    """The task, played with the tool."""
    require(CLOSE not in task.stop_strings, f"{task.name} is played with Python already: leave out +python")
    shown = task.demonstrations and tool_demonstrations(task.demonstrations, options)
    said = str(with_instructions("", options)).split()
    return replace(
        task,
        episode=partial(episode, task, python_tools(options)),
        demonstrations=shown,
        vocabulary=(*task.vocabulary, *WORDS, *said) if task.vocabulary else (),
        stop_strings=(*task.stop_strings, CLOSE),
        notes=lambda: tuple(dict.fromkeys((*task.notes(), describe(), describe_python()))),
    )


TOOL = ToolDefinition(PythonOptions, with_python)
