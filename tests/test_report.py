"""A report says what the runs' files say, of whole runs and of those that were killed; so does the list of all runs."""

import os
import re
from pathlib import Path

import pytest

import minrl
from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.report import page
from minrl.report.page import markdown_table, over_seeds, results
from minrl.report.runs import groups_of, mean, read_run
from minrl.utils.files import LOCK, append_jsonl, lock, write_json, write_packed


@pytest.fixture(autouse=True)
def titles_alone(monkeypatch):
    """Of each chart a page has the title: drawing takes most of the time."""
    monkeypatch.setattr(page, "svg", lambda chart, *_: f"<svg>{chart.title}</svg>")


@pytest.fixture
def make_run(tmp_path):
    """A run's folder under runs/, with steps 0 to `steps`; pass@1 goes up by 0.1 at every second step."""

    def make(name, steps=4, finished=True, **settings):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        for step in range(steps + 1):
            line = {"time/step_s": 2.0, "time/rollout_s": 1.5, "time/update_s": 0.5, "time/log_s": 0.0}
            if step:
                line |= {"reward/mean": step / 8, "memory/peak_gib": 1.0 + step / 4, "speed/tokens_per_s": 50.0}
            if step % 2 == 0:
                line |= {"eval/sevens/pass@1": 0.4 + step / 20, "eval/sevens/pass@1_low": 0.3 + step / 20}
                line |= {"eval/sevens/pass@1_high": 0.5 + step / 20, "eval/sevens/pass@1_greedy": 0.6}
            append_jsonl(folder / "metrics.jsonl", [{"step": step, **line}])
        config = {"task": "sevens", "algorithm": "grpo", "seed": 0, "runs_dir": name, "tasks": {"sevens": {"most": 9}}}
        write_json(folder / "config.json", {"minrl_run": name, "config": {**config, **settings}, "commit": "a" * 40})
        if finished:
            write_json(folder / "summary.json", {"task": "sevens", "algorithm": config["algorithm"], "seconds": 12.4})
        return folder

    return make


def report(capsys, *arguments):
    """The report as Markdown and as a page."""
    assert main(["report", *map(str, arguments)]) == 0
    return [Path(line).read_text() for line in capsys.readouterr().out.splitlines()]


def test_runs_stand_side_by_side_on_a_page_that_asks_nothing_of_a_network_and_takes_no_markup(
    make_run, capsys, tmp_path
):
    first, second = make_run("a", judge_prompt="<b>why</b> not"), make_run("b", algorithm="rloo", learning_rate=1e-3)
    text, source = report(capsys, first, second, "--output", tmp_path / "out")
    assert "| a | 40.0% (30.0% to 50.0%) | 60.0% (50.0% to 70.0%) | 60.0% to 60.0% | sevens | grpo | 0 | 4 |" in text
    assert '| `--algorithm` | `"grpo"` | `"rloo"` |' in text and "| `--learning-rate` | - | `0.001` |" in text
    assert "--runs-dir" not in text and "--seed" not in text.split("## Settings")[1].split("Made by")[0]
    assert "| ... rollout | 1.500 | 1.500 |" in text and "| peak memory, GiB | 2.00 | 2.00 |" in text
    assert (tmp_path / "out/report.html").read_text() == source
    assert not re.search(r"""(src|href|action)=["'](?!#)|<script|<link|<iframe|url\(http""", source)
    assert source.count("<svg>held-out pass@1 of sevens</svg>") == source.count("<svg>reward</svg>") == 1
    assert "&lt;b&gt;why&lt;/b&gt; not" in source and "<b>why" not in source


def test_a_run_is_shown_as_far_as_it_came(make_run):
    folder = make_run("a", 3, finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "reward/me')  # a kill cut the line off
    run = read_run(folder)
    scores = ["40.0% (30.0% to 50.0%)", "50.0% (40.0% to 60.0%) at step 2", "60.0% to 60.0%"]
    assert results([run])[1] == [["a", *scores, "sevens", "grpo", "0", "3"]]
    assert page.unfinished([run]) == ["a has no summary.json: it is still running, or was stopped, after step 3"]


@pytest.mark.parametrize(
    ("name", "text", "message", "listed_as"),
    [
        ("config.json", "{}", "config.json is damaged or not a run's", "a: not a run: "),
        ("metrics.jsonl", '{"step": 1, "rew\n{"step": 2}\n', "is damaged: a line is not JSON", "a "),
    ],
)
def test_what_is_broken_is_said_in_one_line(make_run, capsys, tmp_path, name, text, message, listed_as):
    make_run("good")
    folder = make_run("a")
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=message) as error:
        main(["report", str(folder)])
    assert "\n" not in str(error.value)
    said = listed(capsys, tmp_path / "runs").splitlines()
    assert [any(line.startswith(begin) for line in said) for begin in (listed_as, "good ")] == [True, True]


def test_tokens_and_seconds_add_up_from_the_first_step(make_run):
    run = read_run(make_run("a", steps=3))
    assert run.positions("tokens") == {0: 0.0, 1: 100.0, 2: 200.0, 3: 300.0}
    assert run.positions("seconds") == {0: 0.0, 1: 2.0, 2: 4.0, 3: 6.0}


