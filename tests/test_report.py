"""A report says what the runs' files say, of whole runs and of those that were killed; so does the list of all runs."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from minrl.__main__ import main
from minrl.report import charts
from minrl.report.charts import Chart, svg
from minrl.report.page import markdown_table, over_seeds, results, settings
from minrl.report.report import _default_folder
from minrl.report.runs import T975, differences, groups_of, mean, read_run, smoothed, student
from minrl.types import UserError
from minrl.utils.files import LOCK, append_jsonl, lock


@pytest.fixture
def make_run(tmp_path):
    """A run's folder under runs/, with steps 0 to `steps`; pass@1 goes up by 0.1 at every second step."""

    def make(name, steps=4, finished=True, not_default=None, **settings):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        for step in range(steps + 1):
            line = {"time/step_s": 2.0, "time/rollout_s": 1.5, "time/update_s": 0.5, "time/log_s": 0.0}
            if step:
                line |= {"reward/mean": step / 8, "rollout/truncated_frac": 0.25, "engine/logprob_gap_mean": 1e-6}
                line |= {"memory/peak_gib": 1.0 + step / 4}
            if step % 2 == 0:
                line |= {"eval/sevens/pass@1": 0.4 + step / 20, "eval/sevens/pass@1_low": 0.3 + step / 20}
                line |= {"eval/sevens/pass@1_high": 0.5 + step / 20, "eval/sevens/pass@1_greedy": 0.6}
            append_jsonl(folder / "metrics.jsonl", [{"step": step, **line}])
        config = {"task": "sevens", "algorithm": "grpo", "seed": 0, "runs_dir": name, "tasks": {"sevens": {"most": 9}}}
        record = {"minrl_run": name, "config": {**config, **settings}, "commit": "a" * 40}
        record |= {} if not_default is None else {"not_default": not_default}
        (folder / "config.json").write_text(json.dumps(record))
        if finished:
            summary = {"task": "sevens", "algorithm": settings.get("algorithm", "grpo"), "seconds": 12.4}
            (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    return make


def report(capsys, *arguments):
    """The report's text, its folder, and what was said but for the first line."""
    assert main(["report", *map(str, arguments)]) == 0
    said = capsys.readouterr()
    path, page = map(Path, said.out.splitlines())
    assert page == path.with_name("report.html")
    first, *remarks = said.err.splitlines(keepends=True)
    assert first.startswith("reading ")
    return path.read_text(), path.parent, "".join(remarks)


def test_options_of_what_is_evaluated_beside_the_task_are_compared(make_run):
    runs = []
    for name, disks in (("a", 3), ("b", 4)):
        folder = make_run(name, tasks={"sevens": {"most": 9}, "hanoi": {"max_disks": disks}, "math": {"x": disks}})
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text() + json.dumps({"step": 5, "eval/hanoi/pass@1": 0.5}) + "\n")
        runs.append(read_run(folder))
    assert differences(runs) == {"hanoi.max_disks": [3, 4]}  # and nothing of tasks that the run has nothing to do with


def test_runs_stand_side_by_side(make_run, capsys, tmp_path):
    first, second = make_run("a"), make_run("b", algorithm="rloo", learning_rate=1e-3)
    text, folder, said = report(capsys, first, second, "--output", tmp_path / "out")
    assert folder == tmp_path / "out" and said == ""
    assert "| a | 40.0% (30.0 to 50.0) | 60.0% (50.0 to 70.0) | 60.0% to 60.0% | sevens | grpo | 0 | 4 |" in text
    assert "| sevens | rloo | 0 | 4 |" in text
    assert '| `--algorithm` | `"grpo"` | `"rloo"` |' in text and "| `--learning-rate` | - | `0.001` |" in text
    assert "--runs-dir" not in text and "--seed" not in text.split("## Settings")[1].split("Made by")[0]
    assert "| ... rollout | 1.500 | 1.500 |" in text and "| peak memory, GiB | 2.00 | 2.00 |" in text


def without_step_0(folder):
    path = folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


