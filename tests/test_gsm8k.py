"""GSM8K: what counts as the number, what each completion is paid, and where the rows come from."""

import json
import time
from fractions import Fraction

import pytest

from minrl.tasks import load_task
from minrl.tasks.boxed import boxed
from minrl.tasks.gsm8k import GSM8KOptions, number, reward
from minrl.types import Example, UserError

GOLD = Example("", "", {"answer": "3 * 18 = <<3*18=54>>54\n#### 54"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("54", 54),
        ("-3", -3),
        ("\u22123", -3),
        ("+4", 4),
        ("1,234", 1234),
        ("1,234,567.5", Fraction(2469135, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1e3", 1000),
        ("2.5E-1", Fraction(1, 4)),
        ("3/4", Fraction(3, 4)),
        ("0.1", Fraction(1, 10)),  # exact: 0.1 + 0.2 is 0.3
        ("$12.50", Fraction(25, 2)),
        ("-$3", -3),
        ("$-3", -3),
        ("\u20ac12", 12),
        ("12 \u20ac", 12),
        ("50%", 50),  # the percent sign is a unit: not 0.5
        ("50 %", 50),
        ("12 apples", 12),
        ("12 miles per hour", 12),
        ("20cm^2", 20),
        ("20 m\u00b2", 20),
        (r"\$18", 18),
        (r"50\%", 50),
        (r"1{,}234", 1234),
        (r"1\,234", 1234),
        (r"18\text{ cm}", 18),
        (r"\frac{1}{2}", Fraction(1, 2)),
        ("$18$", 18),
        ("**18**.", 18),
        ("\u0661\u066c\u0662\u0663\u0664", 1234),
        ("\uff15\uff14", 54),
        ("1\u202f234", 1234),
        ("Final answer: **54**", 54),
        ("\u7b54\u6848\uff1a54\u5143\u3002", 54),
        ("18\u5343\u514b", 18),  # kilograms, though the first character alone is a thousand
        ("18 times", 18),
        ("18 times a week", 18),
        ("18 m", 18),  # metres; M is million
        ("18 cats and dogs", 18),
    ],
)
def test_a_number_is_read_exactly_whatever_surrounds_it(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "-", "$", ".", ",", "apples", "x = 5", "12 or 13", "12, 13", "12 13", "12-13", "12 apples and 13"],
        *["1,00", "12,34", "1,2345", ",123", "1 000", "--3", "-$-3", "1/0", "1. Step", "Step 1", "3:30", "0x12"],
        *["1_000", "inf", "nan", "1e999", "\u00bd", "3\u00b2", "5 \u0665", "9" * 5000, "((5))"],
        *["5!", "2+3", "6*9", "10**100", "9**9**9", "__import__('os')", "5\n6", "5\0"],
        *["18 at most", "18 at the least", "18 people and up", "18 (at most)"],
        *["5 million", "5M", "18k", "18 K", "18 hundred", "18 Thousand dollars", "3 dozen eggs", "2 bn", "18-million"],
        *[f"18 {word}" for word in ("tens", "squared", "halved", "doubled", "factorial", "pairs", "gross", "scores")],
        *[f"18 {word}" for word in ("negative", "thirds", "tenths", "quadrillion", "grand", "is wrong", "not")],
        *["18\u5341", "18 modulo x"],
        *["18 minus two", "18 plus x", "18 times ten", "18 times x", "18 or nineteen", "18 divided by y"],
        *["18 lakh", "18 mil", "18 Millionen", "18 \u0442\u044b\u0441\u044f\u0447", "18\u4e07", "18\u5343\u5143"],
        *["18 and a half", "18 dollars and fifty cents"],
    ],
)
def test_what_is_no_single_number_is_none(text):
    assert number(text) is None


