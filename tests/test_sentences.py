"""Sentences: what each completion is paid."""

import pytest

from minrl.dataflow import Example
from minrl.tasks import load_task
from minrl.tasks.sentences import INSTRUCTION, PROGRESS_REWARD, SentencesOptions, reward

QUESTION = INSTRUCTION.format(least=4, most=20, first="garden", second="letter")
EXAMPLE = Example("", QUESTION, {"words": ["garden", "letter"], "least": 4, "most": 20})
TWENTY = "The letter in the garden was so old that it had to be put away by my aunt for us"
RIGHT = "She read the letter in the garden."

SOLVED = [RIGHT, "Who left a letter in my garden?", " \n The GARDEN is full of a Letter.\n", f'"{RIGHT}"', f"{TWENTY}."]
SOLVED += ["\u201cThe queen\u2019s letter lay in the garden.\u201d", f"<think> letter? </think> {RIGHT}"]
LACKS_A_WORD = [
    "She sat in the garden and slept.",
    "She read the letters in the garden.",
    "The gardener had the letter.",
]
NOTHING = [
    *("", "She sat in the sun and slept.", RIGHT[:-1], RIGHT.lower(), "She read the letter. It was in the garden."),
    *("She read the letter\nin the garden.", "The garden letter.", f"{TWENTY} all.", "Garden, letter, river, stone."),
    *("The garden letter and the garden letter in the garden.", "The words garden and letter are in it.", QUESTION),
    *(f"Sure! {RIGHT}", "She read the letter in the garden at 9.", f"<think> {RIGHT} </think>", f"{RIGHT[:-1]}\0."),
    *("The letter is in the garden = __import__('os').", f"{RIGHT[:-1]} \ud800.", "<think> " * 20_000 + RIGHT),
    "The letter is in the garden " * 5_000 + ".",
]


@pytest.mark.parametrize(("completions", "value"), [(SOLVED, 1.0), (LACKS_A_WORD, PROGRESS_REWARD / 2), (NOTHING, 0.0)])
def test_a_sentence_is_paid_by_the_words_that_it_has(completions, value):
    assert [text[:80] for text in completions if reward(text, EXAMPLE).value != value] == []


def test_the_length_is_the_one_asked_for():
    six = Example("", "", {"words": ["garden", "letter"], "least": 6, "most": 6})
    texts = ("The letter in the garden.", "The letter in the old garden.", "The letter in the very old garden.")
    assert [reward(text, six).solved for text in texts] == [False, True, False]


def test_the_solution_of_every_problem_is_paid_in_full():
    task = load_task("sentences", {"sentences": SentencesOptions(min_words=6)})
    examples = [*task.dataset.train, *task.dataset.held_out]
    assert all(task.reward(task.solution(example), example).solved for example in examples)