@pytest.mark.parametrize(
    ("steps", "change", "scores"),
    [
        (4, None, ["40.0% (30.0 to 50.0)", "60.0% (50.0 to 70.0)", "60.0% to 60.0%"]),
        (3, None, ["40.0% (30.0 to 50.0)", "50.0% (40.0 to 60.0) at step 2", "60.0% to 60.0%"]),
        (0, None, ["40.0% (30.0 to 50.0)", "-", "60.0% to -"]),
        (4, without_step_0, ["-", "60.0% (50.0 to 70.0)", "- to 60.0%"]),
        (1, without_step_0, ["-", "-", "- to -"]),
    ],
)
def test_a_run_is_shown_as_far_as_it_came(make_run, steps, change, scores):
    folder = make_run("a", steps, finished=False)
    if change:
        change(folder)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "reward/me')  # a kill cut the line off
    run = read_run(folder)
    assert results([run])[1] == [["a", *scores, "-" if scores[0] == scores[1] else "sevens", "grpo", "0", str(steps)]]
    assert run.unfinished == f"a has no summary.json: it is still going on, or was stopped, after step {steps}"
    assert charts.curves(groups_of([run]), "step", 0.6) or scores[0] == scores[1]  # nothing has a curve after a step


def test_each_comparison_has_a_folder_of_its_own(make_run, capsys, tmp_path):
    compared = [("a", "b"), ("a", "c"), ("b", "a"), ("d" * 100, "e" * 100), ("d" * 100, "f" * 100)]
    names = dict.fromkeys(name for pair in compared for name in pair)
    runs = {name: read_run(make_run(name, steps=1, finished=False)) for name in names}
    folders = [_default_folder([runs[one], runs[two]], one, "runs") for one, two in compared]
    assert len(set(folders)) == len(compared) and folders[0] == Path("runs/report/a+b")
    where = ["--runs-dir", tmp_path / "runs"]
    text, folder, said = report(capsys, "a", *where)
    assert folder == tmp_path / "runs/a/report" and text.startswith("# a\n")
    assert said == f"{runs['a'].unfinished}\n" and f"- {runs['a'].unfinished}" in text
    report(capsys, "a", "b", *where)
    everything = sorted(path for path in (tmp_path / "runs").glob("*") if len(path.name) < 99)  # that report's too
    assert report(capsys, *everything, *where)[1] == tmp_path / "runs/report/a+b+c"


def broken(name, text):
    """A change of a run's folder: the file has this text."""

    def change(folder):
        (folder / name).write_bytes(text)

    return change


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def a_dead_link(folder):
    shutil.rmtree(folder)
    folder.symlink_to("/nowhere")


DAMAGED = "config.json is damaged or not a run's"


@pytest.mark.parametrize(
    ("breaking", "message", "listed_as"),
    [
        (broken("config.json", b"{}"), DAMAGED, "not a run: "),
        (broken("config.json", b"\xff\xfe"), DAMAGED, "not a run: "),
        (broken("metrics.jsonl", b'{"a": 1}\n'), "line 1 is not that of a step", "not a run: "),
        (broken("metrics.jsonl", b'{"step": 0'), "run .*a has no step yet", None),
        (broken("metrics.jsonl", b'{"step": 1, "rew\n{"step": 2}\n'), "is damaged: a line is not JSON", None),
        (emptied, "no run .*a: neither", "not a run: "),
        (a_dead_link, "no run .*a: neither", "not a run: "),
    ],
)
def test_what_is_broken_is_said_in_one_line(make_run, capsys, tmp_path, breaking, message, listed_as):
    make_run("good")
    breaking(folder := make_run("a"))
    broken("config.json", b'{"minrl_run": "a", "config": {"tasks": 5, "task": [], "note": {}}}')(make_run("odd"))
    with pytest.raises(UserError, match=message) as error:
        main(["report", str(folder)])
    assert "\n" not in str(error.value)
    said = listed(capsys, tmp_path / "runs").splitlines()
    assert any(line.startswith(f"a: {listed_as}" if listed_as else "a") for line in said) and "good" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x"], "--output and --smoothing are for the report of a run: name one"),
        (["--smoothing", "0.3"], "--output and --smoothing are for the report of a run: name one"),
        (["countdwn-grpo"], "no run countdwn-grpo: .*; did you mean countdown-grpo?"),
        (["countdown-grpo", "countdown-grpo"], "two of the runs are called countdown-grpo"),
        (["countdown-grpo", "--smoothing", "1"], "smoothing must be at least 0 and below 1, got 1.0"),
        (["countdown-grpo", "--smoothness", "1"], "unknown flag --smoothness: did you mean --smoothing"),
    ],
)
def test_what_the_user_got_wrong_is_said_in_one_line(make_run, tmp_path, arguments, message):
    make_run("countdown-grpo")
    with pytest.raises(UserError, match=re.escape(message).replace(r"\.\*", ".*")):
        main(["report", *arguments, "--runs-dir", str(tmp_path / "runs")])


