"""Every second of a step belongs to one phase."""

import resource
import sys

import pytest
import torch

from minrl.record.clock import PhaseClock, card_memory_gib, peak_memory_gib


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


def test_less_than_a_second_is_moved_too(ticking):
    time, clock = ticking
    with clock.timed("time/rollout_s"):
        time[0] = 2.0
    clock.move("time/rollout_s", "time/reward_s", 0.5)
    assert clock.seconds == {"time/rollout_s": 1.5, "time/reward_s": 0.5, "time/other_s": 0.0}


def test_what_nobody_has_cannot_be_moved_and_leaves_no_trace(ticking):
    _, clock = ticking
    clock.move("time/rollout_s", "time/reward_s", 1.0)
    with clock.timed("time/rollout_s"):
        pass
    clock.move("time/rollout_s", "time/reward_s", 1.0)
    assert seconds(clock.end_step()) == {"time/rollout_s": 0.0, "time/other_s": 0.0, "time/step_s": 0.0}


@pytest.mark.parametrize(("platform", "unit"), [("linux", 2**10), ("darwin", 1)])
def test_the_peak_of_a_process_is_in_gib_whatever_the_system_counts_in(platform, unit, ticking, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "platform", platform)
    usage = type("Usage", (), {"ru_maxrss": 3 * 2**30 // unit})
    monkeypatch.setattr(resource, "getrusage", lambda who: usage if who == resource.RUSAGE_SELF else None)
    assert peak_memory_gib() == 3
    with ticking[1].timed("time/rollout_s"):
        pass
    assert ticking[1].take_memory() == {"memory/peak_gib": 3}


def test_a_cards_memory_is_looked_at_after_the_phases_that_use_it(ticking, monkeypatch):
    taken = iter([2, 5])  # of 80 GiB
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((80 - next(taken)) * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7 * 2**30)
    for phase in ("rollout", "save", "update"):
        with ticking[1].timed(f"time/{phase}_s"):
            pass
    assert ticking[1].take_memory() == {"memory/rollout_gib": 2, "memory/update_gib": 5, "memory/peak_gib": 7}
    assert ticking[1].take_memory() == {"memory/peak_gib": 7}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 4 * 2**30))
    assert card_memory_gib() == 3
