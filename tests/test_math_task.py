"""MATH: which answers agree, which completions are paid, and that no answer costs more than its time limit."""

import json
import logging
import resource
import sys
import threading
import time

import pytest

from minrl.rewards.workers import Failure, Workers
from minrl.tasks import load_task
from minrl.tasks.bounded import KILL_AFTER_S, bounded
from minrl.tasks.math import MathOptions, reward
from minrl.tasks.math.agreement import answers_agree, same_text
from minrl.types import SOLO, Example, Job, Reward, Rollout, UserError
from minrl.utils.statistics import summarize
from tests.apart import apart

HALF = Example("", "", {"problem": r"Simplify $\frac{2}{4}$ and $\sqrt{50}$.", "answer": r"\frac{1}{2}"})
THREE = Example("", "", {"problem": "How many?", "answer": "3"})
PATIENT = MathOptions(timeout_s=60.0)
BARE = Example("", "", {"answer": "3"})
R1 = MathOptions(prompt="r1_zero", timeout_s=60.0)
FORM = 0.1


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{2}", "0.5"),
        (r"\frac{1}{2}", "1/2"),
        (r"\frac{1}{2}", r"\dfrac12"),
        (r"\frac{1}{2}", r"$\frac{1}{2}$"),
        (r"\frac{1}{2}", r"x = \frac{1}{2}"),
        ("1000", "1,000"),
        (r"90^\circ", "90"),
        (r"10\text{ units}", "10"),
        (r"\$10", "10"),
        ("50\\%", "50"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
        ("1,2", "2,1"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("(x+1)^2", "x^2 + 2x + 1"),
        (r"\text{Evelyn}", "evelyn"),
        ("Even", r"\textbf{even}"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    ],
)
def test_answers_that_mean_the_same_agree(gold, answer):
    assert answers_agree(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("3", "1,2,3,4"),
        ("3", "{1,2,3}"),
        ("3", r"1 \text{ or } 3"),
        ("3", "1 or 2 or 3"),
        ("3", r"\{3, 4\}"),
        ("3", "33"),
        ("3", "-3"),
        ("3", "3x"),
        ("3", ""),
        ("3", " "),
        ("3", "x"),
        ("3", "answer"),
        ("", ""),
        ("", "3"),
        (r"\frac{1}{2}", "1"),
        (r"\frac{1}{2}", "0.4999"),
        ("(1,2)", "(2,1)"),
        (r"\sqrt{2}", "1.414"),
        ("yes", "no"),
        (r"\text{E}", r"\text{A}"),
        ("E", "e^1 + 1"),
    ],
)
def test_answers_that_mean_something_else_do_not(gold, answer):
    assert not answers_agree(gold, answer)


def test_case_counts_for_letters_and_not_for_words():
    assert same_text("odd", "Odd")
    assert not same_text("A", "a")
    assert not same_text("", "")


