"""Texts of others are harmless, and whatever a task keeps in an example has one text."""

from dataclasses import dataclass

import numpy as np
import pytest

from minrl.dataflow import UserError
from minrl.utils.text import digest_of, printable, stable_text


@dataclass
class Point:
    x: int


MANY = np.zeros(2000, bool)  # numpy leaves out the middle of more than a thousand


@pytest.mark.parametrize(
    ("one", "alike", "other"),
    [(MANY, ~~MANY, np.arange(2000) == 1000), ({"b", "a"}, {"a", "b"}, {"a", "c"}), (Point(1), Point(1), Point(2))],
    ids=["array", "set", "dataclass"],
)
def test_equal_values_have_one_text_and_others_another(one, alike, other):
    assert stable_text(one) == stable_text(alike) != stable_text(other)


@pytest.mark.parametrize("value", [object(), {"a": [object()]}, {("a", 1): 2}])
def test_what_has_no_such_text_is_refused_in_one_line(value):
    with pytest.raises(UserError, match=r"^an example holds [^\n]*\Z"):
        stable_text(value)


def test_the_ids_of_rows_stay():
    """As they were made in earlier versions: they decide what is held out."""
    row = {"question": "\u00e9\u2028", "answer": 2, "tags": ["a", None, True], "score": -0.1}
    assert digest_of([row]) == "99be815b11aeb94d"
    assert digest_of([{"b", "a"}, np.arange(3), Point(1), (1, 2)]) == "015bbbc605a90a69"


def test_what_is_hidden_is_shown_and_what_is_written_stays():
    hidden = "\u202ea\u2028b\ufeff\x9b2J\x00\x7f\ud800\U000e0041"
    assert printable(hidden) == r"\u202ea\u2028b\ufeff\x9b2J\x00\x7f\ud800\U000e0041"
    written = "\u0645\u06cc\u200c\u062e a\xa0b \U0001f469\u200d\U0001f52c\t\n"  # joiners, spaces, emoji
    assert printable(written) == written
