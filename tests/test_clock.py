"""Every second of a step belongs to one phase."""

import pytest

from minrl.clock import PhaseClock


@pytest.fixture
def ticking():
    """A clock whose time is set by hand."""
    time = [0.0]
    return time, PhaseClock(lambda: time[0])


def seconds(metrics):
    return {tag: value for tag, value in metrics.items() if tag.startswith("time/")}


def test_phases_and_what_no_phase_claims_add_up_to_the_step(ticking):
    time, clock = ticking
    time[0] = 1.0
    with clock.timed("time/rollout_s"):
        time[0] = 4.0
    time[0] = 4.5
    with clock.timed("time/update_s"):
        time[0] = 6.0
    with clock.timed("time/rollout_s"):
        time[0] = 7.0
    expected = {"time/other_s": 1.5, "time/rollout_s": 4.0, "time/update_s": 1.5, "time/step_s": 7.0}
    assert seconds(clock.end_step()) == expected
    # What comes after the step's line belongs to the next step.
    with clock.timed("time/save_s"):
        time[0] = 9.0
    assert seconds(clock.end_step()) == {"time/other_s": 0.0, "time/save_s": 2.0, "time/step_s": 2.0}


def test_a_phase_inside_another_counts_once(ticking):
    time, clock = ticking
    with clock.timed("time/eval_s"):
        time[0] = 1.0
        with clock.timed("time/log_s"):
            time[0] = 3.0
        time[0] = 3.5
    expected = {"time/eval_s": 1.5, "time/log_s": 2.0, "time/step_s": 3.5, "time/other_s": 0.0}
    assert seconds(clock.end_step()) == expected


def test_a_phase_that_raises_is_counted_and_over(ticking):
    time, clock = ticking
    with pytest.raises(KeyError), clock.timed("time/update_s"):
        time[0] = 2.0
        raise KeyError
    time[0] = 3.0
    assert seconds(clock.end_step()) == {"time/update_s": 2.0, "time/step_s": 3.0, "time/other_s": 1.0}


def test_seconds_are_moved_and_never_made(ticking):
    time, clock = ticking
    with clock.timed("time/rollout_s"):
        time[0] = 2.0
    clock.move("time/rollout_s", "time/reward_s", 0.5)
    clock.move("time/update_s", "time/reward_s", 7.0)  # there was no update
    clock.move("time/rollout_s", "time/reward_s", 9.0)  # more than there is
    expected = {"time/rollout_s": 0.0, "time/reward_s": 2.0, "time/step_s": 2.0, "time/other_s": 0.0}
    assert seconds(clock.end_step()) == expected
