"""MATH: which completions are paid, that no answer costs more than its time limit, and where the rows come from."""

import json
import resource
import sys
import threading
import time
from dataclasses import replace

import pytest

from minrl.rewards.workers import Failure, Workers
from minrl.tasks import load_task
from minrl.tasks.answers import boxes_together
from minrl.tasks.grader import KILL_AFTER_S, bounded
from minrl.tasks.math import MathOptions, boxed_answer, gold_answers, r1_zero_answer, reward
from minrl.types import SOLO, Example, Job, Reward, Rollout, UserError
from minrl.utils.statistics import summarize
from tests.apart import apart

HALF = Example("", "", {"problem": r"Simplify $\frac{2}{4}$ and $\sqrt{50}$.", "answer": r"\frac{1}{2}"})
THREE = Example("", "", {"problem": "How many?", "answer": "3"})
PATIENT = MathOptions(timeout_s=60.0)
BARE = Example("", "", {"answer": "3"})
R1 = MathOptions(prompt="r1_zero", timeout_s=60.0)
FORM = 0.1


WRITTEN = "1 + 1 </think> <answer> 0.5 </answer>"
R1_PAID = {
    "right": (WRITTEN, 1.0),
    "with the tag that the prompt ends in": (f"<think> {WRITTEN}", 1.0),
    "a box in the answer": (r"so </think> <answer> It is \boxed{0.5}. </answer>", 1.0),
    "wrong": ("so </think> <answer> 0.7 </answer>", FORM),
    "no thoughts": ("<answer> 0.5 </answer>", 0.0),
    "answer inside the thoughts": ("<answer> 0.5 </answer> </think>", 0.0),
    "two answers": ("</think> <answer> 0.4 </answer> <answer> 0.5 </answer>", 0.0),
    "never closed": ("so </think> <answer> 0.5", 0.0),
    "text after the answer": (f"{WRITTEN} or 0.7", 0.0),
    "text between": ("so </think> that is <answer> 0.5 </answer>", 0.0),
    "thoughts closed twice": (f"so </think> {WRITTEN}", 0.0),
    "empty answer": ("so </think> <answer> </answer>", FORM),
    "empty": ("", 0.0),
    "the prompt copied": ("<think> thoughts </think> <answer> answer </answer>", FORM),
    "both roots": ("so </think> <answer> 0.5 or 0.7 </answer>", FORM),
}
BOXED_PAID = {
    "right": (r"so it is \boxed{\frac12}", 1.0),
    "the last box counts": (r"\boxed{0.7}, no, \boxed{0.5}", 1.0),
    "the last box counts, also a wrong one": (r"\boxed{0.5}, no, \boxed{0.7}", FORM),
    "no box": ("so it is 0.5", 0.0),
    "empty": ("", 0.0),
    "braces inside": (r"\boxed{\frac{1}{{2}}}", 1.0),
    "all candidates": (r"\boxed{0.1, 0.2, 0.3, 0.4, 0.5}", FORM),
    "alternatives": (r"\boxed{0.7 \text{ or } 0.5}", FORM),
    "a false chain of equations": (r"\boxed{x = 0.7 = 0.5}", FORM),
    "the end of an equation counts, also a wrong one": (r"\boxed{x = 0.5 = 0.7}", FORM),
    "copied from the problem": (r"\boxed{\frac{2}{4}}", FORM),  # equal, and not simplified
    "the problem itself": (rf"\boxed{{{HALF['problem']}}}", FORM),
    "a name of the reference": (r"\boxed{answer}", FORM),
    "lone surrogate": ("\\boxed{\ud800}", FORM),
}


@pytest.mark.parametrize(("completion", "value"), R1_PAID.values(), ids=R1_PAID)
def test_thoughts_then_one_answer_are_paid(completion, value):
    assert reward(completion, HALF, R1).value == pytest.approx(value)


@pytest.mark.parametrize(("completion", "value"), BOXED_PAID.values(), ids=BOXED_PAID)
def test_the_last_box_is_paid(completion, value):
    paid = reward(completion, HALF, PATIENT)
    assert paid.value == pytest.approx(value)
    assert paid.solved == (value == 1.0)


