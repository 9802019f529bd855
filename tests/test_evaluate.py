"""evaluate.py as a whole: models x tasks -> one folder, stopped, resumed, extended, scored again."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from minrl.dataflow import UserError
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate import play
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluation import evaluate as evaluate_while_training
from minrl.models.distributed import Processes
from minrl.rewards.workers import Workers
from minrl.run.setup import load_policy
from minrl.tasks import load_task
from minrl.utils.cli import parse
from tests import evaluated
from tests.evaluated import files_of, rows_of, run, summary_of
from tests.forked import Forked
from tests.parsed import sized

ROOT = Path(__file__).parent.parent
WITHOUT_SAMPLES = [flag for flag in evaluated.FLAGS if flag not in ("--samples", "4")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "evaluated_tasks.py").write_text(evaluated.TASKS)
    evaluated.save_models(folder)
    return folder


@pytest.fixture(scope="module")
def models(place):
    return [str(place / "model0"), str(place / "model1")]


@pytest.fixture(scope="module")
def tasks(place):
    return [f"{place}/evaluated_tasks.py:{name}" for name in ("even", "talk")]


@pytest.fixture(scope="module")
def whole(place, models, tasks):
    """An evaluation that nothing interrupted."""
    charts = [flag for flag in evaluated.FLAGS if flag != "--no-charts"]
    assert run("--models", *models, "--tasks", *tasks, "--output", place / "whole", flags=charts) == 0
    drawn = {path.name: path.stat().st_size for path in (place / "whole/charts").iterdir()}
    assert drawn.keys() == {"pass_at_1.png", "pass_at_k.png"} and all(drawn.values())
    return place / "whole"


@pytest.fixture
def played(monkeypatch):
    """The (task, mode, sample) of each row that a local model plays from now on."""
    found, usual = [], play.LocalPlayer._play

    def recorded(*given):
        rows = usual(*given)
        found.extend((row["model"], row["task"], row["mode"], row["example"], row["sample"]) for row in rows)
        return rows

    monkeypatch.setattr(play.LocalPlayer, "_play", recorded)
    return found


def said_by(row):
    return row["roles"]["policy"]["completion"]


def test_the_figures_are_those_of_the_completions_in_every_file(whole):
    # By hand from the texts: solved is an even number of words; pass@2 of 4 samples with c solved ones is
    # 1 - C(4-c, 2) / 6: 0, 1/2, 5/6, 1, 1.
    rows, summary = rows_of(whole), summary_of(whole)
    pairs = [(model, task) for model in ("model0", "model1") for task in ("even", "talk")]
    assert [(r["label"], r["task"]) for r in summary["results"]] == pairs
    of_pair = [r for r in rows if r["task"] == "even" and r["model"].endswith("model0")]
    solves = {(r["mode"], r["number"], r["sample"]): len(said_by(r).split()) % 2 == 0 for r in of_pair}
    sampled = {key[1:]: solved for key, solved in solves.items() if key[0] == "sampled"}
    counts = [sum(sampled[number, n] for n in range(4)) for number in {number for number, _ in sampled}]
    assert 0 < sum(counts) < len(sampled) == 4 * len(counts)
    result = summary["results"][0]
    assert result["pass@1"] == result["pass@k"]["1"]["value"] == pytest.approx(sum(counts) / len(sampled))
    assert result["pass@k"]["2"]["value"] == pytest.approx(np.mean([(0, 1 / 2, 5 / 6, 1, 1)[c] for c in counts]))
    assert result["pass@k"]["4"]["value"] == pytest.approx(np.mean([c > 0 for c in counts]))
    assert result["pass@1_greedy"] == pytest.approx(np.mean([solves["greedy", i, 0] for i in range(len(counts))]))
    odd = [r for r in of_pair if r["mode"] == "sampled" and r["category"] == {"odd": "1"}]
    found = result["by_category"]["odd=1"]
    assert found["pass@1"] == pytest.approx(np.mean([sampled[r["number"], r["sample"]] for r in odd]))
    assert found["parts"]["words"] == pytest.approx(np.mean([len(said_by(r).split()) for r in odd]))
    assert (result["n"], result["missing"], result["unscorable"]) == (len(sampled), 0, 0)

    text, lines = (whole / "summary.md").read_text(), list(csv.DictReader((whole / "summary.csv").open()))
    assert [(line["label"], line["task"]) for line in lines] == pairs
    for result, line in zip(summary["results"], lines, strict=True):
        assert float(line["pass@k.2.value"]) == result["pass@k"]["2"]["value"]
        low, high = result["ci95"]
        assert f"| {result['label']} | {result['pass@1']:.1%} ({low:.1%} to {high:.1%}) |" in text
    means = [result["parts"]["words"] for result in summary["results"] if result["task"] == "even"]
    assert f"| words | {means[0]:.3f} | {means[1]:.3f} |" in text  # the models side by side


@pytest.mark.parametrize("name", ["talk", "fails"])
def test_it_samples_and_rewards_what_train_does(place, models, tmp_path, name):
    # Same seeds, texts and dice of several turns; and `fails` loses half of its episodes before their first turn.
    task = f"{place}/evaluated_tasks.py:{name}"
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
    assert (0.2 < here["unscorable_frac"] < 0.8) if name == "fails" else failed == 0


def test_what_is_done_is_not_done_again_unless_it_was_lost(whole, models, tasks, played):
    command = ["--models", *models, "--tasks", *tasks, "--output", whole]
    before, path = files_of(whole), whole / "completions.jsonl"
    content = path.read_bytes()
    assert run(*command) == 0
    assert not played and path.read_bytes() == content and files_of(whole) == before
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], *lines[4:-1], lines[-1][:40]]))  # one lost, one torn
    assert run(*command) == 0
    lost = [json.loads(line)["example"] for line in (lines[3], lines[-1])]
    assert {key[3] for key in played} == set(lost)
    assert files_of(whole) == before


def test_models_samples_and_examples_are_added_and_nothing_is_played_twice(
    models, tasks, tmp_path, monkeypatch, played
):
    monkeypatch.chdir(tmp_path)

    def paid(*flags):
        played.clear()
        assert run("--task", tasks[0], "--no-greedy", *flags, flags=WITHOUT_SAMPLES) == 0
        return {(model, example, sample) for model, _, _, example, sample in played}

    first = paid("--checkpoint", models[0], "--samples", "2", "--examples", "2")
    (a, b) = dict.fromkeys(example for _, example, _ in sorted(first, key=lambda one: one[2]))
    assert first == {(models[0], example, sample) for example in (a, b) for sample in (0, 1)}
    assert paid("--checkpoint", models[0], "--samples", "3", "--examples", "2") == {
        (models[0], a, 2),
        (models[0], b, 2),
    }
    third = paid("--checkpoint", models[0], "--samples", "3", "--examples", "3")
    (c,) = {example for _, example, _ in third}
    assert third == {(models[0], c, sample) for sample in range(3)} and c not in (a, b)
    added = paid("--models", *models, "--samples", "3", "--examples", "3")
    assert added == {(models[1], example, sample) for example in (a, b, c) for sample in range(3)}
    assert paid("--models", *models, "--samples", "2", "--examples", "1") == set()
    (folder,) = (tmp_path / "evaluations").iterdir()
    assert folder.name == "even"
    assert [result["n"] for result in summary_of(folder)["results"]] == [2, 2]  # of what was asked for last


def test_rows_of_other_settings_are_left_out_and_found_again(models, tasks, tmp_path, played, capsys):
    command = ["--checkpoint", models[0], "--task", tasks[0], "--output", tmp_path]
    assert run(*command) == 0
    before, everything = files_of(tmp_path), len(played)
    for flags, modes in ((["--temperature", "0.5"], {"sampled"}), (["--seed", "1"], {"sampled", "greedy"})):
        played.clear()
        assert run(*command, *flags) == 0
        assert {key[2] for key in played} == modes  # a greedy completion has no temperature
        assert f"has {len(played)} of these completions of other settings, weights or data" in capsys.readouterr().err
    played.clear()
    assert run(*command) == 0
    after = files_of(tmp_path)
    assert not played and {key: after[key] for key in before} == before and len(after) > everything


def test_other_weights_at_the_same_place_are_not_mixed_in(place, tasks, tmp_path, played):
    (model,) = evaluated.save_models(tmp_path)[:1]
    command = ["--checkpoint", model, "--task", tasks[0], "--output", tmp_path / "out"]
    assert run(*command) == 0
    first = len(played)
    for path in Path(model).glob("*.safetensors"):
        path.write_bytes((place / "model1" / path.name).read_bytes())
    assert run(*command) == 0
    assert len(played) == 2 * first
    assert len({row["weights"] for row in rows_of(tmp_path / "out")}) == 2


@pytest.fixture
def changing(models, tmp_path, monkeypatch):
    """A task whose program is changed between two calls of evaluate.py, and that call."""
    source = tmp_path / "changing_task.py"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # both versions are as long and as old
    monkeypatch.syspath_prepend(tmp_path)

    def call(text, name, *flags):
        source.write_text(text)
        sys.modules.pop("changing_task", None)
        return run("--checkpoint", models[0], "--task", f"{source}:{name}", "--output", tmp_path / "out", *flags)

    yield call
    sys.modules.pop("changing_task", None)


OTHER = evaluated.TASKS.replace("float(len(said) % 2 == 0), {", "float(len(said) % 2 != 0), {", 1)


def test_an_edited_reward_scores_the_completions_again(changing, tmp_path, played):
    out = tmp_path / "out"
    assert changing(evaluated.TASKS, "even", "--examples", "3") == 0
    said = [said_by(row) for row in rows_of(out)]
    figure = summary_of(out)["results"][0]["pass@1"]
    played.clear()
    assert changing(OTHER, "even", "--examples", "3") == 0
    assert not played and summary_of(out)["results"][0]["pass@1"] == pytest.approx(1 - figure)
    assert [said_by(row) for row in rows_of(out)] == 2 * said  # each row again, with its new reward
    assert changing(OTHER, "even", "--examples", "4") == 0  # and what was scored again is extended
    assert len({key[3] for key in played}) == 1
    assert changing(OTHER, "even", "--examples", "4", "--reward-deadline-s", "7") == 0
    assert len({key[3] for key in played}) == 1
    played.clear()
    assert changing(evaluated.TASKS, "talk", "--examples", "2") == changing(OTHER, "talk", "--examples", "2") == 0
    assert played[: len(played) // 2] == played[len(played) // 2 :] != []  # several turns are played again


ABSENT = "def absent():\n    from minrl.dataflow import UserError\n    raise UserError('no cargo')\n\n\ndef reward("
LACKS_A_TOOL = evaluated.TASKS.replace("def reward(", ABSENT).replace("not options.broken}", 'True, "notes": absent}')


def test_rewards_can_be_computed_where_the_model_is_not(changing, models, tmp_path, played, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no cargo"):
        changing(LACKS_A_TOOL, "even")
    assert changing(LACKS_A_TOOL, "even", "--no-score") == 0
    count = len(played)
    (result,) = summary_of(out)["results"]
    assert count and (result["unscored"], result["missing"], summary_of(out)["complete"]) == (count, 0, False)
    assert {row["roles"]["policy"]["reward"] for row in rows_of(out)} == {None} and "pass@1" not in result
    with pytest.raises(UserError, match="talk is played over several turns, of which its rewards are a part"):
        changing(evaluated.TASKS, "talk", "--no-score")
    shutil.move(models[0], tmp_path / "elsewhere")
    try:
        assert changing(evaluated.TASKS, "even") == 0
    finally:
        shutil.move(tmp_path / "elsewhere", models[0])
    assert len(played) == count and summary_of(out)["complete"]
    figures = summary_of(out)["results"][0]
    assert changing(evaluated.TASKS, "even", "--output", tmp_path / "at_once") == 0
    at_once = summary_of(tmp_path / "at_once")["results"][0]
    assert figures == {**at_once, "label": models[0]}  # the name that it had when it was not there


def test_what_cannot_be_scored_says_why_and_is_not_solved(models, tasks, tmp_path, capsys):
    assert run("--checkpoint", models[0], "--task", tasks[0], "--even.broken", "--output", tmp_path) == 0
    rows = rows_of(tmp_path)
    for row in rows:
        count, verdict = len(said_by(row).split()), row["roles"]["policy"]
        expected = f"RuntimeError: cannot judge {count}" if count % 4 == 0 else None
        assert verdict["unscorable"] == expected and (verdict["reward"] is None) == (count % 4 == 0)
        assert verdict["solved"] == (count % 2 == 0 and count % 4 != 0)
    (result,) = summary_of(tmp_path)["results"]
    assert result["unscorable"] == sum(row["roles"]["policy"]["unscorable"] is not None for row in rows) > 0
    note = f"{result['unscorable']} could not be scored, the first because: RuntimeError: cannot judge"
    assert note in capsys.readouterr().err and note in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
def test_killed_at_any_moment_it_resumes_to_the_same_result(whole, models, tasks, tmp_path):
    command = [sys.executable, str(ROOT / "evaluate.py"), "--models", *models, "--tasks", *tasks, *evaluated.FLAGS]
    command += ["--output", str(tmp_path / "out")]

    def start():
        return Forked(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=tmp_path, text=True)

    watched, size = tmp_path / "out/completions.jsonl", (whole / "completions.jsonl").stat().st_size
    for share in (0.0, 0.5):
        program = start()
        while program.poll() is None and not (watched.exists() and watched.stat().st_size > share * size):
            time.sleep(0.002)
        os.kill(program.pid, signal.SIGKILL)
        assert program.wait() in (-signal.SIGKILL, 0), program.stderr.read()
        before = rows_of(tmp_path / "out")
    last = start()
    _, errors = last.communicate()
    assert last.returncode == 0, errors
    assert files_of(tmp_path / "out") == files_of(whole)
    assert rows_of(tmp_path / "out")[: len(before)] == before  # nothing that was written was made again


def test_a_config_file_holds_what_the_flags_do(tmp_path):
    file = tmp_path / "evaluation.yaml"
    file.write_text("checkpoint: mine\ntask: hanoi\ntasks: {hanoi: {max_disks: 3}}\nstop_strings: </answer>\n")
    command = parse(EvaluateConfig, ["--config", str(file), "--samples", "3", "--task", "countdown", "--task", "hanoi"])
    given = EvaluateConfig(models=("mine",), tasks=("countdown", "hanoi"), stop_strings=("</answer>",), samples=3)
    assert (command.config, command.options["hanoi"].max_disks) == (given, 3)