def test_only_what_differs_is_a_difference(make_run):
    runs = [read_run(make_run(name, seed=seed, tasks={"sevens": {"most": most}})) for name, seed, most in
            (("a", 0, 9), ("b", 1, 12))]  # fmt: skip
    assert differences(runs) == {"seed": [0, 1], "sevens.most": [9, 12]}
    assert differences(runs[:1]) == {}


def test_smoothing_is_tensorboards():
    assert smoothed([3.0, 5.0], 0.0) == [3.0, 5.0]
    # Weights of a mean that forgets by half: (4 + 2 * 8) / 3 after two, (4 + 2 * 8 + 4 * 1) / 7 after three.
    assert smoothed([4.0, 8.0, 1.0], 0.5) == pytest.approx([4.0, 20 / 3, 24 / 7])


TITLES = {"held-out pass@1 of sevens", *(title for title, _, _ in charts.PANELS)}


class Page(HTMLParser):
    """A page's text, the text in each of its groups of charts, and whatever would ask the network."""

    def __init__(self, text):
        super().__init__()
        self.charts, self.asked, self.text, self._axis = {}, [], "", None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        names = [name for name in ("src", "href", "data", "action", "xlink:href") if name in found]
        self.asked += [found[name] for name in names if not found[name].startswith("#")]
        self.asked += [tag] * (tag in ("script", "link", "iframe", "img"))
        if tag == "div" and found.get("class", "").startswith("charts"):
            self._axis = found["class"].removeprefix("charts").strip()
            self.charts[self._axis] = []

    def handle_endtag(self, tag):
        self._axis = None if tag == "div" else self._axis

    def handle_data(self, data):
        if self._axis is not None and data.strip():
            self.charts[self._axis].append(data.strip())
        self.text += f"{data}\n"


