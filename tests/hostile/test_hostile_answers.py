"""What is hidden, hedged or padded in the answer of a text task is not paid, and its honest neighbour is."""

import pytest

from minrl.tasks.countdown import reward as countdown
from minrl.tasks.gsm8k import reward as gsm8k
from minrl.tasks.hanoi import reward as hanoi
from minrl.types import Example
from tests.hostile.answers import CASES

REWARDS = {"gsm8k": gsm8k, "countdown": countdown, "hanoi": hanoi}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}: {case.name}")
def test_an_attack_earns_nothing_and_its_honest_neighbour_all(case):
    assert case.least <= REWARDS[case.task](case.completion, Example("", "", case.row)).value <= case.most
