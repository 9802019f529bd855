"""Each completion of the table is paid as it says, and full pay is what counts as solved."""

import pytest

from tests.answers import ANSWERS
from tests.hostile.playing import play, wrong


@pytest.mark.parametrize(("task", "right"), sorted({(case.task, case.least == 1) for case in ANSWERS}))
def test_a_completion_is_paid_as_the_table_says(task, right):
    cases = [case for case in ANSWERS if case.task == task and (case.least == 1) == right]
    paid = play(cases)
    assert wrong(cases, paid) == []
    if task != "countdown_3to4":  # of which a right answer is solved in any form
        unlike = [case.completion for case, one in zip(cases, paid, strict=True) if one.solved != (one.value == 1.0)]
        assert unlike == []
