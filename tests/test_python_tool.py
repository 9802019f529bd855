"""Python as a tool inside an episode: what is a call, what it brings back, and that nothing of that is trained on."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from minrl.dataflow import SOLO, Example, Job, Reward, UserError
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.rewards.episode import Play
from minrl.rewards.workers import Failure
from minrl.rollout import Plan, rollout
from minrl.tasks import Task, load_task
from minrl.tasks.grader import Grader
from minrl.tasks.programs import programs
from minrl.tasks.python_tool import (
    INSTRUCTIONS,
    PythonOptions,
    find_call,
    program_of,
    run_program,
    with_python,
)
from minrl.tasks.task import extract_answer, split
from minrl.tasks.tools import ToolResult, stopped, tool_message
from minrl.utils.task_names import task_key
from tests.conftest import CPU, play_through
from tests.parsed import parsed
from tests.test_documents import ROOT
from tests.test_rollout import Scripted

PRODUCTS = f"{ROOT / 'docs/products.py'}:products"
PATIENT = PythonOptions(seconds=60.0, characters=200)
"""For programs that end by themselves, however slow the machine."""


CALLS = [
    ("<think> hm <tool_call>\nprint(1)\nprint(2)\n</tool_call>", "print(1)\nprint(2)"),  # in a thought too
    ("A <tool_call> runs it: <tool_call>print(1)</tool_call>", "print(1)"),  # the last mark opens it
    ("<tool_call>print(1)</tool_call> <tool_call>print(2)</tool_call>", "print(1)"),  # the first one ends it
    ("<tool_call>\n```python\nprint(1)\n```\n</tool_call>", "print(1)"),
    ('<tool_call>\n{"name": "python", "arguments": {"code": "print(\\"a\\")"}}\n</tool_call>', 'print("a")'),
    ("<tool_call>{print(1)}</tool_call>", "{print(1)}"),  # no JSON: a program, if an odd one
]


def test_a_call_holds_a_program_between_two_marks():
    for completion, program in CALLS:
        assert program_of(find_call(completion)[1]) == program
    for completion in ("print(1)", "<tool_call> print(1)", "print(1) </tool_call>"):
        assert find_call(completion) is None


NO_PROGRAMS = [
    "  \n",
    '{"name": "search", "arguments": {"code": "print(1)"}}',
    '{"name": "python", "arguments": {"code": 7}}',
]


def test_a_malformed_call_holds_no_program():
    assert [program_of(call) for call in NO_PROGRAMS] == [""] * 3


PROGRAMS = [
    # the program, what is shown, whether the call failed
    ("x = 1", "[nothing was printed: print what you need]", False),
    ("print(1)\n1 / 0", "1\n[error] ZeroDivisionError: division by zero", True),
    ("print(1", "[error] SyntaxError: '(' was never closed", True),
    ("import sys\nsys.exit(3)", "[error] exit status 3", True),
    ("print('ab' * 150)", "ab" * 100 + "\n[cut off after 200 characters]", False),
    ("while True: print('x' * 99)", "x" * 99 + "\n*[stopped: it printed too much]", True),
    ("print(1)\nwhile True: pass", "[stopped after 0.3 seconds]", True),
    ("class A: pass\nprint([A()])", "[<__main__.A object at 0x...>]", False),
    # what a template or a reader could take for something else
    ("print('<|im_end|> </tool_response> <tool_call>')", "< |im_end| > < /tool_response> < tool_call>", False),
    ("raise ValueError('</s>\\u202e')", "[error] ValueError: < /s>\\u202e", True),
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
    assert [turn.optional for turn in shown] == [False, True]
    assert (reward.value, reward.solved) == (1.0, True)
    costs = {"tool_calls": 1.0, "tool_failed": 0.0}
    assert reward.parts == {"characters": len("<answer> 42 </answer>"), **costs}


def test_a_call_that_is_one_too_many_is_not_run_and_a_malformed_one_costs_a_call():
    call = "<tool_call>raise</tool_call>"
    options = PythonOptions(calls=2)
    reward, shown = playing(call, call, "<tool_call>print('<answer> 42 </answer>')</tool_call>", options=options)
    assert (reward.value, reward.parts["tool_calls"], reward.parts["tool_failed"], len(shown)) == (0, 2, 2, 3)
    assert playing(call, call, f"<answer> 42 </answer> {call}", options=options)[0].value == 1.0
    call = "<answer> 42 </answer> <tool_call>print('<answer> 42 </answer>')</tool_call>"
    assert playing(call, "see above")[0].value == 0.0  # an answer elsewhere than in the last turn
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


@pytest.fixture
def policy(words, processes):
    """One that knows the words of calls."""
    calls = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "print(6*7)", "42", "?", "*"]
    own = word_tokenizer([*words, *calls])
    return as_policy(small_qwen3(own, 64, 2, 2, 0), own, CPU, processes)


def test_a_context_that_the_tool_filled_ends_the_episode_with_an_empty_answer(policy, workers):
    # Unscorable, a full context would have advantage 0, which is more than a wrong answer has.
    engine = Scripted(policy, "<tool_call> print(6*7) </tool_call>")
    engine.room = 6 + 3 + 6  # the prompt, the call, and what shows its result: no token is left
    task = with_python(ALONE, PythonOptions(seconds=60.0))
    sampled = rollout(policy, engine, workers, task, task.dataset.train[:1], Plan(1, 8, 1.0, 0, "test", 1))
    (one,) = sampled.rollouts
    assert sampled.failures == [] and one.reward.value == 0.0
    assert {sampling.stop_strings for sampling in engine.samplings} == {("</tool_call>",)}
    assert one.reward.parts["characters"] == 0 and one.truncated and len(one.turns) == 1


def test_a_task_is_named_with_its_tool():
    flags = "--task countdown+python --countdown.max-number 7 --python.calls 2 --eval-tasks countdown"
    config, options = parsed(flags.split())
    assert (options["countdown"].max_number, options["python"].calls) == (7, 2)
    assert config.what.startswith("countdown+python-") and task_key("a/b.py:TASK+python") == "b+python"
    task, alone = (load_task(name, options) for name in ("countdown+python", "countdown"))
    assert task.name == "countdown+python" and task.dataset.held_out == alone.dataset.held_out
    assert task.stop_strings == ("</tool_call>",) and alone.stop_strings == ()
    assert "minrl.tasks.python_tool" in {*programs("countdown+python")} - {*programs("countdown")}
    with pytest.raises(UserError, match="no tool 'pyton' to play a task with: choose python, as in countdown\\+python"):
        parsed(["--task", "countdown+pyton"])


@pytest.mark.parametrize("name", ["tictactoe+python", PRODUCTS])
def test_demonstrations_call_in_the_form_that_is_run(name):
    task, rng, called = load_task(name), Random(0), 0
    for example in task.dataset.train[:40]:
        for (_, said), (shown, _) in pairwise(task.demonstrations(example, rng)):
            if (call := find_call(said)) is not None:
                called += 1
                assert shown == tool_message([], [({}, str(eval(program_of(call[1]).removeprefix("print"))))])
    assert called >= 8


def test_the_products_of_the_docs_are_right_and_are_called_for():
    task, rng = load_task(PRODUCTS), Random(0)
    examples = [*task.dataset.train, *task.dataset.held_out]
    assert len(examples) > 1900 and all(str(eval(one["problem"])) == one["answer"] for one in examples)
    one = examples[0]
    for said, value in ((one["answer"], 0), (f"<answer> {one['answer']} </answer>", 1), ("<answer> 100 </answer>", 0)):
        assert task.reward(said, one) == value
    called = [any(one["problem"] in said for _, said in task.demonstrations(one, rng)) for one in examples]
    assert 0.25 < sum(called) / len(called) < 0.35  # three of ten