PAID = [
    # completion, correct, format, lenient
    ("18 * 3 = 54\n#### 54", 1, 1, 1),
    (r"so it is \boxed{54}", 1, 1, 1),
    (r"\boxed{54}, that is #### 54", 1, 1, 1),
    ("#### 54.0", 1, 1, 1),
    ("#### 54 litres", 1, 0, 1),
    ("#### $54", 1, 0, 1),
    (r"#### \boxed{54}", 1, 1, 1),
    ("#### Step 1\n18 * 3\n#### 54", 1, 1, 1),  # a heading marks no number
    ("the answer is 54", 0, 0, 1),
    ("54", 0, 0, 1),
    ("#### 55", 0, 1, 0),
    ("54 is not it #### 55", 0, 1, 0),
    ("", 0, 0, 0),
    ("####", 0, 0, 0),
    ("#### ", 0, 0, 0),
    (r"\boxed{}", 0, 0, 0),
    (r"\boxed{54", 0, 0, 1),
    ("#### number", 0, 0, 0),  # copied from the instructions
    ("A crate holds 12 jars. How many?", 0, 0, 0),
    ("#### 53\n#### 54", 0, 0, 1),  # hedging: two numbers are no answer
    ("#### 54\n#### 53", 0, 0, 0),
    (r"\boxed{53} or \boxed{54}", 0, 0, 1),
    (r"\boxed{53} #### 54", 0, 0, 1),
    ("#### 54 or 53", 0, 0, 0),
    ("#### 53, 54", 0, 0, 1),
    ("#### " + " ".join(map(str, range(100))), 0, 0, 0),
    (" ".join(map(str, range(55))), 0, 0, 1),
    ("#### 5,4", 0, 0, 0),
    ("#### \u0665\u0664", 1, 0, 1),
    ("#### 54" + "0" * 5000, 0, 0, 0),
    ("#### 0.54e2", 1, 0, 0),
    ("#### 6*9", 0, 0, 0),
]


@pytest.mark.parametrize(("completion", "correct", "form", "lenient"), PAID, ids=[row[0][:30] for row in PAID])
def test_the_marked_number_is_paid_and_the_other_parts_are_shown(completion, correct, form, lenient):
    paid = reward(completion, GOLD)
    assert paid.parts == {"correct": correct, "format": form, "lenient": lenient}
    assert paid.value == correct
    assert paid.solved == bool(correct)


@pytest.mark.parametrize(
    "marked",
    [
        *[
            r"\boxed{54~\text{eggs}}",
            r"\boxed{54~\mathrm{km/h}}",
            r"\boxed{\;54\;}",
            r"\boxed{54\quad}",
            r"\boxed{54\ }",
        ],
        *[
            "#### USD 54",
            "#### Rs. 54",
            "#### US$54",
            "#### = 54",
            "#### {54}",
            "#### [54]",
            "#### 54</s>",
            "#### 54<eos>",
        ],
        *["#### 54 \u2705", "#### 54 \u2714\ufe0f", "#### 54 \U0001f389", r"#### 54 \\"],
    ],
)
def test_what_says_nothing_around_the_number_costs_nothing(marked):
    assert reward(marked, GOLD).solved


@pytest.mark.parametrize(
    "marked",
    ["#### 54 \u274c", "#### [53, 54]", "#### == 54", "#### {54", r"\boxed{53\quad 54}", r"\boxed{~54}", "#### ((54))"],
)
def test_what_says_something_else_around_the_number_is_not_paid(marked):
    assert not reward(marked, GOLD).solved


@pytest.mark.parametrize("answer", [54, 54.0, "54"])
def test_a_number_as_answer_of_a_row_is_read_as_its_text(answer):
    assert reward("#### 54", Example("", "", {"answer": answer})).solved


@pytest.mark.parametrize("answer", [True, float("nan"), {"a": 54}, None])
def test_what_is_no_answer_of_a_row_is_refused(answer):
    with pytest.raises(UserError, match="`answer` must be a text or a number"):
        reward("#### 54", Example("", "", {"answer": answer}))


@pytest.mark.parametrize("box", [r"\boxed{54}", r"\boxed{54 e%s}"])
def test_many_boxes_are_read_as_often_as_they_differ(box, monkeypatch):
    read = []
    monkeypatch.setattr("minrl.tasks.gsm8k.number", lambda text: read.append(text) or Fraction(54))
    reward("".join(box.replace("%s", "e" * (n % 90) + chr(97 + n % 26)) for n in range(30_000)), GOLD)
    assert len(read) <= 1002  # the reference, the last number and a thousand


