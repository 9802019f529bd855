"""Python as a tool inside an episode: what is a call, what it brings back, and that nothing of that is trained on."""

import json
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from minrl import trainer
from minrl.__main__ import main
from minrl.dataflow import SOLO, Example, Job, Reward, Turn, UserError
from minrl.models.chat import ChatTokenizer
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.rewards.episode import Play
from minrl.rewards.workers import Failure
from minrl.rollout import Plan, rollout
from minrl.run.folder import RunFolder
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
from minrl.utils.task_names import option_keys, task_key
from tests.chat_templates import tokenizer
from tests.conftest import CPU
from tests.killing import killed_at
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


@pytest.mark.parametrize(
    "call",
    ["  \n", '{"name": "search", "arguments": {"code": "print(1)"}}', '{"name": "python", "arguments": {"code": 7}}'],
)
def test_a_malformed_call_holds_no_program(call):
    assert program_of(call) == ""


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
    shown, said = [], list(said)
    play.advance(None)
    while play.pending is not None:
        if isinstance(play.pending, Turn):
            shown.append(play.pending)
            play.advance(said.pop(0))
        elif play.pending.function.otherwise is stopped:
            program, _ = play.pending.arguments
            play.advance(ToolResult(f"printed by {program}", "raise" in program))
        else:
            play.advance(play.pending.function(*play.pending.arguments))
    assert not said and play.failure is None, play.failure
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


def test_an_answer_that_stands_elsewhere_than_in_the_last_turn_is_not_paid():
    reward, _ = playing("<answer> 42 </answer> <tool_call>print('<answer> 42 </answer>')</tool_call>", "see above")
    assert reward.value == 0.0


def test_a_call_that_is_one_too_many_is_not_run_and_is_no_answer():
    call = "<tool_call>raise</tool_call>"
    options = PythonOptions(calls=2)
    reward, shown = playing(call, call, "<tool_call>print('<answer> 42 </answer>')</tool_call>", options=options)
    assert reward.value == 0 and len(shown) == 3
    assert (reward.parts["tool_calls"], reward.parts["tool_failed"]) == (2, 2)
    assert playing(call, call, f"<answer> 42 </answer> {call}", options=options)[0].value == 1.0


def test_a_malformed_call_costs_a_call_and_says_why():
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


def play_scripted(policy, workers, engine, group_size=1, temperature=1.0):
    task = with_python(Task(ALONE.dataset, answered, cheap=True), PythonOptions(seconds=60.0))
    plan = Plan(group_size, 8, temperature, 0, "test", 1)
    return rollout(policy, engine, workers, task, task.dataset.train[:1], plan)


def test_what_the_tool_printed_is_never_trained_on(policy, workers):
    engine = Scripted(policy, "<tool_call> print(6*7) </tool_call>", "<answer> 42 </answer> <end>")
    sampled = play_scripted(policy, workers, engine)
    assert sampled.failures == []
    assert {one.stop_strings for one in engine.samplings} == {("</tool_call>",)}
    (one,) = sampled.rollouts
    pieces = [
        ("<user> 6 * 7 ? <assistant>", False),  # the own template leaves out the system message
        ("<tool_call> print(6*7) </tool_call>", True),
        ("<end> <user> <tool_response> 42 </tool_response> <assistant>", False),
        ("<answer> 42 </answer> <end>", True),
    ]
    expected = [(token, sampled) for text, sampled in pieces for token in policy.tokenizer(text)["input_ids"]]
    assert list(zip(one.ids, one.loss_mask, strict=True)) == expected
    assert one.reward.value == 1.0 and one.reward.parts["tool_calls"] == 1
    assert [turn.shown_by for turn in one.episode] == ["", "tool"]
    assert not any(logprob for logprob, mask in zip(one.rollout_logprobs, one.loss_mask, strict=True) if not mask)


def test_a_context_that_the_tool_filled_ends_the_episode_with_an_empty_answer(policy, workers):
    # Unscorable, a full context would have advantage 0, which is more than a wrong answer has.
    engine = Scripted(policy, "<tool_call> print(6*7) </tool_call>")
    engine.room = 6 + 3 + 6  # the prompt, the call, and what shows its result: no token is left
    sampled = play_scripted(policy, workers, engine)
    (one,) = sampled.rollouts
    assert sampled.failures == [] and one.reward.value == 0.0
    assert one.reward.parts["characters"] == 0 and one.truncated and len(one.turns) == 1


CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
DROPPING = CHATML.replace(
    "{{- '<|im_start|>' + message.role", "{{- '' if message.role == 'tool' else '<|im_start|>' + message.role"
)


