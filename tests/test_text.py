"""Texts of others are harmless, and whatever a task keeps in an example has one text."""

from dataclasses import dataclass

import numpy as np
import pytest

from minrl.dataflow import UserError
from minrl.utils.text import digest_of, printable, stable_text

LONG = 2000
"""Elements: numpy leaves out the middle of more than a thousand."""


def changed(array):
    """The array with another value in its middle."""
    array = array.copy()
    array[LONG // 2] = 1
    return array


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("one", "alike", "other"),
    [
        (np.zeros(LONG), np.zeros(LONG), changed(np.zeros(LONG))),
        ({"b", "a"}, {"a", "b"}, {"a", "c"}),
        (Point(1), Point(1), Point(2)),
    ],
    ids=["array", "set", "dataclass"],
)
def test_equal_values_have_one_text_and_others_another(one, alike, other):
    assert stable_text(one) == stable_text(alike) != stable_text(other)


class Own:
    pass


@pytest.mark.parametrize("value", [Own(), lambda text: text, {"a": [Own()]}, {("a", 1): 2}])
def test_what_has_no_such_text_is_refused_in_one_line(value):
    with pytest.raises(UserError, match=r"^an example holds [^\n]*\Z"):
        stable_text(value)


def test_the_ids_of_rows_stay():
    """As they were made in earlier versions: they decide what is held out."""
    rows = [
        {"question": "1 + 1?", "answer": 2, "tags": ["a", None, True], "score": 0.1},
        {"q": "\u00e9\u2028", "n": -0.0},
    ]
    assert [digest_of([row]) for row in rows] == ["8de429f53968f904", "8d07f75a704104d2"]
    assert digest_of([{"b", "a"}, np.arange(3), Point(1), (1, 2)]) == "015bbbc605a90a69"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u202ea\u2028b\ufeff", r"\u202ea\u2028b\ufeff"),
        ("\x9b2J\x00\x7f\ud800\U000e0041", r"\x9b2J\x00\x7f\ud800\U000e0041"),
        ("\u0645\u06cc\u200c\u062e a\xa0b \U0001f469\u200d\U0001f52c\t\n", None),  # joiners, spaces, emoji
    ],
)
def test_what_is_hidden_is_shown_and_what_is_written_stays(text, shown):
    assert printable(text) == (text if shown is None else shown)