def test_the_page_is_one_file_with_every_curve_over_steps_tokens_and_seconds(make_run, capsys):
    folder = make_run("a", note="<b>why</b> not")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line |= {"speed/tokens_per_s": 50.0, "system/memory_gb": 1.0, "system/cpu_percent": 90.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text, written, _ = report(capsys, folder)
    source = (written / "report.html").read_text()
    page = Page(source)
    assert page.asked == [] and "url(http" not in source
    titles = [text for text in page.charts["step"] if text in TITLES]
    assert titles[:2] == ["reward", "held-out pass@1 of sevens"]
    assert {"memory, GiB", "processor, % of the cores"} < set(titles)
    for axis in ("tokens", "seconds"):
        assert [text for text in page.charts[axis] if text in TITLES] == titles
        assert f"#by-{axis}:not(:checked) ~ .{axis}" in source
    assert source.count(" checked>") == 1 and 'id="by-step" checked' in source
    assert "prefers-color-scheme: dark" in source and "width=device-width" in source
    assert "a: <b>why</b> not" in page.text and "- a: <b>why</b> not" in text
    assert re.findall("<th>(.*?)</th>", source)[:4] == ["run", "before", "after", "greedy"]  # what a phone shows
    # Steps of 2 seconds with 50 tokens a second, none before step 1.
    run = read_run(folder)
    assert list(run.positions("seconds").values()) == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert list(run.positions("tokens").values()) == [0.0, 100.0, 200.0, 300.0, 400.0]
    # A round of expert iteration has the tokens of its last optimizer step too, and counts those that it sampled.
    line = {"time/step_s": 2.0, "speed/tokens_per_s": 50.0, "sft/tokens": 7.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": step, **line}) + "\n" for step in (1, 2)))
    assert read_run(folder).positions("tokens") == {1.0: 100.0, 2.0: 200.0}


def test_an_axis_on_which_nothing_is_known_is_left_out(make_run, capsys):
    _, written, _ = report(capsys, make_run("a"))  # it has seconds, and no tokens
    assert Page((written / "report.html").read_text()).charts.keys() == {"step", "seconds"}


def test_runs_that_differ_in_their_seed_only_are_one_group_with_mean_and_interval(make_run, capsys):
    runs = [make_run(f"x-seed{seed}", seed=seed, note=f"note {seed}") for seed in (0, 1)]
    runs += [make_run("y-seed0", seed=0, learning_rate=1.0), make_run("x-seed0-2", seed=0)]
    shift = runs[1] / "metrics.jsonl"
    shift.write_text(shift.read_text().replace('"eval/sevens/pass@1": 0.6', '"eval/sevens/pass@1": 0.62'))
    groups = groups_of([read_run(folder) for folder in runs])
    # A run with a seed that the group has is no further sample of it.
    assert [[run.name for run in group.runs] for group in groups] == [
        ["x-seed0", "x-seed1"],
        ["y-seed0"],
        ["x-seed0-2"],
    ]
    assert [group.name for group in groups] == ["x, 2 seeds", "y-seed0", "x-seed0-2"]
    rows = over_seeds(groups)[1]
    # 0.60 and 0.62: mean 0.61, standard error 0.01, and 12.7062 times that on both sides.
    assert rows[0] == ["x, 2 seeds", "sevens", "40.0% (40.0 to 40.0)", "61.0% (48.3 to 73.7)"]
    assert rows[1] == ["y-seed0", "sevens", "40.0% (one seed)", "60.0% (one seed)"]
    text, written, _ = report(capsys, *runs[:2])
    assert text.startswith("# x, 2 seeds\n") and markdown_table(*over_seeds(groups[:1])) in text
    source = (written / "report.html").read_text()
    assert "Over seeds" in source and 'id="band"' not in source  # that of two seeds would hide everything
    _, written, _ = report(capsys, *runs[:2], make_run("x-seed2", seed=2))
    assert 'id="band"' in (written / "report.html").read_text()
    assert over_seeds(groups[1:])[1] == []


def test_a_mean_over_seeds_is_of_one_step_and_of_all_of_them(make_run):
    """Seeds that came to steps 4, 4 and 2 have 50 % at step 2, the last that all have; 60 % is of two alone."""
    runs = [make_run(f"x-seed{seed}", steps, seed=seed) for seed, steps in enumerate((4, 4, 2))]
    without_step_0(runs[2])
    same = {"before": "40.0% (40.0 to 40.0), 2 of 3 seeds", "after": "50.0% (50.0 to 50.0) at step 2"}
    assert over_seeds(groups_of([*map(read_run, runs)]))[1] == [["x, 3 seeds", "sevens", *same.values()]]
    runs.append(make_run("x-seed3", 1, seed=3))
    (row,) = over_seeds(groups_of([*map(read_run, runs)]))[1]
    assert row[-1] == "-"  # one was never measured after its first step


def test_students_interval_is_that_of_the_tables():
    # The 97.5 % quantiles with 1, 10, 20, 60 degrees of freedom and, without end, the normal distribution's.
    for free, quantile in ((1, 12.706), (10, 2.228), (11, 2.201), (20, 2.086), (60, 2.000), (10**6, 1.960)):
        assert student(free) == pytest.approx(quantile, abs=6e-4)
    assert list(T975) == sorted(T975, reverse=True)
    assert (mean([2.0]).value, mean([2.0]).low) == (2.0, None)
    three = mean([1.0, 2.0, 3.0])  # standard deviation 1
    assert three.high - three.value == pytest.approx(4.3027 / 3**0.5)


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, -1.0], [1e-9, 1e9], [0.0, 0.0, 1e-300], [3.0, 3.0000001]])
@pytest.mark.parametrize("scale", ["linear", "share", "log"])
def test_a_chart_takes_any_values(values, scale):
    def draw(axes):
        axes.plot(range(len(values)), values)
        charts._finish(axes, "step", scale)

    text = svg(Chart("t", draw))
    assert "nan" not in text.lower() and "mathdefault" not in text  # which STYLE does not typeset


def test_a_chart_is_drawn_in_the_colours_of_the_style_sheet_and_its_text_is_text():
    def draw(axes):
        charts.curve(axes, [0.0, 1.0], [0.1, 0.5], ([0.0, 0.4], [0.2, 0.6]))

    text = svg(Chart("<b>&", draw))
    assert "&lt;b&gt;&amp;" in text and "var(--c0)" in text and "var(--ink)" in text and "var(--faint)" in text
    assert not re.search(f"{charts.INK}|{charts.FAINT}|{charts.PALETTE[0]}", text, re.IGNORECASE)
    assert text == svg(Chart("<b>&", draw))  # the same each time


