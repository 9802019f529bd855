"""GSM8K: what counts as the number, what each completion is paid, and where the rows come from."""

import json
import re
import time
from fractions import Fraction

import pytest

from minrl.tasks import load_task
from minrl.tasks.gsm8k import GSM8KOptions, number, reward
from minrl.types import Example, UserError

GOLD = Example("", "", {"answer": "3 * 18 = <<3*18=54>>54\n#### 54"})

READ = {
    54: [
        *["54", "+54", "54.", "**54**.", "5.4e1", "$54$", "108/2", "54%", "54 %", "54 apples", "54 miles per hour"],
        *["54cm^2", "54 m²", "54 m", "54 times", "54 times a week", "54 cats and dogs", "54 third graders", "54/day"],
        *["$54", "54 €", "USD 54", "Rs. 54", "US$54", r"\$54", r"54\%", r"54\text{ cm}", r"54~\text{eggs}", r"\;54\;"],
        *[r"54\quad", "54\\ ", r"54^\circ", r"\boldsymbol{54}", r"\color{red}{54}", r"\large 54", r"\therefore 54"],
        *["= 54", "{54}", "[54]", "(54)", "54 (in all)", "54</s>", "<b>54</b>", "54 ####", "54 \u2705", "\uff15\uff14"],
        *["Total: 54", "Answer 54", "Final answer: **54**", "The answer is: 54.", "\u7b54\u6848\uff1a54\u5143\u3002"],
    ],
    -3: ["-3", "\u22123", "-$3", "$-3"],
    1234: ["1,234", r"1{,}234", r"1\,234", "1\u202f234", "\u0661\u066c\u0662\u0663\u0664"],
    Fraction(1, 2): [".5", "1/2", r"\frac{1}{2}", "5e-1"],
    Fraction(1, 10): ["0.1"],  # exact: 0.1 + 0.2 is 0.3
}
NONE = r"""
-; $; .; apples; x = 5; 12 or 13; 12, 13; 12 13; 12-13; 12 apples and 13; 1,00; 1,2345; ,123; 1 000; --3; -$-3; 1/0
1. Step; Step 1; 3:30; 0x12; == 5; 1_000; inf; nan; 1e999; ((5)); ~5; about 5; 5!; 2+3; 10**100; 9**9**9; {54; [1, 2]
__import__('os'); 5 /; 53\quad 54; 18M; 18-million; 18-fold; 18 (dozen); 18 (at most); 18 (or 19); 3²; ½; 18万; 18π
18 dollars and fifty cents
"""
WORDS = """at most;million;k;hundred;dozen;dozen eggs;bn;tens;squared;halved;factorial;pairs;gross;pi;negative;thirds
tenths;grand;is wrong;not;modulo x;minus two;times ten;or nineteen;divided by y;and a half"""
REFUSED = [*re.split("; |\n", NONE), *(f"18 {words}" for words in re.split("[;\n]", WORDS)), "9" * 5000, "5\n6", "5\0"]


@pytest.mark.parametrize(("value", "texts"), READ.items())
def test_a_number_is_read_exactly_whatever_surrounds_it(value, texts):
    assert [text for text in texts if number(text) != value] == []


def test_what_is_no_single_number_is_none():
    assert [text for text in REFUSED if number(text) is not None] == []


def test_a_multiple_is_the_number_where_the_problem_asks_for_it():
    dozens = {"question": "How many dozen eggs are left?", "answer": "#### 7"}
    assert reward("#### 7 dozen", Example("", "", dozens)).solved
    assert not reward("#### 7 dozen", Example("", "", {**dozens, "question": "How many eggs are left?"})).solved


PAID = [
    # completion, correct, format, lenient
    ("18 * 3 = 54\n#### 54", 1, 1, 1),
    (r"\boxed{54}, that is #### 54", 1, 1, 1),
    ("#### 54 litres", 1, 0, 1),
    (r"#### \boxed{54}", 1, 1, 1),
    ("#### Step 1\n18 * 3\n#### 54", 1, 1, 1),  # a heading marks no number
    ("the answer is 54", 0, 0, 1),
    ("#### 55", 0, 1, 0),
    ("", 0, 0, 0),
    ("####", 0, 0, 0),
    (r"\boxed{54", 0, 0, 1),
    ("#### number", 0, 0, 0),  # copied from the instructions
    ("#### 53\n#### 54", 0, 0, 1),  # hedging: two numbers are no answer
    (r"\boxed{53} #### 54", 0, 0, 1),
    ("#### 54 or 53", 0, 0, 0),
    ("#### " + " ".join(map(str, range(100))), 0, 0, 0),
    ("#### 54.", 1, 1, 1),
    ("**#### 54**", 1, 1, 1),
    (r"\boxed{x = 54}", 1, 1, 1),
    (r"\boxed{2x=54}", 0, 0, 1),
    ("####\n54", 1, 1, 1),
    ("#### **Final Answer:**\n\n54 apples", 1, 0, 1),
    ("####: 54", 1, 1, 1),
    ("<answer>#### 54</answer>", 1, 0, 1),
    ("####\n54\n#### 55", 0, 0, 0),
    ("#### Answer\nIt is not 54", 0, 0, 1),
    ("#### Step\n54", 0, 0, 1),
]


