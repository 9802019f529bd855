"""GSM8K: what counts as the number, and where the rows come from. `answers.py` has what is paid."""

from fractions import Fraction

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import load_task
from minrl.tasks.gsm8k import GSM8KOptions, number, reward
from tests.runs import write_rows

FIFTY_FOUR = r"""54.;**54**;$54$;108/2;54 %;54 cats and dogs;54/day;\$54;54\text{ cm};x = 54;54 (in all);54 = 18 * 3"""
READ = {
    54: [*FIFTY_FOUR.split(";"), "54, 55"],  # as the official pattern does
    -3: ["-3", "-$3", "$-3"],
    1234: ["1,234", r"1{,}234"],
    Fraction(2469, 2): ["1,234.50 km"],
    Fraction(1, 2): [".5", r"\frac{1}{2}"],
    Fraction(1, 10): ["0.1"],  # exact: 0.1 + 0.2 is 0.3
}
NONE = "-; $; .; apples; 12 or 13; 1,00; 1,2345; --3; Step 1; inf; ((5)); about 5; [1, 2]; 5⁴; ½; y + 5; 54e3"
WORDS = "at most;million;millionths;k;dozen eggs;squared;not;or nineteen;-fold"
REFUSED = [*NONE.split("; "), *(f"18 {words}" for words in WORDS.split(";")), "9" * 5000]


@pytest.mark.parametrize(("value", "texts"), READ.items())
def test_the_first_number_is_read_exactly_whatever_surrounds_it(value, texts):
    assert [text for text in texts if number(text) != value] == []


def test_what_is_no_number_or_made_another_one_by_words_is_none():
    assert [text for text in REFUSED if number(text) is not None] == []


def test_the_answer_of_a_row_may_be_a_number_and_nothing_else():
    assert reward("#### 54", Example("", "", {"answer": 54.0})).solved
    for answer in (True, float("nan"), {"a": 54}):
        with pytest.raises(UserError, match="`answer` must be a text or a number"):
            reward("#### 54", Example("", "", {"answer": answer}))


ROWS = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}.\n#### {2 * n:,}"} for n in range(600, 640)]


def test_the_prompt_asks_for_the_form_that_was_chosen(tmp_path):
    path = str(write_rows(tmp_path / "rows.jsonl", *ROWS))
    for options, mark in ((GSM8KOptions(), "####"), (GSM8KOptions(prompt="boxed"), r"\boxed{}")):
        task = load_task("gsm8k", {"gsm8k": options}, path)
        system, user = task.dataset.train[0].prompt
        assert mark in system["content"] and user["content"].startswith("What is 6")
        assert all(task.reward(example["answer"], example).solved for example in task.dataset.train)


def test_a_row_without_a_number_is_named(tmp_path):
    with pytest.raises(UserError, match=r"row 1: `answer` must end with `#### number`, got 'two'"):
        path = str(write_rows(tmp_path / "rows.jsonl", {"question": "1 + 1?", "answer": "two"}))
        load_task("gsm8k", None, path).dataset.sizes()
