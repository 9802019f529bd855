"""evaluate.py as a whole: models x tasks -> one folder, stopped, resumed, extended, scored again."""

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate import play
from minrl.evaluation import evaluate as evaluate_while_training
from minrl.models.distributed import Processes
from minrl.rewards.workers import Workers
from minrl.run.setup import load_policy
from minrl.tasks import load_task
from tests import evaluated
from tests.evaluated import files_of, rows_of, run, said_by, summary_of
from tests.forked import Forked
from tests.parsed import sized
from tests.runs import signal_when

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.usefixtures("own_programs")


@pytest.fixture(scope="module")
def models(evaluated_place):
    return [f"{evaluated_place}/model0", f"{evaluated_place}/model1"]


@pytest.fixture(scope="module")
def tasks(evaluated_place):
    return [f"{evaluated_place}/evaluated_tasks.py:{name}" for name in ("even", "talk", "fails")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, models, tasks, own_programs):
    """An evaluation that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert run("--models", *models, "--tasks", *tasks[:2], "--output", folder) == 0
    return folder


@pytest.fixture
def played(monkeypatch):
    """The (model, mode, example, sample) of each row that a local model plays from now on."""
    found, usual = [], play.LocalPlayer._play

    def recorded(*given):
        rows = usual(*given)
        found.extend((row["model"], row["mode"], row["example"], row["sample"]) for row in rows)
        return rows

    monkeypatch.setattr(play.LocalPlayer, "_play", recorded)
    return found


def test_the_figures_are_those_of_the_completions_in_every_file(whole):
    # By hand from the texts: solved is an even number of words; pass@2 of 4 samples with c solved ones is
    # 1 - C(4-c, 2) / 6: 0, 1/2, 5/6, 1, 1.
    results = summary_of(whole)["results"]
    pairs = [(model, task) for model in ("model0", "model1") for task in ("even", "talk")]
    assert [(r["label"], r["task"]) for r in results] == pairs
    rows = [row for row in rows_of(whole) if row["task"] == "even" and row["model"].endswith("model0")]
    solves = {(row["mode"], row["number"], row["sample"]): len(said_by(row).split()) % 2 == 0 for row in rows}
    numbers = sorted({number for _, number, _ in solves})
    counts = [sum(solves["sampled", number, n] for n in range(4)) for number in numbers]
    first = results[0]
    assert 0 < sum(counts) < 4 * len(counts) == first["n"]
    assert first["pass@1"] == first["pass@k"]["1"]["value"] == pytest.approx(sum(counts) / first["n"])
    assert first["pass@k"]["2"]["value"] == pytest.approx(np.mean([(0, 1 / 2, 5 / 6, 1, 1)[c] for c in counts]))
    assert first["pass@1_greedy"] == pytest.approx(np.mean([solves["greedy", i, 0] for i in numbers]))
    text, lines = (whole / "summary.md").read_text(), list(csv.DictReader((whole / "summary.csv").open()))
    assert [(line["label"], line["task"]) for line in lines] == pairs
    for result, line in zip(results, lines, strict=True):
        assert float(line["pass@k.2.value"]) == result["pass@k"]["2"]["value"]
        low, high = result["ci95"]
        assert f"| {result['label']} | {result['pass@1']:.1%} ({low:.1%} to {high:.1%}) |" in text


@pytest.mark.parametrize("number", [1, 2])
def test_it_samples_and_rewards_what_train_does(models, tasks, tmp_path, number):
    # Same seeds, texts and dice of several turns; and `fails` loses half of its episodes before their first turn.
    task = tasks[number]
    assert run("--checkpoint", models[1], "--task", task, "--output", tmp_path) == 0
    (here,) = summary_of(tmp_path)["results"]
    config = sized(device="cpu", threads=1, eval_samples=4, max_tokens=5)
    policy, workers = load_policy(models[1], config, Processes(config)), Workers(1, 120.0)
    there = evaluate_while_training(policy, TorchEngine(policy), workers, load_task(task), config, config, 0)
    expected = there.to_json()
    assert here["ci95"] == pytest.approx(expected.pop("ci95"))
    assert {key: here[key] for key in expected} == expected
    failed = sum("" in row["roles"] for row in rows_of(tmp_path))
    assert (here["unscorable"], here["missing"], here["n"]) == (failed, 0, 4 * here["examples"])
    assert (0.2 < here["unscorable_frac"] < 0.8) if number == 2 else failed == 0


def test_what_is_done_is_not_done_again_unless_it_was_lost(whole, models, tasks, played):
    before, path = files_of(whole), whole / "completions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for lost, content in (((), lines), ((3, -1), [*lines[:3], *lines[4:-1], lines[-1][:40]])):  # one lost, one torn
        path.write_text("".join(content))
        assert run("--models", *models, "--tasks", *tasks[:2], "--output", whole) == 0
        assert {key[2] for key in played} == {json.loads(lines[number])["example"] for number in lost}
        assert files_of(whole) == before


def test_models_samples_and_examples_are_added_and_nothing_is_played_twice(models, tasks, tmp_path, played):
    flags = ["--task", tasks[0], "--no-greedy", "--output", str(tmp_path), *evaluated.FLAGS]
    for names, samples, examples in ((models[:1], 2, 2), (models, 3, 2), (models, 3, 3), (models, 2, 1)):
        own = ["--samples", str(samples), "--examples", str(examples)]
        assert run("--models", *names, flags=[*flags, *own]) == 0
    assert len({example for _, _, example, _ in played}) == 3
    assert len(played) == len({*played}) == 2 * 3 * 3  # of each model each sample of each example, once
    assert [result["n"] for result in summary_of(tmp_path)["results"]] == [2, 2]  # of what was asked for last


def test_rows_of_other_settings_or_weights_are_left_out_and_found_again(models, tasks, tmp_path, played, capsys):
    model, out = shutil.copytree(models[0], tmp_path / "model"), tmp_path / "out"
    command = ["--checkpoint", model, "--task", tasks[0], "--output", out]
    assert run(*command) == 0
    before, first = files_of(out), len(played)
    assert run(*command, "--temperature", "0.5") == 0
    new = played[first:]
    assert {mode for _, mode, *_ in new} == {"sampled"}  # a greedy completion has no temperature
    assert f"has {len(new)} of these completions of other settings, weights or data" in capsys.readouterr().err
    assert run(*command) == 0
    assert played[first:] == new and before.items() <= files_of(out).items()
    shutil.copytree(models[1], model, dirs_exist_ok=True)
    played.clear()
    assert run(*command) == 0
    assert len(played) == first and len({row["weights"] for row in rows_of(out)}) == 2


@pytest.fixture
def changing(models, tmp_path, monkeypatch, own_imports):
    """A task whose program is changed between two calls of evaluate.py, and that call."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # both versions are as long and as old

    def call(text, name, *flags):
        source = tmp_path / "changing_task.py"
        source.write_text(text)
        sys.modules.pop("changing_task", None)
        return run("--checkpoint", models[0], "--task", f"{source}:{name}", "--output", tmp_path / "out", *flags)

    return call


