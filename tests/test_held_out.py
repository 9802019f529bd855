"""A held-out problem is recognised in other words, and what merely resembles it is not."""

import pytest

from minrl.dataflow import Example
from minrl.tasks import Task
from minrl.tasks.held_out import Problems, held_out_problems
from minrl.tasks.task import Dataset
from minrl.tasks.task import split as split_by

LONG = "Find the sum of all positive integers $n$ such that $n^2 - 19n + 99$ is a square."
OTHER = "Find the sum of all positive integers $n$ such that $n^2 - 19n + 98$ is a square."
SHORT = "What is 3 + 5?"

WORDINGS = [
    "A conversation between User and Assistant.\nUser: {}\nAssistant: <think>",
    [{"role": "user", "content": "Solve these.\n\n1. 2 + 2\n2. {}"}, {"role": "assistant", "content": "Of which?"}],
]


def reward(completion, example):
    return 0.0


def worded(wording, problem):
    if isinstance(wording, str):
        return wording.replace("{}", problem)
    return [{**message, "content": message["content"].replace("{}", problem)} for message in wording]


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("said", [LONG, LONG.upper(), LONG.replace("$n^2 - 19n", "$ n ^ 2-19n")])
def test_a_problem_is_recognised_in_other_words_case_and_white_space(wording, said):
    assert Problems((), [LONG, SHORT]).shown(worded(wording, said if "19n" in said else LONG)) == {LONG}
    assert Problems((), [LONG, f"{LONG} Why?"]).shown("Go on", f"I am asked: {said} Well") == {LONG}  # in an answer


@pytest.mark.parametrize("text", [OTHER, LONG.replace("99$", "991$"), LONG.removesuffix("square."), SHORT, f"x{LONG}"])
def test_what_resembles_a_problem_is_another(text):
    assert not Problems((), [LONG, SHORT]).shown(f"User: {text}")


def test_a_short_question_is_recognised_alone():
    problems = Problems([SHORT], [SHORT])
    assert problems.shown([{"role": "user", "content": " what IS  3+5? "}]) == {SHORT}
    talk = [{"role": "user", "content": SHORT}, {"role": "assistant", "content": "7"}, {"role": "user", "content": "?"}]
    assert problems.shown(talk) == {SHORT}  # asked before the last question
    assert not problems.shown(f"Q: What is 7? Q: {SHORT}", SHORT)


def examples(*problems, words="Solve."):
    return [Example(f"{words} {problem}", f"{words} {problem}", {"problem": problem}) for problem in problems]


def test_a_task_keeps_back_the_problems_that_it_does_not_train_on_too():
    held_out = examples(LONG, OTHER, words="Please solve this.")
    problems = held_out_problems(Task(Dataset(examples(OTHER, SHORT), held_out), reward))
    assert problems.shown(f"Q: {LONG}") and not problems.shown(f"Q: {OTHER}")


def test_tasks_that_divide_by_a_key_of_their_own_recognise_whole_questions_alone():
    asked = [Example(str(n), f"{LONG} Use the numbers {n} and {n + 1}.", {"numbers": [n, n + 1]}) for n in range(20)]
    own = held_out_problems(Task(split_by(asked, 0.5, by=lambda one: str(one.fields["numbers"])), reward))
    by_identity = split_by(asked, 0.5)
    assert held_out_problems(Task(by_identity, reward)).shown(f"Q: {by_identity.held_out[0].prompt}")
    assert not own.shown(f"Q: {by_identity.held_out[0].prompt}")
    assert own.questions and all(own.shown(question) for question in own.questions.values())
