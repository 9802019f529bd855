"""Messages, progress and tables on the terminal, and messages in the run's folder."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loguru import logger
from rich.console import Console

from minrl.dataflow import UserError
from minrl.utils.cli import run_main
from minrl.utils.console import BARS, FILE_ONLY, RESULT, Screen, Table, activity, in_program, print_tables


@pytest.mark.parametrize("quiet", [False, True])
def test_the_file_has_every_message_and_quiet_shows_warnings_and_the_result_alone(tmp_path, capsys, quiet):
    for message in ("making the base model", "150 steps"):  # the second of a run that is resumed
        with Screen(quiet) as shown:
            shown.log_to(tmp_path / "log.txt")
            logger.bind(**{RESULT: True} if message == "150 steps" else {}).info(message)
            logger.warning("too long")
            logger.bind(**{FILE_ONLY: True}).error("UserError: no")
    lines = [line[20:] for line in (tmp_path / "log.txt").read_text().splitlines()]
    both = ["WARNING too long", "ERROR   UserError: no"]
    assert lines == ["INFO    making the base model", *both, "INFO    150 steps", *both]
    err = capsys.readouterr().err
    assert ("making the base model" in err) != quiet
    assert err.count("too long") == 2 and err.count("150 steps") == 1 and "UserError" not in err


def test_what_models_and_tasks_write_commands_no_terminal_and_is_shown_letter_by_letter(tmp_path, capsys):
    hostile, escaped = "5:100:3 \x1b]0;mine\x07\r\x9b2J \ud800", r"5:100:3 \x1b]0;mine\x07\r\x9b2J \ud800"
    with Screen(quiet=False) as shown:
        shown.log_to(tmp_path / "log.txt")
        logger.warning(hostile)
    print_tables([Table("countdown", ["model"], [["mine"]], [hostile])])

    def fail(_arguments):
        raise UserError(hostile)

    with pytest.raises(SystemExit):
        run_main(fail)
    out = capsys.readouterr()
    assert out.err.count(escaped) == 2 and "Traceback" not in out.err and escaped in out.out
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").count(escaped) == 1
    assert not set(out.err + out.out) & set("\x1b\x07\r\x9b\ud800")


def test_a_screen_takes_back_its_own_handlers_and_logs_no_message_of_the_program_around_it(tmp_path, capsys, said):
    theirs = "minrl_is_not_this"
    with in_program(), Screen(quiet=False) as shown:
        shown.log_to(tmp_path / "log.txt")
        logger.warning("the program's")
        logger.patch(lambda record: record.update(name=theirs)).warning("of another package")
        logger.patch(lambda record: record.update(name="minrl.trainer")).info("of minrl")
    logger.warning("after the run")
    assert [*map(str.strip, said)] == ["the program's", "of another package", "of minrl", "after the run"]
    assert [line[20:] for line in (tmp_path / "log.txt").read_text().splitlines()] == ["INFO    of minrl"]
    assert capsys.readouterr().err == ""  # the program's handlers show them


def test_without_a_terminal_each_step_is_a_line(said):
    with activity("step", 150, done=3) as report, activity("sampling", 500) as inner:
        inner(10)
        report(4, "reward 0.61")
    assert said == ["step 4/150  reward 0.61\n"]


def test_bars_are_nested_and_say_how_long_it_will_take(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(BARS, "get_time", lambda: clock[0])

    def drawn():
        console = Console(file=io.StringIO(), width=120)
        console.print(BARS.get_renderable())
        return [re.sub(r"\s*[━╸╺ ]*━[━╸╺ ]*", " | ", line).rstrip() for line in console.file.getvalue().splitlines()]

    with activity("step", 150, done=50) as report:
        clock[0] += 0.9
        assert "".join(drawn()).strip() == ""  # it has not lasted yet
        for step in (51, 52):
            clock[0] += 30
            report(step, "reward [0.61]")
        with activity("sampling [all]"):
            clock[0] += 2
            step, sampling = drawn()
    # From the 51st to the 52nd it took 30 s, and 98 are left.
    assert step == "step | 52/150 0:01:02 0:49:00 reward [0.61]"
    assert sampling.startswith("  sampling [all]") and sampling.endswith("0:00:02")
    assert not BARS.tasks


CLOSED = """
import sys
from minrl.utils.console import Screen, activity
with Screen(quiet=False):
    print("drawn", flush=True)
    sys.stdin.readline()
    for step in range(3):
        with activity("step", 2) as report:
            report(step, "reward 0.61")
print("saved", flush=True)
"""


def test_a_terminal_that_is_closed_ends_no_run():
    ours, theirs = pty.openpty()
    command, piped = [sys.executable, "-c", CLOSED], subprocess.PIPE
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=piped, stdout=piped, stderr=theirs, cwd=Path(__file__).parent.parent, env=environment, text=True
    )
    os.close(theirs)
    assert process.stdout.readline() == "drawn\n"
    os.close(ours)
    assert process.communicate("\n")[0] == "saved\n" and process.returncode == 0


def test_a_table_that_is_too_wide_is_folded_and_loses_nothing():
    console = Console(file=io.StringIO(), width=40)
    print_tables(
        [Table("scores", ["model", "pass@1 (95 %)"], [["m" * 30, "62.5% (40.1% to 80.2%)"]], ["a note"])], console
    )
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= 40 and shown.count("m") >= 30
    assert all(word in shown for word in ("62.5%", "(40.1%", "80.2%)", "a note"))
