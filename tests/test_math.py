"""MATH: which form is paid, that no answer costs more than its time limit, and where the rows come from."""

import hashlib
import resource

import pytest

from minrl.dataflow import Example, Reward, UserError
from minrl.rewards.workers import Workers
from minrl.tasks import load_task, math_answers
from minrl.tasks.grader import MEMORY_MIB
from minrl.tasks.math import TEXTS, MathOptions, boxed_answer, gold_answers, reward
from minrl.tasks.math_answers import answers_agree
from tests.crew import apart
from tests.runs import write_rows

HALF = Example("", "", {"problem": r"Simplify $\frac{2}{4}$ and $\sqrt{50}$.", "answer": r"\frac{1}{2}"})
BARE = Example("", "", {"answer": "3"})
PATIENT = MathOptions(timeout_s=60.0)
TAGGED = MathOptions(prompt="tagged", timeout_s=60.0)
R1 = MathOptions(prompt="r1_zero", timeout_s=60.0)
FORM = 0.1

WRITTEN = "1 + 1 </think> <answer> 0.5 </answer>"
PAID = [
    (TAGGED, f"<think> {WRITTEN}", 1.0),
    (TAGGED, r"so </think> <answer> It is \boxed{0.5}. </answer>", 1.0),
    (TAGGED, "so </think> <answer> 0.5 or 0.7 </answer>", FORM),
    (TAGGED, f"{WRITTEN} or 0.7", 0.0),
    (TAGGED, "</think> <answer> 0.4 </answer> <answer> 0.5 </answer>", 0.0),
    # the published form: one space between the tags, 1 or 0
    *((R1, text, 1.0) for text in (f"so </think> {WRITTEN}", r"</think> <answer> It is \boxed{0.5}. </answer>")),
    *((R1, text, 0.0) for text in ("so </think> <answer> 0.7 </answer>", "so </think>\n<answer> 0.5 </answer>")),
    (PATIENT, r"so it is \boxed{\frac12}", 1.0),
    (PATIENT, "so it is 0.5", 0.0),
    (PATIENT, r"\boxed{\frac{2}{4}}", FORM),  # copied from the problem
]


@pytest.mark.parametrize(("options", "completion", "value"), PAID)
def test_the_answer_in_the_form_of_the_prompt_is_paid(options, completion, value):
    paid = reward(completion, HALF, options)
    assert (paid.value, paid.solved) == (pytest.approx(value), value == 1.0)


def test_the_weights_are_the_options():
    assert reward(r"\boxed{7}", BARE, MathOptions(answer_weight=3.0, format_weight=1.0)).value == 0.25


def test_an_answer_that_takes_too_long_is_counted():
    paid = reward(r"\boxed{9^{9^{9}}}", BARE, MathOptions(timeout_s=0.1))
    assert (paid.value, paid.parts["timeout"]) == (pytest.approx(FORM), 1.0)


R1_ZERO_SHA256 = "56213732da87e12ace60a2b88a16df0af18280fb0563a957cbecc938a6a2ac0e"


def test_the_published_prompt_is_word_for_word_and_ends_the_completion_with_its_answer(tmp_path):
    published = TEXTS["r1_zero"].replace("{problem}", "{question}")  # as prompts/r1_zero.prompt of the course's code
    assert hashlib.sha256(published.encode()).hexdigest() == R1_ZERO_SHA256
    task = tasks_of(tmp_path / "rows.jsonl", *ROWS, prompt="r1_zero")
    example = task.dataset.held_out[0]
    assert task.stop_strings == ("</answer>",)
    assert example.prompt == TEXTS["r1_zero"].replace("{problem}", example["problem"])
    assert task.reward(task.solution(example), example).value == 1.0


def test_a_file_is_a_prompt_whose_form_follows_from_its_text(tmp_path):
    path, row = tmp_path / "short.prompt", {"problem": r"1+2 \{x}", "answer": "3"}
    path.write_text("Q: {question} <answer>?\n")
    task = tasks_of(tmp_path / "rows.jsonl", row, held_out_share=1.0, prompt=str(path), timeout_s=60.0)
    (example,) = task.dataset.held_out
    assert example.prompt == r"Q: 1+2 \{x} <answer>?"
    assert task.reward("</think> <answer> 3 </answer>", example).solved
    assert not task.reward(r"\boxed{3}", example).solved