@pytest.mark.parametrize(("completion", "correct", "form", "lenient"), PAID, ids=[row[0][:30] for row in PAID])
def test_the_marked_number_is_paid_and_the_other_parts_are_shown(completion, correct, form, lenient):
    paid = reward(completion, GOLD)
    assert paid.parts == {"correct": correct, "format": form, "lenient": lenient}
    assert (paid.value, paid.solved) == (correct, bool(correct))


@pytest.mark.parametrize("answer", [54, 54.0, "54"])
def test_a_number_as_answer_of_a_row_is_read_as_its_text(answer):
    assert reward("#### 54", Example("", "", {"answer": answer})).solved


@pytest.mark.parametrize("answer", [True, float("nan"), {"a": 54}, None])
def test_what_is_no_answer_of_a_row_is_refused(answer):
    with pytest.raises(UserError, match="`answer` must be a text or a number"):
        reward("#### 54", Example("", "", {"answer": answer}))


def test_weights_decide_what_is_paid():
    options = GSM8KOptions(correct_weight=2.0, format_weight=1.0, lenient_weight=1.0)
    assert reward("#### 54", GOLD, options).value == 1.0
    assert reward("#### 54 litres", GOLD, options).value == 0.75
    assert reward("it is 54", GOLD, options).value == 0.25
    lenient = GSM8KOptions(correct_weight=0.0, lenient_weight=1.0)
    assert reward("it is 54", GOLD, lenient).solved


@pytest.mark.parametrize("piece", ["#### 54\n", "5", " ", "-", "1,", "{", "1/", r"\boxed{"])
def test_a_megabyte_of_anything_is_read_in_about_its_length(piece):
    started = time.process_time()
    reward("#### " + piece * (1_000_000 // len(piece)) + "x", GOLD)
    assert time.process_time() - started < 60


ROWS = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}.\n#### {2 * n:,}"} for n in range(600, 640)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_local_file_is_split_by_the_question_and_its_answers_are_paid_in_full(tmp_path):
    again = {"question": "  What is 600 +\n600?", "answer": "#### 1200"}  # a problem that comes twice counts once
    task = load_task("gsm8k", None, write(tmp_path / "rows.jsonl", [*ROWS, again]))
    everyone = [*task.dataset.train, *task.dataset.held_out]
    assert len({example.id for example in everyone}) == len(everyone) == 40
    assert 2 <= len(task.dataset.held_out) <= 16
    assert all(task.reward(example["answer"], example).solved for example in everyone)
    assert [e.id for e in load_task("gsm8k", None, write(tmp_path / "r.jsonl", ROWS[::-1])).dataset.held_out] == [
        e.id for e in task.dataset.held_out
    ]


def test_the_prompt_asks_for_the_form_that_was_chosen(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    for options, mark in ((GSM8KOptions(), "####"), (GSM8KOptions(prompt="boxed"), r"\boxed{}")):
        system, user = load_task("gsm8k", {"gsm8k": options}, path).dataset.train[0].prompt
        assert mark in system["content"]
        assert user["content"].startswith("What is 6")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"question": "1 + 1?", "answer": "two"}], "row 1 of .*: `answer` must end with `#### number`, got 'two'"),
        ([*ROWS[:10], {"question": "1 + 1?"}], "row 11 of .* lacks answer .*columns question, answer"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, rows, said):
    with pytest.raises(UserError, match=said):
        load_task("gsm8k", None, write(tmp_path / "rows.jsonl", rows)).dataset.sizes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"held_out_share": 0.0}, r"gsm8k.held_out_share must be in \(0, 1\], 1 for evaluation only, got 0"),
        ({"format_weight": -1.0}, "gsm8k.format_weight must be 0 or more, got -1"),
        ({"correct_weight": 0.0}, "gsm8k must pay for a right answer"),
    ],
)
def test_impossible_options_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        GSM8KOptions(**options)
