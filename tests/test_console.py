"""Messages, progress and tables on the terminal, and messages in the run's folder."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from loguru import logger

from minrl.dataflow import UserError
from minrl.utils.cli import run_main
from minrl.utils.console import FILE_ONLY, RESULT, Screen, Table, print_tables


def logged(path):
    return [line[20:] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("quiet", [False, True])
def test_the_file_has_every_message_and_quiet_shows_warnings_and_the_result_alone(tmp_path, capsys, quiet):
    for message in ("making the base model", "150 steps"):  # the second of a run that is resumed
        with Screen(quiet) as shown:
            shown.log_to(tmp_path / "log.txt")
            logger.bind(**{RESULT: True} if message == "150 steps" else {}).info(message)
            logger.warning("too long")
            logger.bind(**{FILE_ONLY: True}).error("UserError: no")
    both = ["WARNING too long", "ERROR   UserError: no"]
    assert logged(tmp_path / "log.txt") == ["INFO    making the base model", *both, "INFO    150 steps", *both]
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
    assert logged(tmp_path / "log.txt") == [f"WARNING {escaped}"]
    assert not set(out.err + out.out) & set("\x1b\x07\r\x9b\ud800")


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
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": theirs, "text": True}
    environment = {**os.environ, "TERM": "xterm"}
    root = Path(__file__).parent.parent
    process = subprocess.Popen([sys.executable, "-c", CLOSED], cwd=root, env=environment, **streams)
    os.close(theirs)
    assert process.stdout.readline() == "drawn\n"
    os.close(ours)
    assert process.communicate("\n")[0] == "saved\n" and process.returncode == 0
