"""A report says what the runs' files say, of whole runs and of those that were killed."""

import json
import math
import re
import struct
from pathlib import Path

import pytest

from minrl.record.metrics import MetricsLog
from minrl.report.__main__ import main
from minrl.report.runs import differences, read_run, smoothed
from minrl.report.tables import results, table
from minrl.types import UserError


@pytest.fixture
def make_run(tmp_path):
    """A run's folder under runs/, with steps 0 to `steps`; pass@1 goes up by 0.1 at every second step."""

    def make(name, steps=4, finished=True, **settings):
        folder = tmp_path / "runs" / name
        log = MetricsLog(folder)
        for step in range(steps + 1):
            line = {"time/step_s": 2.0, "time/rollout_s": 1.5, "time/update_s": 0.5, "time/log_s": 0.0}
            if step:
                line |= {"reward/mean": step / 8, "rollout/truncated_frac": 0.25, "engine/logprob_gap_mean": 1e-6}
                line |= {"memory/peak_gib": 1.0 + step / 4}
            if step % 2 == 0:
                line |= {"eval/sevens/pass@1": 0.4 + step / 20, "eval/sevens/pass@1_low": 0.3 + step / 20}
                line |= {"eval/sevens/pass@1_high": 0.5 + step / 20, "eval/sevens/pass@1_greedy": 0.6}
            log.log(step, line)
        log.close()
        config = {"task": "sevens", "algorithm": "grpo", "seed": 0, "runs_dir": name, "tasks": {"sevens": {"most": 9}}}
        record = {"minrl_run": name, "config": {**config, **settings}, "commit": "a" * 40}
        (folder / "config.json").write_text(json.dumps(record))
        if finished:
            summary = {"task": "sevens", "algorithm": settings.get("algorithm", "grpo"), "seconds": 12.4}
            (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    return make


def report(capsys, *arguments):
    """The report's text and its folder."""
    assert main([*map(str, arguments)]) == 0
    said = capsys.readouterr()
    path = Path(said.out.strip())
    return path.read_text(), path.parent, said.err


def size(path):
    """Width and height in a PNG's header."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_an_after_that_was_measured_before_the_last_step_says_when(make_run):
    for name, steps, said in (("whole", 4, ""), ("longer", 5, " at step 4")):
        assert f"| 40.0% (30.0 to 50.0) | 60.0% (50.0 to 70.0){said} |" in results([read_run(make_run(name, steps))])


def test_options_of_what_is_evaluated_beside_the_task_are_compared(make_run):
    runs = []
    for name, disks in (("a", 3), ("b", 4)):
        folder = make_run(name, tasks={"sevens": {"most": 9}, "hanoi": {"max_disks": disks}, "math": {"x": disks}})
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text() + json.dumps({"step": 5, "eval/hanoi/pass@1": 0.5}) + "\n")
        runs.append(read_run(folder))
    assert differences(runs) == {"hanoi.max_disks": [3, 4]}  # and nothing of tasks that the run has nothing to do with


def test_a_task_may_have_a_slash_in_its_name(make_run):
    folder = make_run("family")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace("eval/sevens/", "eval/reasoning_gym/leg_counting/"))
    (folder / "summary.json").write_text('{"task": "reasoning_gym/leg_counting"}')
    run = read_run(folder)
    assert run.tasks == ["reasoning_gym/leg_counting"]
    assert [score.pass_at_1 for score in run.scores(run.tasks[0])] == pytest.approx([0.4, 0.5, 0.6])


def test_runs_stand_side_by_side(make_run, capsys, tmp_path):
    first, second = make_run("a"), make_run("b", algorithm="rloo", learning_rate=1e-3)
    text, folder, said = report(capsys, first, second, "--output", tmp_path / "out")
    assert folder == tmp_path / "out" and said == ""
    assert "| a | sevens | grpo | 0 | 4 | 40.0% (30.0 to 50.0) | 60.0% (50.0 to 70.0) | 60.0% to 60.0% |" in text
    assert "| b | sevens | rloo | 0 | 4 |" in text
    assert '| `--algorithm` | `"grpo"` | `"rloo"` |' in text and "| `--learning-rate` | - | `0.001` |" in text
    assert "--runs-dir" not in text and "--seed" not in text.split("## Settings")[1].split("Made by")[0]
    assert "| ... rollout | 1.500 | 1.500 |" in text and "| peak memory, GiB | 2.00 | 2.00 |" in text
    pictures = re.findall(r"\]\((.*?)\)", text)
    assert pictures == ["curves.png", "scores.png", "seconds.png"]
    assert all(size(folder / name)[0] >= 600 for name in pictures)


def test_a_run_is_found_by_its_name_and_reported_in_its_folder(make_run, capsys, tmp_path):
    folder = make_run("a")
    text, written, _ = report(capsys, "a", "--runs-dir", tmp_path / "runs")
    assert written == folder / "report"
    assert text.startswith("# a\n") and "every setting is in config.json" in text


def test_a_run_that_was_killed_is_shown_as_far_as_it_came(make_run, capsys):
    folder = make_run("a", steps=3, finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward/me')
    text, _, said = report(capsys, folder)
    assert "| a | sevens | grpo | 0 | 3 | 40.0% (30.0 to 50.0) | 50.0% (40.0 to 60.0) at step 2 |" in text
    assert "- a has no summary.json: it is still going on, or was stopped, after step 3" in text
    assert "after step 3" in said and said.count("\n") == 1


def test_a_run_that_only_began_and_one_without_a_task_are_shown_too(make_run, capsys):
    folder = make_run("a", steps=0, finished=False)
    text, _, _ = report(capsys, folder)
    assert "| a | sevens | grpo | 0 | 0 | 40.0% (30.0 to 50.0) |" in text
    (folder / "metrics.jsonl").write_text('{"step": 1, "sft/loss": 2.0}\n{"step": 2, "sft/loss": 1.0}\n')
    text, _, _ = report(capsys, folder)
    assert "| a | - | grpo | 0 | 2 | - | - | - to - |" in text


def without_step_0(folder):
    path = folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def test_a_run_that_was_not_evaluated_before_its_first_step_has_no_before(make_run, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr("minrl.report.pictures.bars", lambda axes, names, sides, bounds: drawn.append((sides, bounds)))
    folder = make_run("a")
    without_step_0(folder)
    text, _, _ = report(capsys, folder)
    assert "| a | sevens | grpo | 0 | 4 | - | 60.0% (50.0 to 70.0) | - to 60.0% |" in text
    (((before, after), bounds),) = drawn
    assert before[0] == "before" and math.isnan(before[1][0]) and after == ("after", [pytest.approx(0.6)])
    assert bounds[0] == [None] and bounds[1] == [(pytest.approx(0.5), pytest.approx(0.7))]


def test_a_run_that_has_not_come_to_an_evaluation_has_no_after(make_run, capsys):
    text, _, _ = report(capsys, make_run("a", steps=1, finished=False))
    assert "| a | sevens | grpo | 0 | 1 | 40.0% (30.0 to 50.0) | - | 60.0% to - |" in text


@pytest.mark.slow
def test_each_comparison_has_a_folder_of_its_own(make_run, capsys, tmp_path):
    for name in ("a", "b", "c", "d" * 100, "e" * 100, "f" * 100):
        make_run(name, steps=1)
    where = ["--runs-dir", tmp_path / "runs"]
    compared = [("a", "b"), ("a", "c"), ("b", "a"), ("d" * 100, "e" * 100), ("d" * 100, "f" * 100)]
    folders = [report(capsys, *names, *where)[1] for names in compared]
    assert len(set(folders)) == len(compared)
    assert folders[0] == tmp_path / "runs" / "report" / "a+b"
    assert report(capsys, "a", "b", *where)[1] == folders[0]


def broken_json(folder):
    (folder / "config.json").write_text("{")


def no_config(folder):
    (folder / "config.json").write_text("{}")


def no_steps(folder):
    (folder / "metrics.jsonl").write_text('{"step": 0')


def torn_in_the_middle(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(lines[0] + '{"step": 1, "rew\n' + lines[2])


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (broken_json, r"config.json is damaged"),
        (no_config, r"config.json is not a run's: it has no `config`"),
        (no_steps, r"run .*a has no step yet"),
        (torn_in_the_middle, r"metrics.jsonl is damaged: a line is not JSON \(.*step"),
    ],
)
def test_what_is_broken_is_said_in_one_line(make_run, breaking, message):
    folder = make_run("a")
    breaking(folder)
    with pytest.raises(UserError, match=message) as error:
        main([str(folder)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one or more runs"),
        (["countdwn-grpo"], "no run countdwn-grpo: .*; did you mean countdown-grpo?"),
        (["countdown-grpo", "countdown-grpo"], "two of the runs are called countdown-grpo"),
        (["countdown-grpo", "--smoothing", "1"], "smoothing must be at least 0 and below 1, got 1.0"),
        (["countdown-grpo", "--smoothness", "1"], "unknown flag --smoothness: did you mean smoothing"),
    ],
)
def test_what_the_user_got_wrong_is_said_in_one_line(make_run, tmp_path, arguments, message):
    make_run("countdown-grpo")
    with pytest.raises(UserError, match=re.escape(message).replace(r"\.\*", ".*")):
        main([*arguments, "--runs-dir", str(tmp_path / "runs")])


def test_only_what_differs_is_a_difference(make_run):
    runs = [read_run(make_run(name, seed=seed, tasks={"sevens": {"most": most}})) for name, seed, most in
            (("a", 0, 9), ("b", 1, 12))]  # fmt: skip
    assert differences(runs) == {"seed": [0, 1], "sevens.most": [9, 12]}
    assert differences(runs[:1]) == {}


def test_smoothing_is_tensorboards():
    assert smoothed([3.0, 5.0], 0.0) == [3.0, 5.0]
    # Weights of a mean that forgets by half: (4 + 2 * 8) / 3 after two, (4 + 2 * 8 + 4 * 1) / 7 after three.
    assert smoothed([4.0, 8.0, 1.0], 0.5) == pytest.approx([4.0, 20 / 3, 24 / 7])


def test_a_cell_cannot_break_its_table():
    assert table(["a"], [["x|y\nz"]]).splitlines()[-1] == "| x\\|y z |"