OTHER = evaluated.TASKS.replace("float(len(said) % 2 == 0), {", "float(len(said) % 2 != 0), {", 1)


def test_an_edited_reward_scores_the_completions_again(changing, tmp_path, played):
    out = tmp_path / "out"
    assert changing(evaluated.TASKS, "even", "--examples", "3") == 0
    said, figure = [said_by(row) for row in rows_of(out)], summary_of(out)["results"][0]["pass@1"]
    played.clear()
    assert changing(OTHER, "even", "--examples", "3") == 0
    assert not played and summary_of(out)["results"][0]["pass@1"] == pytest.approx(1 - figure)
    assert [said_by(row) for row in rows_of(out)] == 2 * said  # each row again, with its new reward


def test_rewards_can_be_computed_where_the_model_is_not(changing, models, tmp_path, played):
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert changing(evaluated.TASKS, "even", "--no-score") == changing(evaluated.TASKS, "even", "--output", whole) == 0
    (unscored,), count = summary_of(out)["results"], len(played)
    assert (unscored["unscored"], unscored["missing"]) == (count // 2, 0) and "pass@1" not in unscored
    shutil.move(models[0], tmp_path / "elsewhere")
    try:
        assert changing(evaluated.TASKS, "even") == 0
    finally:
        shutil.move(tmp_path / "elsewhere", models[0])
    assert len(played) == count and summary_of(out)["complete"]
    assert summary_of(out)["results"] == [{**summary_of(whole)["results"][0], "label": models[0]}]


def test_what_cannot_be_scored_is_not_solved_and_says_why(models, tasks, tmp_path, capsys):
    assert run("--checkpoint", models[0], "--task", tasks[0], "--even.broken", "--output", tmp_path) == 0
    counts = [len(said_by(row).split()) for row in rows_of(tmp_path) if row["mode"] == "sampled"]
    (result,), lost = summary_of(tmp_path)["results"], sum(count % 4 == 0 for count in counts)
    assert result["pass@1"] == pytest.approx(sum(count % 4 == 2 for count in counts) / len(counts))
    assert result["unscorable"] == lost > 0
    assert f"{lost} could not be scored, the first because: RuntimeError: cannot judge" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_at_any_moment_it_resumes_to_the_same_result(whole, models, tasks, tmp_path):
    watched, size = tmp_path / "completions.jsonl", (whole / "completions.jsonl").stat().st_size
    words = ["--models", *models, "--tasks", *tasks[:2], "--output", str(tmp_path)]
    command = [sys.executable, "-m", "minrl", "evaluate", *words, *evaluated.FLAGS]
    for share in (0.0, 0.5):
        written = lambda share=share: watched.exists() and watched.stat().st_size > share * size  # noqa: E731
        signal_when(Forked(command, cwd=ROOT), written)
        before = rows_of(tmp_path)
    assert run(*words, flags=[*evaluated.FLAGS, "--charts"]) == 0
    assert files_of(tmp_path) == files_of(whole)
    assert {path.name for path in tmp_path.glob("charts/*")} == {"pass_at_1.png", "pass_at_k.png"}
    assert rows_of(tmp_path)[: len(before)] == before  # nothing that was written was made again
