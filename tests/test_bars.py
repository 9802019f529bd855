"""Bars in a terminal that is as real as Rich draws it; none where there is none."""

import io
import re
import sys
from itertools import count
from threading import Event, Thread

import pytest
from loguru import logger
from rich.console import Console

from minrl.rewards.workers import Workers
from minrl.system.progress import activity, listening
from minrl.terminal.bars import FILE_ONLY, SHOWN_AFTER_S, Bars
from minrl.types import Job


@pytest.fixture
def screen():
    """What was drawn, the bars, and their clock."""
    drawn, time = io.StringIO(), [0.0]
    console = Console(file=drawn, force_terminal=True, width=120, color_system=None)
    return drawn, Bars(console, shown=True, now=lambda: time[0]), time


def test_a_bar_says_how_many_and_what_stands_beside_it(screen):
    drawn, bars, _ = screen
    with bars.bar("countdown", 150, done=30) as report:
        report(31, "reward 0.62")
    assert "countdown" in drawn.getvalue() and "31/150" in drawn.getvalue() and "reward 0.62" in drawn.getvalue()


def test_names_of_folders_are_no_markup(screen):
    drawn, bars, time = screen
    with listening(bars), activity("loading model[v2]"), bars.bar("step", 2) as report:
        time[0] += SHOWN_AFTER_S
        report(1, "reward [/] 0.62")
        bars._drawn.refresh()
    assert "loading model[v2]" in drawn.getvalue() and "reward [/] 0.62" in drawn.getvalue()


def test_an_activity_has_a_bar_once_it_lasts(screen):
    drawn, bars, time = screen
    with listening(bars), bars.bar("countdown", 2):
        with activity("sampling", 384) as report:
            report(100)
        with activity("update", 9) as report:
            report(1)
            time[0] += SHOWN_AFTER_S
            report(7)
            bars._drawn.refresh()
        time[0] += 10
        with activity("rewards", 5) as report:
            report(5)
            bars._drawn.refresh()
    assert "update" in drawn.getvalue() and "7/9" in drawn.getvalue()
    assert "sampling" not in drawn.getvalue() and "rewards" not in drawn.getvalue()


def test_what_an_activity_is_part_of_is_shown_too(screen):
    drawn, bars, time = screen
    with listening(bars), activity("evaluation", 2) as outer:
        outer(1)
        with activity("sampling", 512) as report:
            time[0] += SHOWN_AFTER_S
            report(12)
            bars._drawn.refresh()
            lines = drawn.getvalue().splitlines()
    outside, inside = (next(line for line in lines if name in line) for name in ("evaluation", "sampling"))
    assert "1/2" in outside and "12/512" in inside
    outside, inside = (re.sub(r"\x1b\[\w*", "", line) for line in (outside, inside))
    assert outside.index("evaluation") < inside.index("sampling")


def test_an_activity_that_reports_nothing_is_shown_once_it_lasts(screen):
    drawn, bars, time = screen
    with listening(bars), activity("starting vLLM"):
        bars.tick()
        assert not drawn.getvalue()
        time[0] += SHOWN_AFTER_S
        bars.tick()
        assert "starting vLLM" in drawn.getvalue()


def test_the_terminal_is_given_back_after_the_last_bar(screen):
    drawn, bars, _ = screen
    with listening(bars):
        with pytest.raises(KeyError), bars.bar("countdown", 2), activity("starting vLLM"):
            raise KeyError
        assert bars._drawn is None and not bars._activities
        with bars.bar("countdown", 3) as report:
            report(2, "")
    assert bars._drawn is None and "2/3" in drawn.getvalue()


def test_nothing_is_drawn_where_nothing_is_shown():
    drawn = io.StringIO()
    bars = Bars(Console(file=drawn, force_terminal=True), shown=False, now=lambda: 99.0)
    with listening(bars), bars.bar("countdown", 2) as report, activity("sampling", 3) as sampled:
        report(1, "note")
        sampled(2)
    assert drawn.getvalue() == ""


def test_an_activity_nobody_listens_to_costs_nothing_and_does_its_work():
    with activity("counting", 2) as report:
        report(1)