def test_the_weights_are_the_options():
    paid = reward(r"\boxed{7}", THREE, MathOptions(answer_weight=3.0, format_weight=1.0))
    assert (paid.value, paid.parts["answer"], paid.parts["format"]) == (0.25, 0.0, 1.0)
    assert reward(r"\boxed{7}", THREE, MathOptions(format_weight=0.0)).value == 0.0


SLOW = {
    "tower of powers": "9**9**9",
    "sum without end": r"\sum_{n=1}^{10^{12}} \frac{1}{n^3 + \sin n}",
    "product of brackets": "(x+1)" * 150,
    "nested fractions": r"\frac{1}{" * 90 + "1" + "}" * 90,
    "exponent": "1e999999999",
    "nested braces, 200 kB": "{" * 100_000 + "3" + "}" * 100_000,
    "100 kB of a sum": "1+" * 50_000 + "1",
}


@pytest.fixture(scope="module")
def library():
    """Loaded, also in the forks of the tests."""
    reward(r"\boxed{1/3}", THREE, PATIENT)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
@apart
def test_no_answer_takes_longer_than_its_time_limit(answer):
    started = time.perf_counter()
    paid = reward(rf"\boxed{{{answer}}}", BARE, MathOptions(timeout_s=0.1))
    assert time.perf_counter() - started < 60  # the time limit is 600 times shorter: slow machines pass
    assert paid.value == pytest.approx(FORM)


@apart
def test_an_answer_that_takes_too_long_is_wrong_and_says_so():
    paid = reward(r"\boxed{9^{9^{9}}}", BARE, MathOptions(timeout_s=0.1))
    assert paid.parts == {"answer": 0.0, "format": 1.0, "timeout": 1.0}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such clock")
def test_the_limit_is_counted_by_the_clock_that_it_is_compared_with(monkeypatch):
    """Linux compares RLIMIT_CPU with time in ticks: 7 % more than getrusage says were seen on a busy machine."""
    ahead = time.process_time() + 1000
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {~0 << 3: ahead}[clock])
    with bounded(1.0):
        assert resource.getrlimit(resource.RLIMIT_CPU)[0] >= ahead + 1.0 + KILL_AFTER_S


def test_a_limit_outside_the_main_thread_fails_aloud():
    raised = []

    def grade():
        try:
            reward(r"\boxed{1/3}", THREE)
        except ValueError as error:
            raised.append(str(error))

    thread = threading.Thread(target=grade)
    thread.start()
    thread.join()
    assert "main thread" in raised[0]


def test_workers_grade_and_go_on_after_an_answer_that_takes_too_long(caplog):
    patient, strict = (load_task("math", {"math": MathOptions(timeout_s=seconds)}) for seconds in (60.0, 0.2))
    workers = Workers(1, 120.0)
    try:
        texts = [(patient, r"\boxed{3}"), (strict, r"\boxed{9^{9^{9}}}"), (patient, r"\boxed{6/2}")]
        paid = workers.run([Job(task.reward, (text, BARE)) for task, text in texts])
    finally:
        workers.close()
    assert not any(isinstance(one, Failure) for one in paid), paid
    assert [one.parts["answer"] for one in paid] == [1.0, 0.0, 1.0]
    assert [one.parts["timeout"] for one in paid] == [0.0, 1.0, 0.0]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = [
    {"problem": f"What is ${n} / 7$?", "answer": rf"\frac{{{n}}}{{7}}", "subject": "Algebra", "level": 2}
    for n in range(1, 21)
]
MATH_ROWS = [
    {
        "problem": f"What is ${n} / 9$?",
        "solution": rf"First \boxed{{0}}. Then $\boxed{{\frac{{{n}}}{{9}}}}$.",
        "type": "Prealgebra",
        "level": "Level 5",
    }
    for n in range(1, 21)
]


def test_rows_with_an_answer_and_rows_with_a_solution_make_the_same_examples(tmp_path):
    task = load_task("math", None, write(tmp_path / "rows.jsonl", [*ROWS, *MATH_ROWS]))
    examples = [*task.dataset.train, *task.dataset.held_out]
    assert len(examples) == 40
    assert {(e.category["subject"], e.category["level"]) for e in examples} == {("Algebra", "2"), ("Prealgebra", "5")}
    assert all(task.reward(rf"\boxed{{{example['answer']}}}", example).solved for example in examples)


