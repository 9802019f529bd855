"""Messages on the terminal and in the run's folder."""

import re
import shutil
from threading import Thread

import pytest
from loguru import logger

from minrl.pipeline.shown import unscored
from minrl.terminal.bars import TICK_S
from minrl.terminal.command_line import run_main
from minrl.terminal.screen import FILE_ONLY, RESULT, Screen
from minrl.terminal.tables import Table, print_tables
from minrl.types import UserError


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


def of(score):
    """An evaluation with a score of so many per cent."""
    return {
        "pass@1": score / 100,
        "ci95": (score / 100 - 0.05, min(1.0, score / 100 + 0.05)),
        "pass@1_greedy": 0.5,
        "n": 512,
    }


def test_quiet_shows_the_result_and_where_it_is(tmp_path, capsys):
    with Screen(quiet=True) as screen:
        screen.log_to(tmp_path / "log.txt")
        logger.info("evaluated")
        screen.before_and_after({"countdown": of(39.1)}, {"countdown": of(88.2)})
        logger.bind(**{RESULT: True}).info("150 steps in 12 s; checkpoint kept/step_000150")
        screen.rounds([{"round": 0}])
    table, where = capsys.readouterr().err.split("countdown ")
    assert "before" in table and where.split() == [
        *("39.1", "(34.1", "to", "44.1)", "88.2", "(83.2", "to", "93.2)", "50.0", "to", "50.0", "512"),
        *(where.split()[12], "INFO", "150", "steps", "in", "12", "s;", "checkpoint", "kept/step_000150"),
    ]
    assert "150 steps" in (tmp_path / "log.txt").read_text()


def test_tables_fit_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    tasks = ["countdown[v2][/]", "reasoning_gym/a_task_with_a_long_name"]
    without = {"pass@1": None, "ci95": None, "pass@1_greedy": None, "n": 0}
    rounds = [
        {"round": 0, "pass@1": "38.2% (33.5-43.0)", "entropy": "0.512", "s": "3"},
        {"round": 10, "correct": "45.6%", "kept": "12345 (56%)", "solved": 12345}
        | {"pass@1": "100.0% (100.0-100.0)", "entropy": "0.123", "s": "1234"},
    ]
    with Screen(quiet=False) as screen:
        screen.before_and_after({}, {name: of(89.9) for name in tasks})
        screen.before_and_after({name: of(100.0) for name in tasks}, {tasks[0]: without, tasks[1]: of(99.9)})
        screen.rounds(rounds)
    shown = capsys.readouterr().err
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown and "[v2][/]" in shown
    assert all(str(cell) in shown for row in rounds for cell in row.values())
    assert shown.count("89.9 (84.9 to 94.9)") == 2 and "99.9 (94.9 to 100)" in shown and "100 (95.0 to 100)" in shown


def test_a_narrow_terminal_loses_no_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    with Screen(quiet=False) as screen:
        screen.before_and_after({"countdown": of(39.1)}, {"countdown": of(88.2)})
        screen.samples({True: "1 + 2 + 3 + 4 + 5 + 6 = 21"})
    table, sample = capsys.readouterr().err.split("a solved sample\n")
    assert "39.1 (34.1 to 44.1)" in table and "88.2 (83.2 to 93.2)" in table and "50.0 to 50.0" in table
    assert sample == "  1 + 2 + 3 + 4 + 5 + 6 = 21\n"


def test_a_table_that_no_terminal_of_its_width_holds_is_left_out(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    figures = [f"{number:08d}" for number in range(12)]
    print_tables([Table("wide", ["model", *figures], [["mine", *figures]])], "summary.md")
    assert capsys.readouterr().out == "\nwide: too wide for this terminal, see summary.md\n"


def test_what_models_and_tasks_write_commands_no_terminal_and_is_shown_letter_by_letter(tmp_path, capsys):
    hostile, shown = "5:100:3 \x1b]0;mine\x07\r\x9b2J \ud800", r"5:100:3 \x1b]0;mine\x07\r\x9b2J \ud800"
    table = Table("countdown", ["model"], [["mine"]], [hostile])
    with Screen(quiet=False) as screen:
        logger.warning(hostile)
        screen.log_to(tmp_path / "log.txt")
        logger.error(hostile)
        screen.samples({True: hostile})
    print_tables([table], "summary.md")
    told = capsys.readouterr()
    assert told.err.count(shown) == 3 and "Traceback" not in told.err and shown in told.out
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").count(shown) == 2
    assert not set(told.err + told.out) & set("\x1b\x07\r\x9b\ud800")


def test_errors_command_no_terminal(capsys):
    def fail(_arguments):
        raise UserError("boom \x1b[2J")

    with pytest.raises(SystemExit):
        run_main(fail)
    result = {"label": "mine", "task": "countdown", "n": 4, "first_unscorable": "boom \x1b[2J"}
    told = [capsys.readouterr().err, *unscored({"results": [result]})]
    assert all(line.strip().endswith(r"boom \x1b[2J") for line in told)


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


def test_two_threads_never_write_to_the_terminal_at_once(monkeypatch, capsys):
    """Rich would compute how many lines to erase for both before either has drawn, and erase a message."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with Screen(quiet=False) as screen, screen.progress("step", 2):
        with screen.bars.drawing:
            capsys.readouterr()
            telling = Thread(target=lambda: logger.warning("mine"))
            telling.start()
            telling.join(4 * TICK_S)  # in which the bars are due, too
            assert capsys.readouterr().err == ""
        telling.join()
        assert "mine" in capsys.readouterr().err
