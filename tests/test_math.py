"""MATH: which form is paid, that no answer costs more than its time limit, and where the rows come from."""

import hashlib
import json
import logging
import resource
import sys
import time

import pytest

from minrl.dataflow import Example, Job, Reward, UserError
from minrl.rewards.workers import Failure, Workers
from minrl.tasks import load_task, math_answers, option_classes
from minrl.tasks.grader import KILL_AFTER_S, MEMORY_MIB, bounded
from minrl.tasks.math import TEXTS, MathOptions, boxed_answer, gold_answers, reward, tagged_answer
from minrl.tasks.math_answers import answers_agree
from tests.apart import apart

HALF = Example("", "", {"problem": r"Simplify $\frac{2}{4}$ and $\sqrt{50}$.", "answer": r"\frac{1}{2}"})
BARE = Example("", "", {"answer": "3"})
PATIENT = MathOptions(timeout_s=60.0)
TAGGED = MathOptions(prompt="tagged", timeout_s=60.0)
R1 = MathOptions(prompt="r1_zero", timeout_s=60.0)
FORM = 0.1

WRITTEN = "1 + 1 </think> <answer> 0.5 </answer>"
PAID = [
    (TAGGED, f"<think> {WRITTEN}", 1.0),
    (TAGGED, "so </think>\n<answer>0.5</answer>", 1.0),
    (TAGGED, r"so </think> <answer> It is \boxed{0.5}. </answer>", 1.0),
    *((TAGGED, f"so </think> <answer> {wrong} </answer>", FORM) for wrong in ("0.7", "0.5 or 0.7", "")),
    *((TAGGED, text, 0.0) for text in ("<answer> 0.5 </answer>", "so </think> <answer> 0.5", f"{WRITTEN} or 0.7")),
    *((TAGGED, text, 0.0) for text in ("so </think> that is <answer> 0.5 </answer>", f"so </think> {WRITTEN}")),
    (TAGGED, "</think> <answer> 0.4 </answer> <answer> 0.5 </answer>", 0.0),
    # the published form: one space between the tags, 1 or 0
    *(
        (R1, text, 1.0)
        for text in (WRITTEN, f"so </think> {WRITTEN}", r"</think> <answer> It is \boxed{0.5}. </answer>")
    ),
    *((R1, text, 0.0) for text in ("so </think> <answer> 0.7 </answer>", "so </think> <answer> 0.5", "</think> 0.5")),
    *((R1, text, 0.0) for text in ("so </think>\n<answer> 0.5 </answer>", "so </think><answer> 0.5 </answer>")),
    *((R1, text, 0.0) for text in (r"</think> <answer> \boxed{0.5 </answer>", "</think> <answer> </answer>")),
    (PATIENT, r"so it is \boxed{\frac12}", 1.0),
    *((PATIENT, text, 0.0) for text in ("so it is 0.5", "")),
    *(
        (PATIENT, text, FORM)
        for text in (r"\boxed{0.5}, but no: \boxed{0.7}", r"\boxed{0.1, 0.2, 0.5}", "\\boxed{\ud800}")
    ),
    (PATIENT, r"\boxed{\frac{2}{4}}", FORM),  # copied from the problem
]


@pytest.mark.parametrize(("options", "completion", "value"), PAID)
def test_the_answer_in_the_form_of_the_prompt_is_paid(options, completion, value):
    paid = reward(completion, HALF, options)
    assert (paid.value, paid.solved) == (pytest.approx(value), value == 1.0)


def test_the_weights_are_the_options():
    for prompt, text in (("boxed", r"\boxed{7}"), ("r1_zero", "</think> <answer> 7 </answer>")):
        assert reward(text, BARE, MathOptions(prompt=prompt, answer_weight=3.0, format_weight=1.0)).value == 0.25


R1_ZERO_SHA256 = "56213732da87e12ace60a2b88a16df0af18280fb0563a957cbecc938a6a2ac0e"


def test_the_published_prompt_is_word_for_word():
    published = TEXTS["r1_zero"].replace("{problem}", "{question}")  # as prompts/r1_zero.prompt of the course's code
    assert hashlib.sha256(published.encode()).hexdigest() == R1_ZERO_SHA256