def test_data_without_a_training_split_is_for_evaluation(tmp_path):
    write(tmp_path / "test.jsonl", ROWS)
    assert load_task("math", {"math": MathOptions(train_split="")}, str(tmp_path)).dataset.sizes() == (0, 20)


def test_the_prompts_are_a_text_that_opens_the_thoughts_or_messages_that_ask_for_a_box(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    text = load_task("math", {"math": R1}, path).dataset.train[0].prompt
    assert text.endswith("Assistant: <think>") and "What is $" in text
    system, user = load_task("math", None, path).dataset.train[0].prompt
    assert r"\boxed{}" in system["content"] and user["content"].startswith("What is $")


def test_an_evaluation_says_how_each_subject_and_level_did():
    kinds = [("Algebra", "1"), ("Algebra", "5"), ("Geometry", "5")]
    examples = [Example(f"{s}{n}", "", {}, {"subject": s, "level": n}) for s, n in kinds]
    solved = {"Algebra1": (1, 1), "Algebra5": (1, 0), "Geometry5": (0, 0)}
    rollouts = [
        Rollout([1, 2], [False, True], [0.0, 0.0], [(1, 2)], 1, e.id, g, s, SOLO, 0, 0, reward=Reward(float(paid)))
        for g, e in enumerate(examples)
        for s, paid in enumerate(solved[e.id])
    ]
    # Over the samples of all examples of a kind: Algebra 3 of 4, level 5 1 of 4.
    assert summarize(examples, rollouts, []).categories == {
        "level=1": 1.0,
        "level=5": 0.25,
        "subject=Algebra": 0.75,
        "subject=Geometry": 0.0,
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"problem": "1?"}, r"row 1 of .*: lacks answer and solution, one of which is needed \(it has problem\)"),
        ({"problem": "1?", "solution": "it is 3"}, r"needs a `solution` with its answer in \\boxed"),
        ({"problem": "1?", "answer": " "}, "`answer` is empty"),
        ({"answer": "1"}, r"row 1 of .* lacks problem \(it has answer\)"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, row, said):
    with pytest.raises(UserError, match=said):
        load_task("math", None, write(tmp_path / "rows.jsonl", [row])).dataset.sizes()


def test_without_the_hub_the_way_out_is_named():
    with pytest.raises(UserError, match=r"cannot load dataset 'someone/maths' of the hub.*--data-path"):
        load_task("math", {"math": MathOptions(dataset="someone/maths")}).dataset.sizes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_s": 0.0}, "math.timeout_s must be more than 0"),
        ({"answer_weight": 0.0}, "math.answer_weight must be more than 0"),
        ({"format_weight": -0.1}, "math.format_weight must be 0 or more"),
        ({"held_out_share": 1.5}, r"math.held_out_share must be in \(0, 1\]"),
        ({"test_split": ""}, "math.test_split must name the held-out split"),
    ],
)
def test_impossible_options_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        MathOptions(**options)


PROSE = [
    r"The radius is $\boxed{3}$. Therefore, the answer is $\boxed{9}$.",
    r"\boxed{3}. Simplifying, we get \boxed{9}",
    r"\boxed{3}, and the answer is \boxed{9}",
    r"\boxed{3}; the final answer is \boxed{9}",
    r"Side is \boxed{3} cm, area is \boxed{9}",
    r"I got \boxed{3}; the right answer is \boxed{9}",
    r"\boxed{3} \boxed{9}",
    r"\boxed{3} or better \boxed{9}",
    r"\boxed{3}, area = \boxed{9}",
    r"\boxed{3}, \text{hence } \boxed{9}",
    r"\boxed{3}," + "\n" + "and so on, " * 9 + r"\boxed{9}",
]
LISTS = [
    r"\boxed{3}, \boxed{9}",
    r"$\boxed{3}$;" + "\n" * 99 + r"$\boxed{9}$",
    r"$x=\boxed{3}$ and $y_1 = \boxed{9}$",
    r"\(\boxed{3}\), or \(\boxed{9}\).",
    r"\boxed{3} \quad\text{and}\quad \theta=\boxed{9}",
    r"\boxed{3},\text{ or } f(1)=\boxed{9}",
]


