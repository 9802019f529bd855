"""Messages, progress and tables on the terminal, and messages in the run's folder."""

import io
import re

import pytest
from loguru import logger
from rich.console import Console

from minrl.dataflow import UserError
from minrl.evaluate.report import unscorable
from minrl.utils import console
from minrl.utils.cli import run_main
from minrl.utils.console import FILE_ONLY, RESULT, STEP, Screen, Table, activity, print_tables


@pytest.fixture(autouse=True)
def _leave_no_sinks():
    yield
    logger.remove()


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves; it starts late, so that a line is due at once."""
    time = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: time[0])
    return time


@pytest.mark.parametrize("quiet", [False, True])
def test_the_file_has_every_message_and_quiet_shows_warnings_and_the_result_alone(tmp_path, capsys, quiet):
    with Screen(quiet) as shown:
        logger.info("making the base model")
        shown.log_to(tmp_path / "log.txt")
        logger.warning("preflight: too long")
    with Screen(quiet) as resumed:  # of a run that is resumed
        resumed.log_to(tmp_path / "log.txt")
        logger.bind(**{FILE_ONLY: True}).error("UserError: no")
        logger.bind(**{RESULT: True}).info("150 steps")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    expected = ["INFO    making the base model", "WARNING preflight: too long", "ERROR   UserError: no"]
    assert [line[20:] for line in lines] == [*expected, "INFO    150 steps"]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    err = capsys.readouterr().err
    assert ("making the base model" in err) != quiet
    assert "too long" in err and "150 steps" in err and "UserError" not in err


def test_what_models_and_tasks_write_commands_no_terminal_and_is_shown_letter_by_letter(tmp_path, capsys):
    hostile, escaped = "5:100:3 \x1b]0;mine\x07\r\x9b2J \ud800", r"5:100:3 \x1b]0;mine\x07\r\x9b2J \ud800"
    with Screen(quiet=False) as shown:
        logger.warning(hostile)
        shown.log_to(tmp_path / "log.txt")
        logger.error(hostile)
    print_tables([Table("countdown", ["model"], [["mine"]], [hostile])], "summary.md")

    def fail(_arguments):
        raise UserError(hostile)

    with pytest.raises(SystemExit):
        run_main(fail)
    out = capsys.readouterr()
    assert out.err.count(escaped) == 3 and "Traceback" not in out.err and escaped in out.out
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").count(escaped) == 2
    assert not set(out.err + out.out) & set("\x1b\x07\r\x9b\ud800")
    result = {"label": "mine", "task": "countdown", "n": 4, "first_unscorable": hostile}
    assert all(escaped in line for line in unscorable({"results": [result]}))


def test_progress_is_logged_once_it_lasts_and_then_each_half_minute(clock):
    said, shown = [], Screen(quiet=False, now=lambda: clock[0])
    shown.console = Console(file=io.StringIO(), width=120)
    logger.add(lambda message: said.append(message.record["message"]))
    with activity(STEP, 150) as report:
        with activity("evaluation", 1), activity("sampling", 500) as inner:
            for seconds, done in ((0.5, 10), (1.5, 50), (18, 450)):
                clock[0] += seconds
                inner(done)
                shown.tick()
        report(0)
        for step, seconds in ((1, 0.5), (2, 1.5), (3, 13), (4, 17)):
            clock[0] += seconds
            report(step, "reward 0.61")
            shown.tick()
        clock[0] += 30
        report(5, "", left_s=600)
        clock[0] += 60
        shown.tick()
    lines = [
        "step 0/150  evaluation 0/1  sampling 50/500  18 s left",  # 2 s for 50
        # What came before the first step does not count: two steps in 2 s, four in 32 s.
        "step 2/150  reward 0.61  2 min left",
        "step 4/150  reward 0.61  19 min left",
        "step 5/150  9 min left",  # as reported a minute ago
    ]
    assert said == lines
