"""Sentences: what each completion is paid."""

import pytest

from minrl.tasks import load_task
from minrl.tasks.sentences import INSTRUCTION, PROGRESS_REWARD, SentencesOptions, reward
from minrl.types import Example, UserError

QUESTION = INSTRUCTION.format(least=4, most=20, first="garden", second="letter")
EXAMPLE = Example("", QUESTION, {"words": ["garden", "letter"], "least": 4, "most": 20})

SOLVED = {
    "plain": "She read the letter in the garden.",
    "a question": "Who left a letter in my garden?",
    "an exclamation": "The garden sent me a letter!",
    "capitals and white space": " \n The GARDEN is full of a Letter.\n",
    "in quotation marks": '"The letter lay in the garden."',
    "marks that look alike": "\u201cThe queen\u2019s letter lay in the garden.\u201d",
    "after thoughts": "<think> garden? letter? </think> The letter is for the garden.",
    "four words": "A garden, a letter.",
    "twenty words": "The letter in the garden was so old that it had to be put away by my aunt for us.",
}
LACKS_A_WORD = {
    "the other word alone": "She sat in the garden and slept.",
    "the plural": "She read the letters in the garden.",
    "a part of a word": "The gardener had the letter.",
}
NOTHING = {
    "empty": "",
    "neither word": "She sat in the sun and slept.",
    "no full stop": "She read the letter in the garden",
    "no capital letter": "she read the letter in the garden.",
    "two sentences": "She read the letter. It was in the garden.",
    "two lines": "She read the letter\nin the garden.",
    "three words": "The garden letter.",
    "twenty-one words": "The letter in the garden was so old that it had to be put away by my aunt for us all.",
    "a list of words": "Garden, letter, river, stone.",
    "the words over and over": "The garden letter and the garden letter in the garden.",
    "about the words": "The words garden and letter are in it.",
    "the prompt copied back": QUESTION,
    "the prompt without its marks": "Write one sentence of 4 to 20 words that contains the words garden and letter.",
    "a remark before it": "Sure! She read the letter in the garden.",
    "digits": "She read the letter in the garden at 9.",
    "in the thoughts alone": "<think> She read the letter in the garden. </think>",
    "code": "The letter is in the garden = __import__('os').",
    "null byte": "She read the letter in the garden\0.",
    "lone surrogate": "She read the letter in the garden \ud800.",
    "a megabyte": "The letter is in the garden " * 40_000 + ".",
    "a megabyte of thoughts": "<think> " * 130_000 + "She read the letter in the garden.",
}


@pytest.mark.parametrize("completion", SOLVED.values(), ids=SOLVED)
def test_a_sentence_with_both_words_is_paid_in_full(completion):
    assert reward(completion, EXAMPLE).value == 1.0


@pytest.mark.parametrize("completion", LACKS_A_WORD.values(), ids=LACKS_A_WORD)
def test_a_sentence_that_lacks_one_of_two_words_has_half_of_the_progress_reward(completion):
    assert reward(completion, EXAMPLE).value == PROGRESS_REWARD / 2


@pytest.mark.parametrize("completion", NOTHING.values(), ids=NOTHING)
def test_what_is_no_sentence_is_paid_nothing(completion):
    assert reward(completion, EXAMPLE).value == 0.0


def test_the_length_is_the_one_asked_for():
    six = Example("", "", {"words": ["garden", "letter"], "least": 6, "most": 6})
    assert reward("The letter in the old garden.", six).solved
    assert not reward("The letter in the very old garden.", six).solved
    assert not reward("The letter in the garden.", six).solved


def test_the_solution_of_every_problem_is_paid_in_full():
    task = load_task("sentences", {"sentences": SentencesOptions(min_words=6)})
    examples = [*task.dataset.train, *task.dataset.held_out]
    assert all(task.reward(task.solution(example), example).solved for example in examples)


@pytest.mark.parametrize("wrong", [{"min_words": 3}, {"min_words": 9, "max_words": 8}, {"held_out_share": 1.0}])
def test_options_that_leave_no_problem_are_refused(wrong):
    with pytest.raises(UserError, match="sentences"):
        SentencesOptions(**wrong)