@pytest.mark.parametrize("text", PROSE)
def test_a_box_that_prose_links_to_another_is_no_part_of_the_answer(text):
    assert [boxed_answer(text)] == gold_answers({"solution": text}) == ["9"]


@pytest.mark.parametrize("text", LISTS)
def test_boxes_in_a_list_are_one_answer(text):
    assert boxes_together(text) == ["3", "9"]


def test_an_empty_box_is_no_answer():
    assert boxed_answer(r"so \boxed{9}. I put it in \boxed{}") == "9"
    assert boxed_answer(r"\boxed{}") is boxed_answer(r"\boxed{ }") is None
    assert r1_zero_answer(r"so </think> <answer> \boxed{9} \boxed{} </answer>") == "9"


def only(tmp_path, row, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return load_task("math", {"math": MathOptions(held_out_share=1.0, **options)}, str(path)).dataset.held_out[0]


LISTED = {"problem": "How long is it?", "answer": [r"1.5\text{ m}", r"150\text{ cm}"]}


@pytest.mark.parametrize(("answer", "solved"), [("150 cm", True), ("1.5", True), ("150, 1.5", False), ("2", False)])
def test_any_answer_of_a_list_is_right(tmp_path, answer, solved):
    assert reward(rf"\boxed{{{answer}}}", only(tmp_path, LISTED), PATIENT).solved == solved


def test_a_list_of_answers_can_be_one_answer(tmp_path):
    example = only(tmp_path, {"problem": "Which?", "answer": ["1", 2]}, answer_lists="all")
    assert reward(r"\boxed{2, 1}", example, PATIENT).solved
    assert not reward(r"\boxed{2}", example, PATIENT).solved


@pytest.mark.parametrize(
    ("answer", "lists", "said"),
    [
        (["1"], "refuse", "`answer` is a list, which --math.answer-lists refuse does not take"),
        ([], "any", "`answer` is a list that is empty or has an empty answer"),
        (["1", " "], "any", "`answer` is a list that is empty or has an empty answer"),
        ([["1"]], "any", "`answer` is a list of more than texts and numbers"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(tmp_path, answer, lists, said):
    with pytest.raises(UserError, match=said):
        only(tmp_path, {"problem": "Which?", "answer": answer}, answer_lists=lists)


@pytest.mark.parametrize("value", [{"a": 1}, float("nan"), True])
def test_an_answer_that_is_no_text_or_number_is_refused(tmp_path, value):
    for answer, said in ((value, "`answer` must be a text or a number"), ([value], "a list of more than texts and n")):
        with pytest.raises(UserError, match=said):
            only(tmp_path, {"problem": "Which?", "answer": answer})
    with pytest.raises(UserError, match="`problem` must be a text, got list"):
        only(tmp_path, {"problem": ["odd"], "answer": "1"})


@pytest.mark.parametrize("answer", ["", " ", None])
def test_without_an_answer_the_solution_is_read(tmp_path, answer):
    row = {"problem": "Which?", "answer": answer, "solution": r"It is \boxed{7}."}
    assert only(tmp_path, row).fields["answer"] == "7"
    assert reward(r"\boxed{7}", Example("", "", row), PATIENT).solved


@pytest.mark.parametrize(("lists", "paid"), [("any", {"1": True, "2, 1": False}), ("all", {"1": False, "2, 1": True})])
def test_the_row_of_a_completion_is_read_with_its_lists_as_those_trained_on(lists, paid):
    example = Example("", "", {"answer": ["1", "2"]})
    options = replace(PATIENT, answer_lists=lists)
    assert {answer: reward(rf"\boxed{{{answer}}}", example, options).solved for answer in paid} == paid


@pytest.mark.parametrize("completion", [r"\boxed{1}", "no box"])
def test_the_row_of_a_completion_with_a_list_can_be_refused(completion):
    with pytest.raises(UserError, match=r"--math\.answer-lists refuse"):
        reward(completion, Example("", "", {"answer": ["1"]}), replace(PATIENT, answer_lists="refuse"))
