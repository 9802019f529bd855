"""Messages on the terminal and in the run's folder."""

import re
import shutil

import pytest
from loguru import logger

from minrl.terminal.screen import FILE_ONLY, Screen


@pytest.fixture(autouse=True)
def _leave_no_sinks():
    yield
    logger.remove()


def test_the_file_has_every_message_also_those_from_before_it(tmp_path, capsys):
    with Screen(quiet=False) as screen:
        logger.info("making the base model")
        screen.log_to(tmp_path / "log.txt")
        logger.warning("preflight: too long")
        logger.bind(**{FILE_ONLY: True}).error("UserError: no")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line[20:] for line in lines] == [
        "INFO    making the base model",
        "WARNING preflight: too long",
        "ERROR   UserError: no",
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    shown = capsys.readouterr().err
    assert "making the base model" in shown and "too long" in shown and "UserError" not in shown


def test_a_run_that_goes_on_adds_to_the_file(tmp_path):
    for message in ("first", "second"):
        with Screen(quiet=True) as screen:
            screen.log_to(tmp_path / "log.txt")
            logger.info(message)
    text = (tmp_path / "log.txt").read_text()
    assert text.index("first") < text.index("second") and text.count("first") == 1


def test_quiet_shows_warnings_only_and_keeps_all(tmp_path, capsys):
    with Screen(quiet=True) as screen:
        screen.log_to(tmp_path / "log.txt")
        logger.info("evaluated")
        logger.warning("damaged")
    assert "evaluated" in (tmp_path / "log.txt").read_text()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_that_cannot_be_written_any_more_does_not_stop_what_is_said(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    with Screen(quiet=False) as screen:
        screen.log_to(tmp_path / "run/log.txt")
        logger.info("here")
        shutil.rmtree(tmp_path / "run")
        logger.info("gone")
    shown = capsys.readouterr().err
    assert "here" in shown and "gone" in shown and shown.count("\n") == 2


def test_there_are_no_bars_where_the_output_is_no_terminal(capsys):
    with Screen(quiet=False) as screen, screen.progress("countdown", 2) as report:
        report(1, "")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("texts", [{False: "1 + 1 = 3", True: "1 + 1 = [2]"}, {True: "1 + 1 = [2]"}, {}])
def test_a_solved_and_a_failed_sample_are_shown_letter_by_letter_where_there_are_any(texts, capsys):
    with Screen(quiet=False) as screen:
        screen.samples(texts)
    shown = [f"a solved sample\n  {texts[True]}\n"] if True in texts else []
    shown += [f"a failed sample\n  {texts[False]}\n"] if False in texts else []
    assert capsys.readouterr().err == "".join(shown)
    with Screen(quiet=True) as screen:
        screen.samples(texts)
    assert capsys.readouterr().err == ""
