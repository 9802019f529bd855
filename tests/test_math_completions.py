"""The verdicts of a careful teacher on completions for math."""

import pytest
from math_completions import cases

from minrl.tasks.math import MathOptions, reward
from minrl.types import Example

OPTIONS = {prompt: MathOptions(prompt=prompt, timeout_s=60.0) for prompt in ("boxed", "r1_zero")}
CASES = list(cases())


def judged_otherwise(chosen):
    """The cases that the reward judges otherwise."""
    return [case for case in chosen if paid(case) != case.right]


def paid(case):
    example = Example("", "", {"problem": case.content.problem, "answer": case.content.gold})
    return reward(case.completion, example, OPTIONS[case.prompt]).parts["answer"] == 1


def test_a_quarter_of_the_completions_is_judged_as_a_teacher_would():
    assert len(CASES) >= 500 and 0.2 < sum(case.right for case in CASES) / len(CASES) < 0.8
    assert judged_otherwise(CASES[::4]) == []


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 2, 3])
def test_the_other_completions_are_judged_as_a_teacher_would(start):
    assert judged_otherwise(CASES[start::4]) == []