def test_a_published_prompt_ends_the_completion_with_its_answer(tmp_path):
    task = tasks_of(tmp_path / "rows.jsonl", *ROWS, prompt="r1_zero")
    example = task.dataset.held_out[0]
    assert task.stop_strings == ("</answer>",)
    assert example.prompt == TEXTS["r1_zero"].replace("{problem}", example["problem"])
    assert task.reward(task.solution(example), example).value == 1.0


@pytest.mark.parametrize(
    ("text", "right"),
    [("Q: {question} <answer>?\n", "</think> <answer> 3 </answer>"), ("{problem} Box it.", r"\boxed{3}")],
)
def test_a_file_is_a_prompt_whose_form_follows_from_its_text(tmp_path, text, right):
    (tmp_path / "short.prompt").write_text(text)
    options = MathOptions(prompt=str(tmp_path / "short.prompt"), timeout_s=60.0)
    task = tasks_of(
        tmp_path / "rows.jsonl", {"problem": r"1+2 \{x}", "answer": "3"}, held_out_share=1.0, prompt=options.prompt
    )
    (example,) = task.dataset.held_out
    assert example.prompt == text.removesuffix("\n").replace("{question}", "{problem}").replace(
        "{problem}", r"1+2 \{x}"
    )
    assert reward(right, example, options).solved and task.reward(task.solution(example), example).solved


def test_a_prompt_that_is_none_is_refused(tmp_path):
    (tmp_path / "no.prompt").write_text("Think!")
    with pytest.raises(UserError, match=r"needs \{problem\} where the problem stands"):
        load_task("math", {"math": MathOptions(prompt=str(tmp_path / "no.prompt"))})
    for name, known in (("math", "boxed"), ("gsm8k", "boxed"), ("code", "block")):
        with pytest.raises(UserError, match=rf"{name}.prompt must be .*{known}.* or a file, .*: did you mean {known}"):
            load_task(name, {name: option_classes([name])[name](prompt=f"{known}s")})


SLOW = {
    "sum without end": r"\sum_{n=1}^{10^{12}} \frac{1}{n^3 + \sin n}",
    "nested fractions": r"\frac{1}{" * 90 + "1" + "}" * 90,
    "nested braces, 200 kB": "{" * 100_000 + "3" + "}" * 100_000,
}


@pytest.fixture(scope="module")
def library():
    """Loaded, also in the forks of the tests."""
    reward(r"\boxed{1/3}", BARE, PATIENT)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
@apart
def test_no_answer_takes_longer_than_its_time_limit(answer):
    started = time.perf_counter()
    paid = reward(rf"\boxed{{{answer}}}", BARE, MathOptions(timeout_s=0.1))
    assert time.perf_counter() - started < 60  # the time limit is 600 times shorter: slow machines pass
    assert paid.value == pytest.approx(FORM)


COSTLY = ["9^{9^{9^9}}", "(10^9)!", r"\binom{10^9}{5\cdot10^8}", *SLOW.values()]
WITHOUT_A_JOB_MIB = 400
"""More than a worker with math-verify and sympy holds."""


@pytest.mark.slow
@apart
def test_what_costs_much_is_scored_within_bounds_of_memory():
    task, workers = load_task("math", {"math": MathOptions(timeout_s=0.3)}), Workers(1, 60.0)
    try:
        paid = workers.run([task.reward_job(rf"\boxed{{{answer}}}", BARE) for answer in COSTLY])
    finally:
        workers.close()
    assert all(isinstance(one, Reward) and one.value <= FORM for one in paid), paid
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024 < WITHOUT_A_JOB_MIB + MEMORY_MIB


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such clock")
def test_the_limit_is_counted_by_the_clock_that_it_is_compared_with(monkeypatch):
    """Linux compares RLIMIT_CPU with time in ticks: 7 % more than getrusage says were seen on a busy machine."""
    ahead = time.process_time() + 1000
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {~0 << 3: ahead}[clock])
    with bounded(1.0):
        assert resource.getrlimit(resource.RLIMIT_CPU)[0] >= ahead + 1.0 + KILL_AFTER_S


