"""Every second of a step belongs to one phase."""

import pytest

from minrl.tracking.timers import Timers


def test_phases_and_what_no_phase_claims_add_up_to_the_step():
    at = [0.0]
    timers = Timers(lambda: at[0])
    at[0] = 1.0
    with timers.timed("rollout"):
        at[0] = 4.0
    at[0] = 4.5

    @timers.timed("update")
    def update():
        at[0] = 5.0
        with pytest.raises(KeyError), timers.timed("log"):  # one inside another counts once, also where it raises
            at[0] = 5.75
            raise KeyError
        at[0] = 6.0

    update()
    with timers.timed("rollout"):
        at[0] = 7.0
    phases = {"time/rollout_s": 4.0, "time/update_s": 0.75, "time/log_s": 0.75, "time/other_s": 1.5}
    assert timers.take()[0] == {**phases, "time/step_s": 7.0}
    # What comes after the step's line belongs to the next step.
    with timers.timed("save"):
        at[0] = 9.0
    assert timers.take()[0] == {"time/other_s": 0.0, "time/save_s": 2.0, "time/step_s": 2.0}