def test_weights_decide_what_is_paid():
    options = GSM8KOptions(correct_weight=2.0, format_weight=1.0, lenient_weight=1.0)
    assert reward("#### 54", GOLD, options).value == 1.0
    assert reward("#### 54 litres", GOLD, options).value == 0.75
    assert reward("it is 54", GOLD, options).value == 0.25
    lenient = GSM8KOptions(correct_weight=0.0, lenient_weight=1.0)
    assert reward("it is 54", GOLD, lenient).solved


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{" * 100_000 + "5" + "}" * 100_000,
        r"\boxed{" * 100_000,
        "#### 54\n" * 100_000,
        "#### " + "5" * 1_000_000,
        "#### " + " " * 1_000_000 + "x",
        "-" * 1_000_000,
        "1," * 500_000,
        "#" * 1_000_000,
        "{" * 1_000_000,
        "1/" * 500_000,
        "$" * 1_000_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_megabyte_of_anything_is_read_in_about_its_length(completion):
    started = time.process_time()
    reward(completion, GOLD)
    assert time.process_time() - started < 60


def test_boxes_are_read_balanced_and_outermost():
    assert boxed(r"\boxed{1} \boxed{\frac{1}{2}} \boxed {\{3\}} \boxed{4") == ["1", r"\frac{1}{2}", r"\{3\}"]
    assert boxed(r"\boxed{a \boxed{b}} } {") == [r"a \boxed{b}"]
    assert boxed(r"\boxed{never closed, then \boxed{6}") == ["6"]


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


def test_a_folder_keeps_its_own_split_and_what_is_held_out_is_not_trained_on(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:31])
    write(tmp_path / "test.jsonl", ROWS[30:])
    task = load_task("gsm8k", None, str(tmp_path))
    assert (len(task.dataset.train), len(task.dataset.held_out)) == (30, 10)


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


def test_without_the_hub_the_way_out_is_named():
    with pytest.raises(UserError, match=r"cannot load dataset 'openai/gsm8k' of the hub.*--data-path: a JSONL"):
        load_task("gsm8k").dataset.sizes()


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


@pytest.mark.parametrize(
    ("marked", "right"),
    [  # the table of the module's docstring
        ("#### 54/day", True),
        ("#### 54 per day", True),
        ("#### 54 (fifty-four)", True),
        ("#### 54 (in all)", True),
        ("#### 54 (fifty-five)", False),
        ("#### 54 quarters", True),
        ("#### 54 quarters of it", False),
        ("#### 54 sq. ft.", True),
        ("#### 54 pi", False),
        ("#### 54\u03c0", False),
        ("#### 54 couples", False),
        ("#### 54-fold", False),
        ("#### The answer is: 54.", True),
        ("#### Answer 54", True),
        ("#### Answer 53 54", False),
        (r"\boxed{\frac{108}2}", False),
        ("#### 54 (or 19)", False),
        ("#### 54 (54)", False),
        ("#### 54 /", False),
        ("#### ~54", False),
        ("#### about 54", False),
        (r"\boxed{x=54}", True),
        (r"\boxed{x = 54}", True),
        (r"\boxed{2x=54}", False),
        (r"\boxed{x=y=54}", False),
        ("#### x = 54", False),
    ],
)
def test_forms_on_which_graders_differ_count_as_the_table_says(marked, right):
    assert reward(marked, GOLD).solved == right


DRESSED = r"""
\large 54
\displaystyle 54
\color{red}{54}
\bm{54}
\boldsymbol{54}
\boxed{54}
54\textrm{ apples}
54^\circ
54\u00a2
\therefore 54
\text{The answer is } 54
\text{Answer: } 54
(54)
<b>54</b>
54 ####
54 </answer>
"""


@pytest.mark.parametrize("text", DRESSED.strip().split("\n"))
def test_how_a_number_looks_changes_nothing(text):
    assert number(text.replace(r"\u00a2", "\u00a2")) == 54
    assert number(text.replace(r"\u00a2", "\u00a2").replace("54", "54 or 55")) is None


@pytest.mark.parametrize(
    ("completion", "paid"),
    [
        ("####\n54", 1),
        ("####\n\n$54$", 1),
        ("#### Answer\n54", 1),
        ("#### **Final Answer:**\n\n54 apples", 1),
        ("####: 54", 1),
        ("<answer>#### 54</answer>", 1),
        ("####\n54\n#### 55", 0),
        ("#### Answer\n55", 0),
        ("#### Answer\nIt is not 54", 0),
        ("#### Step\n54", 0),
        ("#### The other answer\n54", 0),
    ],
)
def test_a_number_may_stand_below_its_heading(completion, paid):
    assert reward(f"3 * 18\n{completion}", GOLD).value == paid