def test_the_settings_of_a_single_run_are_those_that_are_not_at_their_defaults(make_run):
    def of(name, **more):
        return settings([read_run(make_run(name, **more))])

    changed = of("a", not_default={"learning_rate": 0.001, "sevens.most": 12})
    assert changed[1] == [["`--learning-rate`", "`0.001`"], ["`--sevens.most`", "`12`"]]
    assert of("b", not_default={}) == "Every setting is at its default."
    assert of("c").endswith("every setting is in config.json.")  # of an earlier version


def listed(capsys, runs):
    assert main(["report", "--runs-dir", str(runs)]) == 0
    return capsys.readouterr().out


def test_without_a_name_all_runs_are_listed_the_last_written_at_the_end(make_run, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    runs = tmp_path / "runs"
    note = "a note that is longer than a line of eighty columns and is therefore wrapped into two lines"
    make_run("z-done", steps=4)
    make_run("a-stopped", steps=3, finished=False, note=note).joinpath("report").mkdir()
    held = make_run("b-now", steps=2, finished=False, model_id="Qwen/Qwen3-0.6B")
    for age, name in enumerate(("b-now", "a-stopped", "z-done")):
        for path in (runs / name).glob("*.json*"):
            os.utime(path, (1e9 - 60 * age,) * 2)
    (runs / "report").mkdir()  # that of several runs
    file = lock(held / LOCK)
    text = listed(capsys, runs)
    file.close()
    done, stopped, now, end = text.split("\n\n")
    assert done.startswith("z-done\n  finished, step 4 of 9, 0") or done.startswith("z-done\n  finished, step 4, ")
    assert "sevens, own base model, held-out pass@1 40.0% before, 60.0% after" in done and "--resume" not in done
    assert (
        f"\n  python -m minrl train --resume {runs}/a-stopped" in stopped and "a-stopped\n  stopped, step 3" in stopped
    )
    assert note in " ".join(stopped.split()) and max(map(len, stopped.splitlines()[:-1])) <= 80
    assert f"b-now\n  going on (process {os.getpid()} on " in now and "--resume" not in now and "Qwen/Qwen3-0.6B" in now
    assert end.startswith(f"3 runs in {runs}.")
    assert "b-now\n  stopped, step 2" in listed(capsys, runs)  # its process is gone


def test_a_run_that_has_a_name_and_no_config_yet_is_being_prepared(capsys, tmp_path):
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    with lock(folder / LOCK):
        assert re.match(rf"a: is being prepared \(process {os.getpid()} on .*\)\n", listed(capsys, tmp_path / "runs"))
    assert listed(capsys, tmp_path / "runs").startswith("a: not a run: ")  # it was killed


def test_a_run_before_its_first_line_is_listed_and_a_folder_without_runs_is_said(make_run, capsys, tmp_path):
    (make_run("a", finished=False) / "metrics.jsonl").write_text('{"step": 0')
    assert "a\n  stopped, step 0" in listed(capsys, tmp_path / "runs")
    (tmp_path / "none").mkdir()
    assert listed(capsys, tmp_path / "none") == f"no run in {tmp_path}/none yet: python -m minrl train makes one\n"
    with pytest.raises(
        UserError, match=rf"there is no folder {tmp_path}/nowhere: name that of the runs with --runs-dir"
    ):
        main(["report", "--runs-dir", str(tmp_path / "nowhere")])
    with pytest.raises(
        UserError, match=r"runs/a is a run itself: name it without --runs-dir, or the folder that holds"
    ):
        main(["report", "--runs-dir", str(tmp_path / "runs/a")])


def test_a_command_names_a_folder_with_a_space_as_a_shell_reads_it(make_run, capsys, tmp_path):
    make_run("a")
    runs = (tmp_path / "runs").rename(tmp_path / "my runs")
    assert f"minrl train --resume '{runs}/RUN' --steps N\n" in listed(capsys, runs)
    text, _, _ = report(capsys, "a", "--runs-dir", runs)
    assert f"Made by `python -m minrl report a --runs-dir '{runs}'`" in text


def test_the_list_of_runs_imports_neither_torch_nor_matplotlib():
    slow = {"torch", "transformers", "tensorboard", "matplotlib", "datasets"}
    code = f"import sys, minrl.report.report; print({slow} & set(sys.modules))"
    root = Path(__file__).parent.parent
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert finished.stdout == "set()\n", finished.stderr


def test_a_cell_cannot_break_its_table():
    assert markdown_table(["a"], [["x|y\nz"]]).splitlines()[-1] == "| x\\|y z |"