def test_workers_grade_and_go_on_after_an_answer_that_takes_too_long():
    patient, strict = (load_task("math", {"math": MathOptions(timeout_s=seconds)}) for seconds in (60.0, 0.2))
    workers = Workers(1, 120.0)
    try:
        texts = [(patient, r"\boxed{3}"), (strict, r"\boxed{9^{9^{9}}}"), (patient, r"\boxed{6/2}")]
        paid = workers.run([Job(task.reward, (text, BARE)) for task, text in texts])
    finally:
        workers.close()
    assert not any(isinstance(one, Failure) for one in paid), paid
    assert [(one.parts["answer"], one.parts["timeout"]) for one in paid] == [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]


def tasks_of(path, *rows, **options):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_task("math", {"math": MathOptions(**options)}, str(path))


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
    dataset = (task := tasks_of(tmp_path / "rows.jsonl", *ROWS, *MATH_ROWS)).dataset
    examples = [*dataset.train, *dataset.held_out]
    assert len(examples) == 40
    assert {(e.category["subject"], e.category["level"]) for e in examples} == {("Algebra", "2"), ("Prealgebra", "5")}
    assert all(task.reward(task.solution(example), example).solved for example in examples)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"problem": "1?"}, r"row 1: needs `answer`, or a `solution` with its answer in \\boxed"),
        ({"problem": "1?", "answer": ["1", " "]}, "`answer` is an empty list or has an empty answer"),
        ({"problem": "1?", "answer": {"a": 1}}, "`answer` must be a text or a number"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, row, said):
    with pytest.raises(UserError, match=said):
        tasks_of(tmp_path / "rows.jsonl", row).dataset.sizes()


@pytest.mark.parametrize("options", [{"timeout_s": 0.0}, {"answer_weight": 0.0}, {"format_weight": -0.1}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(UserError, match=f"math.{name} must"):
        MathOptions(**options)


PROSE = [
    r"The radius is $\boxed{3}$. Therefore, the answer is $\boxed{9}$.",
    r"\boxed{3}, \text{hence } \boxed{9}",
]
LISTS = [
    r"\boxed{3}, \boxed{9}",
    r"\boxed{3} \quad \text{and} \quad \boxed{9}",
    r"\(\boxed{3}\), or \(\boxed{9}\).",
]


def test_boxes_in_a_list_are_one_answer_and_a_box_that_prose_links_to_another_is_none():
    for text in PROSE:
        assert [boxed_answer(text)] == gold_answers({"solution": text}) == ["9"], text
    for text in LISTS:
        assert boxed_answer(text) == "3, 9", text
    assert boxed_answer(r"\boxed{}") is boxed_answer(r"\boxed{ }") is None
    assert tagged_answer(r"so </think> <answer> \boxed{9} </answer>") == "9"


@pytest.mark.parametrize(("answer", "solved"), [("150 cm", True), ("1.5", True), ("150, 1.5", False), ("2", False)])
def test_any_answer_of_a_list_is_right(tmp_path, answer, solved):
    row = {"problem": "How long is it?", "answer": [r"1.5\text{ m}", r"150\text{ cm}"]}
    example = tasks_of(tmp_path / "rows.jsonl", row, held_out_share=1.0).dataset.held_out[0]
    assert reward(rf"\boxed{{{answer}}}", example, PATIENT).solved == solved


def test_sympy_is_not_asked_whether_an_infinity_is_a_number(monkeypatch):
    # In some orders of its hashes sympy's 12/7 - oo/7 is 0.
    monkeypatch.setattr(math_answers, "_verified", lambda meant, given: True)
    assert not answers_agree(r"\frac{12}{7}", r"\frac{-inf}{7}") and not answers_agree("12", r"\frac{\infty}{7}")
    assert answers_agree(r"-\infty", r"\frac{-\infty}{7}") and answers_agree("x < 3", r"(-\infty, 3)")


def test_the_library_says_nothing_about_what_a_model_wrote(caplog):
    with caplog.at_level(logging.DEBUG):
        assert not any(reward(rf"\boxed{{{one}}}", BARE, PATIENT).solved for one in (r"\frac{1}{", "1/0"))
    assert not caplog.records
