"""evaluate.py as a whole: models x tasks -> one folder, stopped and resumed, forced, checked, refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from minrl.config import EvaluationConfig, ModelConfig, RolloutConfig
from minrl.dataflow import UserError
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate import generate, score, stages
from minrl.evaluation import evaluate as evaluate_while_training
from minrl.models.distributed import Processes
from minrl.rewards.workers import Workers
from minrl.run.setup import load_policy
from minrl.tasks import load_task
from tests import evaluated
from tests.evaluated import files_of, rows_of, run, summary_of
from tests.forked import Forked

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
    drawn = summary_of(place / "whole")["charts"]
    assert drawn == [f"charts/{name}.png" for name in ("pass_at_1", "pass_at_k", "differences")]
    assert all((place / "whole" / path).stat().st_size for path in drawn)
    return place / "whole"


def test_the_figures_are_those_of_the_completions_in_every_file(whole):
    # By hand from the texts: solved is an even number of words; pass@2 of 4 samples with c solved ones is
    # 1 - C(4-c, 2) / 6: 0, 1/2, 5/6, 1, 1.
    rows, summary = rows_of(whole), summary_of(whole)
    pairs = [(model, task) for model in ("model0", "model1") for task in ("even", "talk")]
    assert [(r["label"], r["task"]) for r in summary["results"]] == pairs
    of_pair = [r for r in rows if r["task"] == "even" and r["model"].endswith("model0")]
    solves = {(r["mode"], r["index"], r["sample"]): len(r["completion"].split()) % 2 == 0 for r in of_pair}
    sampled = {key[1:]: solved for key, solved in solves.items() if key[0] == "sampled"}
    counts = [sum(sampled[index, n] for n in range(4)) for index in {index for index, _ in sampled}]
    assert 0 < sum(counts) < len(sampled) == 4 * len(counts)
    result = summary["results"][0]
    assert result["pass@1"] == result["pass@k"]["1"]["value"] == pytest.approx(sum(counts) / len(sampled))
    assert result["pass@k"]["2"]["value"] == pytest.approx(np.mean([(0, 1 / 2, 5 / 6, 1, 1)[c] for c in counts]))
    assert result["pass@k"]["4"]["value"] == pytest.approx(np.mean([c > 0 for c in counts]))
    assert result["pass@1_greedy"] == pytest.approx(np.mean([solves["greedy", i, 0] for i in range(len(counts))]))
    odd = [r for r in of_pair if r["mode"] == "sampled" and r["category"] == {"odd": "1"}]
    found = result["by_category"]["odd=1"]
    assert found["pass@1"] == pytest.approx(np.mean([sampled[r["index"], r["sample"]] for r in odd]))
    assert found["parts"]["words"] == pytest.approx(np.mean([len(r["completion"].split()) for r in odd]))
    assert (result["n"], result["missing"], result["unscorable"]) == (len(sampled), 0, 0)

    scores = pd.read_json(whole / "scores.jsonl", lines=True)
    assert len(scores) == len(rows) and scores.unscorable.isna().all()
    assert set(scores.columns) >= {"part/words", "part/short", "category/odd", "tokens", "finish_reason", "solved"}
    figures, text = pd.read_csv(whole / "summary.csv"), (whole / "summary.md").read_text()
    for result in summary["results"]:
        one = figures[(figures.model == result["model"]) & (figures.task == result["task"])]
        line = one[(one.figure == "pass@1") & one.category.isna()].iloc[0]
        low, high = result["ci95"]
        assert [line.value, line.low, line.high] == pytest.approx([result["pass@1"], low, high])
        assert f"| {result['label']} | {result['pass@1']:.1%} ({low:.1%} to {high:.1%}) |" in text


@pytest.mark.parametrize("name", ["talk", "fails"])
def test_it_samples_and_rewards_what_train_does(place, models, tmp_path, name):
    # Same seeds, texts and dice of several turns; and `fails` loses half of its episodes before their first turn.
    task = f"{place}/evaluated_tasks.py:{name}"
    assert run("--checkpoint", models[1], "--task", task, "--output", tmp_path) == 0
    (here,) = summary_of(tmp_path)["results"]
    config = ModelConfig(device="cpu", threads=1)
    policy, settings = load_policy(models[1], config, Processes(config)), EvaluationConfig(eval_samples=4)
    workers, sampling = Workers(1, 120.0), RolloutConfig(max_tokens=5)
    there = evaluate_while_training(policy, TorchEngine(policy), workers, load_task(task), settings, sampling, 0)
    expected = there.to_json()
    assert here["ci95"] == pytest.approx(expected.pop("ci95"))
    assert {key: here[key] for key in expected} == expected
    failed = sum("failure" in row for row in rows_of(tmp_path))
    assert (here["unscorable"], here["missing"], here["n"]) == (failed, 0, 4 * here["examples"])
    assert (0.2 < here["unscorable_frac"] < 0.8) if name == "fails" else failed == 0


def calls_of(monkeypatch, owner, name):
    """A list that grows by each call."""
    usual, made = getattr(owner, name), []
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: made.append(1) or usual(*args, **kwargs))
    return made


def test_what_is_done_is_not_done_again_unless_forced_or_damaged(whole, models, tasks, monkeypatch):
    command = ["--models", *models, "--tasks", *tasks, "--output", whole]
    before, path = files_of(whole), whole / "completions.jsonl"
    generated = calls_of(monkeypatch, generate.LocalSampler, "_play")
    scored = calls_of(monkeypatch, score, "score_rows")
    forcing = ([], [], []), (["--pass-at", "1", "3"], [], []), (["--force", "score"], [], [1]), (["--force"], [1], [1])
    for forced, generating, scoring in forcing:
        generated.clear(), scored.clear()
        assert run(*command, *forced) == 0
        assert (bool(generated), bool(scored)) == (bool(generating), bool(scoring))
        assert "--pass-at" in forced or files_of(whole) == before
    generated.clear()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:40] + "\n", *lines[5:]]))  # one damaged, one lost
    assert run(*command) == 0
    assert len(generated) == 1 and files_of(whole) == before  # the batch that both are of


def test_models_and_samples_are_added_and_nothing_is_paid_twice(models, tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    played, usual = [], generate.LocalSampler._play
    record = lambda self, *given: played.extend(rows := usual(self, *given)) or rows  # noqa: E731
    monkeypatch.setattr(generate.LocalSampler, "_play", record)
    monkeypatch.setattr(generate, "MIN_SAMPLES", 1)  # samples where neither the user nor the folder has a number

    def paid(*flags):
        played.clear()
        assert run("--task", tasks[0], "--no-greedy", *flags, flags=WITHOUT_SAMPLES) == 0
        return {(row["model"], row["sample"]) for row in played}

    assert paid("--checkpoint", models[0], "--samples", "2") == {(models[0], 0), (models[0], 1)}
    assert paid("--checkpoint", models[0], "--samples", "3") == {(models[0], 2)}
    assert paid("--models", *models) == {(models[1], sample) for sample in range(3)}  # as many as the folder has
    assert paid("--models", *models, "--samples", "2") == paid("--checkpoint", models[1]) == set()
    (folder,) = (tmp_path / "evaluations").iterdir()
    (result,) = summary_of(folder)["results"]  # of what was asked for last
    assert (result["label"], result["n"]) == ("model1", 3 * result["examples"])
    rows = rows_of(folder)
    assert paid("--checkpoint", models[0], "--pass-at", "2", "--force") == {(models[0], 0), (models[0], 1)}
    aside = (folder / "completions.1.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in aside] == rows  # they may have been paid for


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "0.5"], r"temperature 1\.0, now 0\.5: choose another --output, or .* --force generate"),
        (["--even.count", "30"], "even options count 12, now 30"),
        (["--reward-deadline-s", "7"], r"reward_deadline_s 30.0, now 7.0: .* --force score"),
    ],
)
def test_other_settings_are_refused_by_name_and_nothing_is_touched(whole, models, tasks, flags, message):
    before = files_of(whole)
    with pytest.raises(UserError, match=message) as refused:
        run("--models", *models, "--tasks", *tasks, "--output", whole, *flags)
    assert "\n" not in str(refused.value) and files_of(whole) == before


def test_other_weights_at_the_same_place_are_not_mixed_in(place, tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (model,) = evaluated.save_models(tmp_path)[:1]
    command = ["--checkpoint", model, "--task", tasks[0], "--examples", "2"]
    assert run(*command, "--output", "out") == run(*command) == 0
    for path in Path(model).glob("*.safetensors"):
        path.write_bytes((place / "model1" / path.name).read_bytes())
    with pytest.raises(UserError, match=r"other weights of .*model0"):
        run(*command, "--output", "out")
    assert run(*command, "--output", "out", "--force") == run(*command) == 0
    assert len(list(Path("evaluations").iterdir())) == 2  # a folder of their own


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


def test_what_the_reward_reads_is_part_of_a_score(changing, tmp_path):
    text, other = (
        evaluated.TASKS,
        evaluated.TASKS.replace("float(len(said) % 2 == 0), {", "float(len(said) % 2 != 0), {", 1),
    )
    assert changing(text, "even") == 0
    said = [row["completion"] for row in rows_of(tmp_path / "out")]
    figure = summary_of(tmp_path / "out")["results"][0]["pass@1"]
    with pytest.raises(UserError, match=r"even programs changing_task '.*', now .*--force score"):
        changing(other, "even")
    assert changing(other, "even", "--force", "score") == 0
    assert summary_of(tmp_path / "out")["results"][0]["pass@1"] == pytest.approx(1 - figure)
    assert [row["completion"] for row in rows_of(tmp_path / "out")] == said


def test_what_cannot_be_scored_says_why_and_is_not_solved(models, tasks, tmp_path, capsys):
    assert run("--checkpoint", models[0], "--task", tasks[0], "--even.broken", "--output", tmp_path) == 0
    rows = rows_of(tmp_path)
    for row in rows:
        count, (verdict,) = len(row["completion"].split()), row["scores"]
        expected = f"RuntimeError: cannot judge {count}" if count % 3 == 0 else None
        assert verdict["unscorable"] == expected and (verdict["reward"] is None) == (count % 3 == 0)
        assert verdict["solved"] == (count % 2 == 0 and count % 3 != 0)
    (result,) = summary_of(tmp_path)["results"]
    assert result["unscorable"] == sum(row["scores"][0]["unscorable"] is not None for row in rows) > 0
    note = f"{result['unscorable']} could not be scored, the first because: RuntimeError: cannot judge"
    assert note in capsys.readouterr().err and note in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
def test_killed_in_each_stage_it_resumes_to_the_same_result(whole, models, tasks, tmp_path):
    command = [sys.executable, str(ROOT / "evaluate.py"), "--models", *models, "--tasks", *tasks, *evaluated.FLAGS]
    command += ["--output", str(tmp_path / "out")]

    def start():
        return Forked(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=tmp_path, text=True)

    for name in ("completions.jsonl", "scores.jsonl"):
        program, watched = start(), tmp_path / "out" / name
        while program.poll() is None and not (watched.exists() and watched.stat().st_size):
            time.sleep(0.002)
        os.kill(program.pid, signal.SIGKILL)
        assert program.wait() in (-signal.SIGKILL, 0), program.stderr.read()
    last = start()
    _, errors = last.communicate()
    assert last.returncode == 0, errors
    assert files_of(tmp_path / "out") == files_of(whole)


def test_a_terminal_is_shown_tables_and_a_pipe_gets_json(whole, models, tasks, capsys, monkeypatch):
    command = ["--models", *models, "--tasks", *tasks, "--output", whole]
    assert run(*command) == 0
    shown, summary = capsys.readouterr(), summary_of(whole)
    assert json.loads(shown.out) == summary
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(*command) == 0
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80 and not any("|" in line or "{" in line for line in lines)


def test_a_folder_of_others_is_left_alone(models, tasks, place):
    command = ["--models", *models, "--tasks", *tasks, "--output"]
    busy = pytest.raises(UserError, match=r"another program \(process \d+ on .*\) is writing")
    with stages.locked(place / "locked"), busy:
        run(*command, place / "locked")
    with pytest.raises(UserError, match="and no evaluation"):
        run(*command, place)