WRITTEN = "1 + 1 </think> <answer> 0.5 </answer>"
R1_PAID = {
    "right": (WRITTEN, 1.0),
    "with the tag that the prompt ends in": (f"<think> {WRITTEN}", 1.0),
    "a box in the answer": (r"so </think> <answer> It is \boxed{0.5}. </answer>", 1.0),
    "wrong": ("so </think> <answer> 0.7 </answer>", FORM),
    "no thoughts": ("<answer> 0.5 </answer>", 0.0),
    "answer inside the thoughts": ("<answer> 0.5 </answer> </think>", 0.0),
    "two answers": ("</think> <answer> 0.4 </answer> <answer> 0.5 </answer>", 0.0),
    "answer in an answer": ("</think> <answer> <answer> 0.5 </answer> </answer>", 0.0),
    "closed before opened": ("</think> </answer> 0.5 <answer>", 0.0),
    "never closed": ("so </think> <answer> 0.5", 0.0),
    "text after the answer": (f"{WRITTEN} or 0.7", 0.0),
    "text between": ("so </think> that is <answer> 0.5 </answer>", 0.0),
    "thoughts closed twice": (f"so </think> {WRITTEN}", 0.0),
    "thoughts opened twice": (f"<think> <think> {WRITTEN}", 0.0),
    "empty answer": ("so </think> <answer> </answer>", FORM),
    "empty": ("", 0.0),
    "the other prompt's form": (r"so it is \boxed{0.5}", 0.0),
    "the prompt copied": ("<think> thoughts </think> <answer> answer </answer>", FORM),
    "both roots": ("so </think> <answer> 0.5 or 0.7 </answer>", FORM),
}
BOXED_PAID = {
    "right": (r"so it is \boxed{\frac12}", 1.0),
    "the last box counts": (r"\boxed{0.7}, no, \boxed{0.5}", 1.0),
    "the last box counts, also a wrong one": (r"\boxed{0.5}, no, \boxed{0.7}", FORM),
    "no box": ("so it is 0.5", 0.0),
    "empty": ("", 0.0),
    "empty box": (r"\boxed{}", 0.0),
    "never closed": (r"\boxed{0.5", 0.0),
    "braces inside": (r"\boxed{\frac{1}{{2}}}", 1.0),
    "all candidates": (r"\boxed{0.1, 0.2, 0.3, 0.4, 0.5}", FORM),
    "all candidates, the right one last": (r"\boxed{0.7, 0.5}", FORM),
    "alternatives": (r"\boxed{0.7 \text{ or } 0.5}", FORM),
    "a false chain of equations": (r"\boxed{x = 0.7 = 0.5}", FORM),
    "a true chain of equations": (r"\boxed{x = 2/4 = 0.5}", 1.0),
    "the end of an equation counts, also a wrong one": (r"\boxed{x = 0.5 = 0.7}", FORM),
    "copied from the problem": (r"\boxed{\frac{2}{4}}", FORM),  # equal, and not simplified
    "copied with white space": (r"\boxed{ \frac {2} {4} }", FORM),
    "the problem itself": (rf"\boxed{{{HALF['problem']}}}", FORM),
    "a name of the reference": (r"\boxed{answer}", FORM),
    "python": (r"\boxed{__import__('os').system('true')}", FORM),
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


def test_an_answer_that_stands_in_the_problem_is_right_where_the_reference_says_the_same():
    example = Example(
        "", "", {"problem": r"Which is larger, $\frac{1}{2}$ or $\frac{1}{3}$?", "answer": r"\frac{1}{2}"}
    )
    assert reward(r"\boxed{\dfrac{1}{2}}", example, PATIENT).solved
    assert not reward(r"\boxed{\frac{1}{3}}", example, PATIENT).solved


@pytest.mark.parametrize(
    ("gold", "answer", "problem"),
    [
        (r"\frac{1}{2}", "1/2", "It falls heads with probability 1/2."),
        (r"\frac{1}{2}", r"\dfrac12", r"It falls heads with probability $\dfrac12$."),
        (r"\frac{1}{2}", "0.5", r"A pen costs \$10.50."),
        ("1000", "1,000", "Of 1,000 people"),
        ("1000", "1{,}000", "Of 1{,}000 people"),
        (r"-\frac{1}{2}", "-1/2", "Solve $x-1/2=-1$."),
        ("10", r"\$10", r"Of \$10"),
        ("1+x", "x+1", "Factor $2x+10$."),  # inside a longer token
    ],
)
def test_a_number_is_not_copied_though_the_problem_names_it(gold, answer, problem):
    example = Example("", "", {"problem": problem, "answer": gold})
    assert reward(rf"\boxed{{{answer}}}", example, PATIENT).solved


def test_an_expression_is_copied_whatever_stands_around_it():
    example = Example("", "", {"problem": r"Simplify: 2/4, or $\sqrt{50}$, or $x+ x$.", "answer": "0"})
    for gold, answer in ((r"\frac{1}{2}", "2/4"), (r"5\sqrt{2}", r"\sqrt{50}"), ("2x", "x + x")):
        row = {**example.fields, "answer": gold}
        assert not reward(rf"\boxed{{{answer}}}", Example("", "", row), PATIENT).solved
        assert reward(rf"\boxed{{{answer}}}", Example("", "", {"answer": gold}), PATIENT).solved


@pytest.mark.parametrize(("gold", "answer"), [("12", "1 2"), ("12", "1  2"), ("1 2", "12")])
def test_white_space_between_digits_makes_two_numbers(gold, answer):
    assert not same_text(gold, answer) and not answers_agree(gold, answer)


def test_white_space_elsewhere_and_thousands_marks_are_layout():
    for one, other in (("1000", r"1\,000"), ("( 1, 2 )", "(1,2)"), ("3 x + 1", "3x+1"), ("2 \\sqrt {3}", "2\\sqrt{3}")):
        assert same_text(one, other)
    assert answers_agree("1000", "1{,}000")


def test_the_weights_are_the_options():
    paid = reward(r"\boxed{7}", THREE, MathOptions(answer_weight=3.0, format_weight=1.0))
    assert (paid.value, paid.parts["answer"], paid.parts["format"]) == (0.25, 0.0, 1.0)
    assert reward(r"\boxed{7}", THREE, MathOptions(format_weight=0.0)).value == 0.0


SLOW = {
    "tower of powers": "9**9**9",
    "tower in LaTeX": "9^{9^{9}}",
    "higher tower": "2^{9^{9^9}}",
    "tower of brackets": "((9^9)^9)^{9^9}",
    "factorials": "(((9!)!)!)!",
    "factorial of a large number": "(10^9)!",
    "sum without end": r"\sum_{n=1}^{10^{12}} \frac{1}{n^3 + \sin n}",
    "integral": r"\int_0^{100} \sin(\sin(\sin(x^x))) dx",
    "product of brackets": "(x+1)" * 150,
    "nested fractions": r"\frac{1}{" * 90 + "1" + "}" * 90,
    "nested roots": r"\sqrt{" * 120 + "2" + "}" * 120,
    "nested braces": "{" * 450 + "4" + "}" * 450,
    "brackets": "(" * 450 + "4" + ")" * 450,
    "signs": "-" * 900 + "3",
    "digits": "9" * 900,
    "exponent": "1e999999999",
    "decimals": "0." + "3" * 900,
    "binomial": r"\binom{10^9}{5 \cdot 10^8}",
    "nested braces, 200 kB": "{" * 100_000 + "3" + "}" * 100_000,
    "100 kB of digits": "3" * 100_000,
    "100 kB of powers": "9^" * 50_000 + "9",
    "100 kB of dollars": "$" * 100_000,
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


def test_the_library_says_nothing_about_what_a_model_wrote(caplog):
    with caplog.at_level(logging.DEBUG):
        reward(r"\boxed{\frac{1}{}", THREE, PATIENT)
        reward(r"\boxed{9^{9^{9}}}", THREE, MathOptions(timeout_s=0.1))
    assert not caplog.records


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


def test_a_set_of_problems_and_answers_alone_will_do(tmp_path):
    rows = [{"problem": row["problem"], "answer": row["answer"]} for row in ROWS]
    dataset = load_task("math", None, write(tmp_path / "rows.jsonl", rows)).dataset
    assert dataset.train[0].category == {}


def test_a_share_of_1_leaves_everything_to_evaluate_on(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    assert load_task("math", {"math": MathOptions(held_out_share=1.0)}, path).dataset.sizes() == (0, 20)


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


@pytest.mark.parametrize(
    ("gold", "answer", "agrees"),
    [
        ("4210_6", "4210_5", False),
        ("4210_6", "4210_{5}", False),
        ("4210_6", r"4210_{\text{6}}", True),
        ("4210_6", "4210", True),
        ("4210", "4210_6", True),
        (r"5\text{ minutes}", r"5\text{ hours}", False),
        (r"5\text{ minutes}", "5 h", False),
        (r"5\text{ minutes}", r"5\text{ min}", True),
        (r"5\text{ minutes}", "5", True),
        ("5", r"5\text{ minutes}", True),
        (r"12\text{ cm}^2", r"12\text{ m}^2", False),
        (r"12\text{ cm}^2", r"12\text{ centimeters}^2", True),
    ],
)
def test_another_base_and_another_unit_are_not_paid(gold, answer, agrees):
    assert answers_agree(gold, answer) == agrees