def test_a_prompt_that_is_none_is_refused(tmp_path):
    (tmp_path / "no.prompt").write_text("Think!")
    with pytest.raises(UserError, match=r"needs \{problem\} where the problem stands"):
        load_task("math", {"math": MathOptions(prompt=str(tmp_path / "no.prompt"))})
    with pytest.raises(UserError, match=r"math.prompt must be .*boxed.* or a file, .*: did you mean boxed"):
        load_task("math", {"math": MathOptions(prompt="boxeds")})


COSTLY = [
    *("9^{9^{9^9}}", "(10^9)!", r"\binom{10^9}{5\cdot10^8}", r"\sum_{n=1}^{10^{12}} \frac{1}{n^3 + \sin n}"),
    *(r"\frac{1}{" * 90 + "1" + "}" * 90, "{" * 100_000 + "3" + "}" * 100_000),
]
WITHOUT_A_JOB_MIB = 400
"""More than a worker with math-verify and sympy holds."""


@pytest.mark.slow
@apart
def test_what_costs_much_is_scored_within_bounds_of_time_and_memory():
    task, workers = load_task("math", {"math": MathOptions(timeout_s=0.3)}), Workers(1, 60.0)
    try:
        paid = workers.run([task.reward_job(rf"\boxed{{{answer}}}", BARE) for answer in COSTLY])
    finally:
        workers.close()
    assert all(isinstance(one, Reward) and one.value <= FORM for one in paid), paid
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024 < WITHOUT_A_JOB_MIB + MEMORY_MIB


def tasks_of(path, *rows, **options):
    return load_task("math", {"math": MathOptions(**options)}, str(write_rows(path, *rows)))


ROWS = [
    {"problem": f"What is ${n} / 7$?", "answer": rf"\frac{{{n}}}{{7}}", "subject": "Algebra", "level": 2}
    for n in range(1, 21)
]
MATH_ROW = {"problem": "1/9?", "solution": r"So $\boxed{\frac{1}{9}}$.", "type": "Algebra", "level": "Level 2"}


def test_rows_with_an_answer_and_rows_with_a_solution_make_the_same_examples(tmp_path):
    dataset = (task := tasks_of(tmp_path / "rows.jsonl", *ROWS, MATH_ROW)).dataset
    examples = [*dataset.train, *dataset.held_out]
    assert len(examples) == 21 and {(*e.category.values(),) for e in examples} == {("Algebra", "2")}
    assert all(task.reward(task.solution(example), example).solved for example in examples)
    with pytest.raises(UserError, match=r"row 1: needs `answer`, or a `solution` with its answer in \\boxed"):
        tasks_of(tmp_path / "rows.jsonl", {"problem": "1?"}).dataset.sizes()


def test_boxes_in_a_list_are_one_answer_and_a_box_that_prose_links_to_another_is_none():
    prose = r"The radius is $\boxed{3}$. Therefore, the answer is $\boxed{9}$."
    assert [boxed_answer(prose)] == gold_answers({"solution": prose}) == ["9"]
    assert boxed_answer(r"\boxed{3}, \boxed{9}") == boxed_answer(r"\(\boxed{3}\), or \(\boxed{9}\).") == "3, 9"
    assert boxed_answer(r"\boxed{}") is None


def test_any_answer_of_a_list_is_right():
    example = Example("", "", {"problem": "How long is it?", "answer": [r"1.5\text{ m}", r"150\text{ cm}"]})
    for answer, solved in {"150 cm": True, "1.5": True, "150, 1.5": False, "2": False}.items():
        assert reward(rf"\boxed{{{answer}}}", example, PATIENT).solved == solved


def test_sympy_is_not_asked_whether_an_infinity_is_a_number(monkeypatch):
    # In some orders of its hashes sympy's 12/7 - oo/7 is 0.
    monkeypatch.setattr(math_answers, "_verified", lambda meant, given: True)
    assert not answers_agree(r"\frac{12}{7}", r"\frac{-inf}{7}") and not answers_agree("12", r"\frac{\infty}{7}")
    assert answers_agree(r"-\infty", r"\frac{-\infty}{7}") and answers_agree("x < 3", r"(-\infty, 3)")
