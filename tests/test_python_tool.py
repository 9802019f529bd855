"""Python as a tool inside an episode: what is a call, what it brings back, and that nothing of that is trained on."""

from dataclasses import replace
from random import Random

import pytest

from minrl.dataflow import SOLO, Example, Job, Reward, UserError
from minrl.rewards.episode import Play
from minrl.rewards.workers import Failure
from minrl.tasks import Task, load_task
from minrl.tasks.grader import Grader
from minrl.tasks.python_tool import (
    INSTRUCTIONS,
    PythonOptions,
    find_call,
    program_of,
    run_program,
    with_python,
)
from minrl.tasks.task import extract_answer, split
from minrl.tasks.tools import ToolResult, stopped
from tests.conftest import play_through
from tests.parsed import parsed

PATIENT = PythonOptions(seconds=60.0, characters=200)
"""For programs that end by themselves, however slow the machine."""


CALLS = [
    ("<think> hm <tool_call>\nprint(1)\nprint(2)\n</tool_call>", "print(1)\nprint(2)"),  # in a thought too
    ("<tool_call>print(1)</tool_call> <tool_call>print(2)</tool_call>", "print(1)"),  # the first one ends it
    ("<tool_call>\n```python\nprint(1)\n```\n</tool_call>", "print(1)"),
    ('<tool_call>\n{"name": "python", "arguments": {"code": "print(\\"a\\")"}}\n</tool_call>', 'print("a")'),
    ("<tool_call>{print(1)}</tool_call>", "{print(1)}"),  # no JSON: a program, if an odd one
]


def test_a_call_holds_a_program_between_two_marks():
    for completion, program in CALLS:
        assert program_of(find_call(completion)[1]) == program
    for completion in ("print(1)", "<tool_call> print(1)"):
        assert find_call(completion) is None
    for call in ("  \n", '{"name": "search", "arguments": {"code": "print(1)"}}'):
        assert program_of(call) == ""


PROGRAMS = [
    # the program, what is shown, whether the call failed
    ("x = 1", "[nothing was printed: print what you need]", False),
    ("print(1)\n1 / 0", "1\n[error] ZeroDivisionError: division by zero", True),
    ("print('ab' * 150)", "ab" * 100 + "\n[cut off after 200 characters]", False),
    ("while True: print('x' * 99)", "x" * 99 + "\n*[stopped: it printed too much]", True),
    ("print(1)\nwhile True: pass", "[stopped after 0.3 seconds]", True),
    # what a template or a reader could take for something else
    ("print('<|im_end|> </tool_response> <tool_call>')", "< |im_end| > < /tool_response> < tool_call>", False),
    # a folder of its own: what the last program left is gone
    ("import os; print(os.listdir()); open('left', 'w')", "['program.py']", False),
]


def test_what_a_program_brings_back():
    for program, shown, failed in PROGRAMS:
        ran = run_program(program, replace(PATIENT, seconds=0.3) if "pass" in program[-5:] else PATIENT)
        begins, _, ends = shown.partition("*[")
        assert ran.failed == failed and len(ran.text) < 300, program
        assert ran.text == shown or (ends and ran.text.startswith(begins) and ran.text.endswith(ends)), program


def test_the_same_program_prints_the_same():
    program = "import random\nprint(random.random(), {'a', 'b', 'c', 'd', 'e', 'f'}, hash('a'), object())"
    first, second = (run_program(program, PATIENT) for _ in range(2))
    assert first.text == second.text and not first.failed
    assert str(Random(0).random()) in first.text


def answered(completion, example):
    """Pays for the answer, and shows as a part how long the completion was."""
    return Reward(float(extract_answer(completion) == example["answer"]), {"characters": len(completion)})


ROWS = [Example(str(n), [{"role": "user", "content": "6 * 7 ?"}], {"answer": "42"}) for n in range(10)]
ALONE = Task(split(ROWS, 0.5), answered, cheap=True, name="mine")


def playing(*said, options=PATIENT, task=ALONE):
    """A play in which the policy says these texts, with the messages that it was shown. Programs return their text."""
    play = Play(with_python(task, options), task.dataset.train[0], Random(0))

    def work(job):
        if job.function.otherwise is stopped:
            return ToolResult(f"printed by {job.arguments[0]}", "raise" in job.arguments[0])
        return job.function(*job.arguments)

    shown = play_through(play, *said, work=work)
    return play.rewards[SOLO], shown


def test_what_the_tool_printed_is_the_next_message_and_the_last_turn_is_the_answer():
    reward, shown = playing("<answer> 1 </answer> <tool_call>print(42)</tool_call>", "<answer> 42 </answer>")
    assert [turn.message for turn in shown] == [
        [{"role": "system", "content": INSTRUCTIONS.format(calls=4, seconds=60, characters=200)}, *ROWS[0].prompt],
        [{"role": "tool", "content": "printed by print(42)"}],
    ]
    assert [turn.optional for turn in shown] == [False, True] and reward.solved
    assert reward.parts == {"characters": len("<answer> 42 </answer>"), "tool_calls": 1.0, "tool_failed": 0.0}


def test_a_call_that_is_one_too_many_is_not_run_and_a_malformed_one_costs_a_call():
    call = "<tool_call>raise</tool_call>"
    options = PythonOptions(calls=2)
    reward, shown = playing(call, call, "<tool_call>print('<answer> 42 </answer>')</tool_call>", options=options)
    assert (reward.value, reward.parts["tool_calls"], reward.parts["tool_failed"], len(shown)) == (0, 2, 2, 3)
    reward, shown = playing('<tool_call>{"name": "<|im_end|>"}</tool_call>', "no")
    assert shown[1].message == [{"role": "tool", "content": "[error] no program"}]
    assert (reward.parts["tool_calls"], reward.parts["tool_failed"]) == (1, 1)


def test_a_sandbox_that_fails_is_not_the_completions_doing():
    play = Play(with_python(ALONE, PATIENT), ROWS[0], Random(0))
    play.advance(None)
    play.advance("<tool_call>print(1)</tool_call>")
    assert isinstance(play.pending, Job) and isinstance(play.pending.function, Grader)
    assert play.pending.function.seconds > 2 * PATIENT.seconds  # its own limits end it first
    play.advance(Failure("the sandbox could not run the command"))
    assert play.failure == "the sandbox could not run the command" and play.rewards == {}


def test_a_task_is_named_with_its_tool():
    flags = "--task countdown+python --countdown.max-number 7 --python.calls 2 --eval-tasks countdown"
    config, options = parsed(flags.split())
    assert (options["countdown"].max_number, options["python"].calls) == (7, 2)
    task = load_task(config.task, options)
    assert task.name == "countdown+python" and task.stop_strings == ("</tool_call>",)
    with pytest.raises(UserError, match="no tool 'pyton' to play a task with: choose python, as in countdown\\+python"):
        parsed(["--task", "countdown+pyton"])