@pytest.mark.parametrize(
    ("template", "before", "after"),
    [(CHATML, "tool\n", ""), (DROPPING, "user\n<tool_response>\n", "\n</tool_response>")],
)
def test_the_tool_speaks_in_the_templates_turn_or_in_the_users(template, before, after):
    own = tokenizer("bytes", template, "<|im_start|> <|im_end|>", eos="<|im_end|>")
    chat = ChatTokenizer(tokenizer=own, chat_template_options={})
    end = own.convert_tokens_to_ids("<|im_end|>")
    ids = chat.encode_next_turn(tool_message(ROWS[0].prompt, [({}, "4 2")]), [end])
    assert chat.decode_all(ids) == f"\n<|im_start|>{before}4 2{after}<|im_end|>\n<|im_start|>assistant\n"


def test_a_task_is_named_with_its_tool():
    flags = "--task countdown+python --countdown.max-number 7 --python.calls 2 --eval-tasks countdown"
    config, options = parsed(flags.split())
    assert (options["countdown"].max_number, options["python"].calls) == (7, 2)
    assert config.what.startswith("countdown+python-")
    assert option_keys("countdown+python") == ["countdown", "python"] and task_key("a/b.py:TASK+python") == "b+python"
    task, alone = (load_task(name, options) for name in ("countdown+python", "countdown"))
    assert task.name == "countdown+python" and task.dataset.held_out == alone.dataset.held_out
    assert task.stop_strings == ("</tool_call>",) and alone.stop_strings == ()
    assert {"minrl.tasks.countdown", "minrl.tasks.python_tool", "minrl.sandbox.calls"} <= {
        *programs("countdown+python")
    }
    assert "minrl.tasks.python_tool" not in programs("countdown")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--task countdown+pyton", "no tool 'pyton' to play a task with: choose python, as in countdown\\+python"),
        ("--task countdown+python --python.calls 0", "python.calls must be from 1 to 64, got 0"),
        ("--task gsm8k+python --python.characters 5", "python.characters must be from 16 to 100000, got 5"),
    ],
)
def test_wrong_uses_are_refused_in_one_line(flags, reason):
    with pytest.raises(UserError, match=reason) as refused:
        parsed(flags.split())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["tictactoe+python", PRODUCTS])
def test_demonstrations_call_in_the_form_that_is_run(name):
    task, rng = load_task(name), Random(0)
    words, called = {*task.vocabulary}, 0
    for example in task.dataset.train[:40]:
        turns = task.demonstrations(example, rng)
        for (_, said), (shown, _) in pairwise(turns):
            if (call := find_call(said)) is not None:
                called += 1
                assert shown == tool_message([], [({}, str(eval(program_of(call[1]).removeprefix("print"))))])
        assert {*" ".join(said for _, said in turns).split()} <= words
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


RESUMED = f"""--task {PRODUCTS} --base-steps 60
    --base-hidden-size 64 --base-heads 2 --base-layers 1 --prompts-per-step 2 --group-size 4 --max-tokens 12 --steps 4
    --save-every 1 --eval-every 0 --eval-examples 2 --eval-samples 1 --rollouts-every 2 --reward-workers 1 --threads 1
    --device cpu --no-preflight"""


@pytest.mark.slow
def test_a_run_with_the_tool_that_was_killed_continues_to_the_same_weights(tmp_path):
    def ran(folder, *more):
        flags = ["--runs-dir", f"{tmp_path}/{folder}", "--checkpoints-dir", f"{tmp_path}/{folder}/checkpoints"]
        return main(["train", *more, *flags])

    def summary(folder):
        (found,) = (tmp_path / folder).glob("*/summary.json")
        return json.loads(found.read_text())

    assert ran("whole", *RESUMED.split()) == 0
    lines = RunFolder(next((tmp_path / "whole").glob("products*"))).metrics
    assert sum(line.get("reward/part/tool_calls", 0.0) for line in lines[1:]) > 0
    with killed_at(trainer, "update_policy", 3):
        ran("killed", *RESUMED.split())
    assert ran("killed", "--resume", "latest") == 0
    assert summary("killed")["weights_sha256"] == summary("whole")["weights_sha256"]
    assert summary("killed")["eval_after"]["pass@1"] == summary("whole")["eval_after"]["pass@1"]
    checkpoint = next((tmp_path / "whole/checkpoints").glob("products*/step_000004"))
    flags = f"--task {PRODUCTS} --checkpoint {checkpoint} --examples 6 --samples 2 --output {tmp_path}/scores".split()
    assert main(["evaluate", *flags]) == 0
    rows = [json.loads(line) for line in next(tmp_path.glob("scores/**/completions.jsonl")).read_text().splitlines()]
    assert any(one["parts"]["tool_calls"] > 0 for row in rows for one in row["roles"].values())