@pytest.mark.slow  # matplotlib draws them all
def test_the_curves_are_pictures_too_and_a_list(make_run, capsys):
    folder = make_run("a")
    assert main(["report", str(folder), "--png", "--axis", "seconds"]) == 0
    pictures = [Path(line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert {"reward_mean.png", "eval_sevens_pass_at_1.png"} <= {path.name for path in pictures}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert [line.get("reward/mean") for line in minrl.metrics(str(folder))] == [None, 0.125, 0.25, 0.375, 0.5]


def test_runs_that_differ_in_their_seed_only_are_one_group_with_mean_and_interval(make_run, capsys):
    runs = [make_run(f"x-seed{seed}", seed=seed, save_every=seed) for seed in (0, 1)]  # how often divides no seeds
    runs += [make_run("y-seed0", seed=0, learning_rate=1.0), make_run("x-seed0-2", seed=0)]
    shift = runs[1] / "metrics.jsonl"
    shift.write_text(shift.read_text().replace('"eval/sevens/pass@1": 0.6', '"eval/sevens/pass@1": 0.62'))
    groups = groups_of([read_run(folder) for folder in runs])
    # A run with a seed that the group has is no further sample of it.
    named = [(group.name, [run.name for run in group.runs]) for group in groups]
    assert named[0] == ("x, 2 seeds", ["x-seed0", "x-seed1"])
    assert named[1:] == [(name, [name]) for name in ("y-seed0", "x-seed0-2")]
    rows = over_seeds(groups)[1]
    # 0.60 and 0.62: mean 0.61, standard error 0.01, and 12.7062 times that on both sides.
    assert rows[0] == ["x, 2 seeds", "sevens", "40.0% (40.0% to 40.0%)", "61.0% (48.3% to 73.7%)"]
    assert rows[1] == ["y-seed0", "sevens", "40.0% (one seed)", "60.0% (one seed)"]
    text, _ = report(capsys, *runs[:2])
    assert text.startswith("# x, 2 seeds\n") and markdown_table(*over_seeds(groups[:1])) in text


def test_students_interval_is_that_of_the_tables():
    for count, quantile in ((2, 12.706), (11, 2.228), (30, 2.228)):  # of more than 11 the last
        value, low, high = mean([0.0, 2.0] + [1.0] * (count - 2))
        half = pytest.approx(quantile * (2 / (count - 1) / count) ** 0.5, rel=1e-3)
        assert (value, high - value, value - low) == (1, half, half)


def listed(capsys, runs):
    assert main(["report", "--runs-dir", str(runs)]) == 0
    return capsys.readouterr().out


def test_without_a_name_all_runs_are_listed_the_last_written_at_the_end(make_run, capsys, tmp_path):
    runs = tmp_path / "runs"
    for age, (name, steps) in enumerate({"b-now": 2, "a-stopped": 3, "z-done": 4}.items()):
        for path in make_run(name, steps, finished=name == "z-done").glob("*.json*"):
            os.utime(path, (1e9 - 60 * age,) * 2)
    (runs / "c-new").mkdir()
    with lock(runs / "b-now" / LOCK), lock(runs / "c-new" / LOCK):
        assert "c-new: is being prepared" in listed(capsys, runs)
        done, stopped, now = (line.split() for line in listed(capsys, runs).splitlines() if "sevens" in line)
    assert done[:6] == ["z-done", "finished", "4", "sevens", "40.0%", "60.0%"]
    assert stopped[:6] == ["a-stopped", "stopped", "3", "sevens", "40.0%", "50.0%"]
    assert now[:3] == ["b-now", "running", "2"]
    assert "stopped" in listed(capsys, runs).split("b-now")[1]  # its process is gone


def evaluation(folder, step, verdicts):
    """An evaluation of problems that are solved or not, greedily and in two samples of each."""
    lines = [
        {"task": "sevens", "mode": mode, "example_id": str(n), "role": "policy", "prompt": f"say | {n}"}
        | {"solved": solved, "category": {"odd": str(n % 2)}}
        for mode in ("greedy", "sampled", "sampled")
        for n, solved in enumerate(verdicts)
    ]
    write_packed(folder / "evaluations" / f"step_{step:06d}.jsonl.gz", lines)


def test_problems_whose_verdict_changed_and_categories_are_tables(make_run, capsys):
    folder, other = make_run("a"), make_run("b")
    evaluation(folder, 0, [True, False, None, True])
    evaluation(folder, 2, [True] * 4)  # neither the first nor the last
    evaluation(folder, 4, [False, True, True, True])
    evaluation(other, 4, [True])
    text, source = report(capsys, folder, other)
    part = text.split("## Held-out problems")[1].split("## Cost")[0]
    assert "a, greedy: 2 problems became right, 1 became wrong" in part and "b, greedy" not in part
    # Of problems 0 and 2 the first was right before and the second after; of 1 and 3 one before, both after.
    assert [line for line in part.splitlines() if line.startswith(("| a", "| b"))] == [
        "| a | sevens | odd=0 | 2 | 50.0% | 50.0% |",
        "| a | sevens | odd=1 | 2 | 50.0% | 100.0% |",
        "| b | sevens | odd=0 | 1 | - | 100.0% |",
        "| a | sevens | say \\| 0 | right | wrong |",
        "| a | sevens | say \\| 1 | wrong | right |",
        "| a | sevens | say \\| 2 | wrong | right |",
    ]
    assert "<td>say | 2</td>" in source