@pytest.mark.parametrize("shown", [False, True])
def test_progress_is_a_line_every_half_minute_and_beside_bars_for_the_file_only(shown):
    time, said = [100.0], []
    sink = logger.add(lambda message: said.append((message.record["message"], FILE_ONLY in message.record["extra"])))
    console = Console(file=io.StringIO(), force_terminal=shown)
    bars = Bars(console, shown, logged=True, now=lambda: time[0])
    with listening(bars), bars.bar("step", 150) as report:
        with activity("evaluation", 1), activity("sampling", 500) as inner:
            time[0] += 2
            inner(50)
            time[0] += 18
            inner(450)
        report(0, "")
        for step, seconds in ((1, 0.5), (2, 1.5), (3, 13), (4, 17), (5, 20)):
            time[0] += seconds
            report(step, "reward 0.61  held-out 75 %")
        with activity("evaluation", 1), activity("scoring", 9):
            time[0] += 10
            bars.tick()
    logger.remove(sink)
    expected = [
        "step 0/150  evaluation 0/1  sampling 50/500  18 s left",
        # What came before the first step does not count: two steps in 2 s, four in 32 s, five in 62 s.
        "step 2/150  reward 0.61  held-out 75 %  2 min left",
        "step 4/150  reward 0.61  held-out 75 %  19 min left",
        "step 5/150  reward 0.61  held-out 75 %  30 min left  evaluation 0/1  scoring 0/9",
    ]
    assert said == [(line, shown) for line in expected]


def test_the_seconds_left_are_those_that_were_reported(screen):
    """Where an evaluation is still to come, the pace of the steps does not say them."""
    drawn, bars, time = screen
    with listening(bars), bars.bar("step", 10) as report, activity("evaluation"):
        report(5, "", 50.0)
        time[0] += 8
        bars.tick()
        bars._drawn.refresh()
        (step,) = bars._steps
        assert step.line(time[0]) == "step 5/10  42 s left"
        time[0] += 60
        assert step.line(time[0]) == "step 5/10  0 s left"
    assert "42 s" in drawn.getvalue()


def test_each_phase_is_named_once_it_lasts_and_again_each_half_minute():
    time, said = [0.0], []
    sink = logger.add(lambda message: said.append(message.record["message"]))
    bars = Bars(Console(file=io.StringIO()), shown=False, logged=True, now=lambda: time[0])
    with listening(bars):
        for name in ("loading", "reading"):
            with activity(name):
                bars.tick()
                for seconds in (1, 28, 2, 1):
                    time[0] += seconds
                    bars.tick()
        with bars.bar("making", 700) as report:
            time[0] += 4
            report(10, "loss 0.123")
    logger.remove(sink)
    assert said == [
        *("loading for 1 s", "loading for 31 s", "reading for 1 s", "reading for 31 s"),
        "making 10/700  loss 0.123  5 min left",  # 0.4 s for each of 690
    ]


def test_what_nobody_reports_is_said_by_a_thread(monkeypatch):
    monkeypatch.setattr("minrl.terminal.bars.TICK_S", 0.001)
    said, came = [], Event()
    sink = logger.add(lambda message: (said.append(message.record["message"]), came.set()))
    clock = count(0.0, 1.0)  # a second at each look
    bars = Bars(Console(file=io.StringIO()), shown=False, logged=True, now=lambda: next(clock))
    with bars, listening(bars), activity("starting vLLM"):
        assert came.wait(60)
    logger.remove(sink)
    assert said[0].startswith("starting vLLM for ") and not bars._thread.is_alive()


def test_a_bar_that_appears_while_a_reward_is_called_leaves_the_streams_as_they_were(screen):
    drawn, bars, time = screen
    before = sys.stdout, sys.stderr

    def slow():
        print("by the reward")
        time[0] += SHOWN_AFTER_S
        watching = Thread(target=bars.tick)
        watching.start()
        watching.join()

    workers = Workers(1, 10.0)
    with listening(bars):
        workers.run([Job(slow, cheap=True)])
    workers.close()
    assert (sys.stdout, sys.stderr) == before and "rewards" in drawn.getvalue()


def test_what_others_print_stands_above_the_bars(screen, capsys):
    drawn, bars, _ = screen
    with bars.bar("countdown", 2), bars.bar("inner", 2):
        print("to stdout")
        sys.stderr.write("torn")
    assert "to stdout\n" in drawn.getvalue() and "torn\n" in drawn.getvalue()
    print("after")
    assert tuple(capsys.readouterr()) == ("after\n", "")


def test_where_nothing_is_to_be_logged_nothing_is():
    said = []
    sink = logger.add(said.append)
    bars = Bars(Console(file=io.StringIO()), shown=False, now=count(0.0, 40.0).__next__)
    with bars.bar("countdown", 150) as report:
        report(1, "")
        report(2, "")
    logger.remove(sink)
    assert said == []
