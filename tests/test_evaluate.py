"""evaluate.py as a whole: models x tasks -> one folder, stopped and resumed, forced, checked, refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from minrl.config import EvaluationConfig, ModelConfig, RolloutConfig
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate import generate, score, stages
from minrl.evaluation import evaluate as evaluate_while_training
from minrl.models.distributed import Processes
from minrl.rewards.workers import Workers
from minrl.run.setup import load_policy
from minrl.tasks import load_task
from minrl.types import UserError
from tests import evaluated
from tests.evaluated import files_of, rows_of, run, summary_of
from tests.forked import Forked

ROOT = Path(__file__).parent.parent
LOUD = [flag for flag in evaluated.FLAGS if flag != "--quiet"]
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
    assert run("--models", *models, "--tasks", *tasks, "--output", place / "whole") == 0
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


@pytest.mark.parametrize("name", ["even", "talk", "fails"])
def test_it_samples_and_rewards_what_train_does(place, models, tmp_path, name):
    # Same seeds and texts; dice of several turns; and `fails` loses half of its episodes before their first turn.
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


def test_where_nothing_could_be_scored_there_is_no_figure(place, models, tmp_path, capsys):
    command = ["--models", *models, "--task", f"{place}/evaluated_tasks.py:fails", "--fails.broken"]
    charts = [flag for flag in evaluated.FLAGS if flag != "--no-charts"]
    for _ in ("as it is scored", "from the folder"):
        assert run(*command, "--output", tmp_path / "out", flags=charts) == 1
        said, summary = capsys.readouterr().err, summary_of(tmp_path / "out")
        for result in summary["results"]:
            assert "pass@1" not in result and (result["n"], result["missing"]) == (4 * result["completions"] // 5, 0)
            all_of_it = f"{result['n']} of {result['n']} completions could not be scored"
            assert f"{result['label']} on fails: {all_of_it}, the first because: RuntimeError: no board\n" in said
    assert summary["differences"] == []
    assert "| model0 | - | - | - |" in (tmp_path / "out/summary.md").read_text()


class Stopped(BaseException):
    """The program ends here."""


def stop_after(monkeypatch, owner, name, calls):
    usual, made = getattr(owner, name), []

    def counting(*args, **kwargs):
        made.append(1)
        if len(made) > calls:
            raise Stopped
        return usual(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [(generate.LocalSampler, "_play", 9), (score, "score_rows", 5), (stages, "report", 0)],
)
def test_stopped_anywhere_it_resumes_to_the_same_result(
    whole, models, tasks, tmp_path, monkeypatch, owner, name, calls
):
    command = ["--models", *models, "--tasks", *tasks, "--output", tmp_path / "out"]
    with monkeypatch.context() as patch:
        stop_after(patch, owner, name, calls)
        with pytest.raises(Stopped):
            run(*command)
    path = tmp_path / "out/completions.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # and the last line was not written to its end
    assert not (tmp_path / "out/summary.json").exists()
    other_batches = [flag if flag != "16" else "3" for flag in evaluated.FLAGS]  # on which no completion depends
    assert run(*command, flags=other_batches) == 0
    assert files_of(tmp_path / "out") == files_of(whole)


def test_what_is_done_is_not_done_again_unless_forced_or_damaged(whole, models, tasks, monkeypatch):
    command = ["--models", *models, "--tasks", *tasks, "--output", whole]
    before, path = files_of(whole), whole / "completions.jsonl"
    generated = stop_after(monkeypatch, generate.LocalSampler, "_play", 10**9)
    scored = stop_after(monkeypatch, score, "score_rows", 10**9)
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


@pytest.mark.parametrize("output", [[], ["--output", "out"]], ids=["its own folder", "a named folder"])
def test_models_and_samples_are_added_and_nothing_is_paid_twice(models, tasks, tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    played, usual = [], generate.LocalSampler._play
    record = lambda self, *given: played.extend(rows := usual(self, *given)) or rows  # noqa: E731
    monkeypatch.setattr(generate.LocalSampler, "_play", record)
    monkeypatch.setattr(generate, "MIN_SAMPLES", 1)  # samples where neither the user nor the folder has a number

    def paid(*flags):
        played.clear()
        assert run("--task", tasks[0], "--no-greedy", *output, *flags, flags=WITHOUT_SAMPLES) == 0
        return {(row["model"], row["sample"]) for row in played}

    assert paid("--checkpoint", models[0], "--samples", "2") == {(models[0], 0), (models[0], 1)}
    assert paid("--checkpoint", models[0], "--samples", "3") == {(models[0], 2)}
    assert paid("--models", *models) == {(models[1], sample) for sample in range(3)}  # as many as the folder has
    assert paid("--models", *models, "--samples", "2") == paid("--checkpoint", models[1]) == set()
    (folder,) = (tmp_path / "out",) if output else (tmp_path / "evaluations").iterdir()
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
        (["--max-tokens", "6"], "max_tokens 5, now 6"),
        (["--even.count", "30"], "even options count 24, now 30"),
        (["--examples", "3"], "even examples"),
        (["--reward-deadline-s", "7"], r"reward_deadline_s 30.0, now 7.0: .* --force score"),
    ],
)
def test_other_settings_are_refused_by_name_and_nothing_is_touched(whole, models, tasks, flags, message):
    before = files_of(whole)
    kept = [flag for flag in evaluated.FLAGS if flags[0] != "--max-tokens" or flag not in ("--max-tokens", "5")]
    with pytest.raises(UserError, match=message) as refused:
        run("--models", *models, "--tasks", *tasks, "--output", whole, *flags, flags=kept)
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


@pytest.mark.parametrize("changed", ["programs changing_task", "references"])
def test_what_the_reward_reads_is_part_of_a_score(changing, tmp_path, changed):
    # Solved is a number of words with the rest that a file says, by 2: each change turns the figure round.
    (tmp_path / "answers.json").write_text('{"rest": 0}')
    text = evaluated.TASKS.replace("float(len(said) % 2 == 0), {", 'float(len(said) % 2 == example["rest"]), {', 1)
    read = "**__import__('json').loads((__import__('pathlib').Path(__file__).parent / 'answers.json').read_text())"
    text = text.replace('{"broken": options.broken}', '{"broken": options.broken, ' + read + "}")
    assert changing(text, "even") == 0
    said = [row["completion"] for row in rows_of(tmp_path / "out")]
    figure = summary_of(tmp_path / "out")["results"][0]["pass@1"]
    if changed == "references":
        (tmp_path / "answers.json").write_text('{"rest": 1}')
    else:
        text = text.replace("% 2 == example", "% 2 != example")
    with pytest.raises(UserError, match=f"even {changed} '.*', now .*--force score"):
        changing(text, "even")
    assert changing(text, "even", "--force", "score") == 0
    assert summary_of(tmp_path / "out")["results"][0]["pass@1"] == pytest.approx(1 - figure)
    assert [row["completion"] for row in rows_of(tmp_path / "out")] == said


def test_an_episode_of_several_turns_is_paid_as_it_is_played(changing, tmp_path, capsys):
    assert changing(evaluated.TASKS, "talk") == 0
    before = files_of(tmp_path / "out")
    changed = evaluated.TASKS.replace('"numbers 2"', '"numbers 3"')
    for forced in ([], ["--force", "score"]):
        with pytest.raises(UserError, match=r"talk programs changing_task .*--force generate"):
            changing(changed, "talk", *forced)
    assert changing(evaluated.TASKS, "talk", "--force", "score") == 0 and files_of(tmp_path / "out") == before
    assert "talk: episodes of several turns keep the rewards" in capsys.readouterr().err
    assert changing(changed, "talk", "--force") == 0
    assert {row["turns"][1]["prompt"] for row in rows_of(tmp_path / "out")} == {"numbers 3"}


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


def test_prompts_that_do_not_fit_are_unscorable_counted_and_reported(models, tasks, tmp_path, capsys):
    command = ["--models", *models, "--task", tasks[0], "--even.long-every", "3", "--output", tmp_path]
    assert run(*command, flags=LOUD) == 0
    said, rows = capsys.readouterr().err, rows_of(tmp_path)
    full = {row["index"] for row in rows if row["model"] == models[0] and "no room" in row.get("failure", "")}
    every = {row["index"] for row in rows}
    assert 0 < len(full) < len(every)
    assert said.count(f"{len(full)} of {len(every)} prompts of even fill the 1024 tokens that") == 2
    for result in summary_of(tmp_path)["results"]:
        assert (result["examples"], result["unscorable"]) == (len(every), 5 * len(full))  # four samples and a greedy
    for dry in ([], ["--dry-run"]):
        with pytest.raises(UserError, match="no prompt of even leaves room for a completion in the 1024 tokens"):
            run(*command, "--even.long-every", "1", "--output", tmp_path / "none", *dry, flags=LOUD)


def test_a_dry_run_checks_and_generates_nothing(models, tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate.LocalSampler, "_play", None)
    command = ["--models", *models, "--tasks", *tasks, "--output", tmp_path / "out", "--dry-run"]
    assert run(*command, flags=LOUD) == 0
    assert capsys.readouterr().err.count(" to generate") == 5 and not (tmp_path / "out").exists()
    for wrong, message in (
        (["--models", tmp_path / "nothing"], "cannot load model"),
        (["--models", models[0], models[0]], "more than once"),
        (["--models", models[0], "--tasks", "evn"], "no task 'evn'"),
        (["--models", "openai:x@ftp://y"], "must begin with http"),
    ):
        with pytest.raises(UserError, match=message):
            run(*wrong, "--output", tmp_path / "out", "--dry-run")


def test_the_short_form_at_temperature_0_is_one_greedy_result(models, tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["--checkpoint", models[0], "--task", tasks[0], "--temperature", "0", "--output", "result.json"]
    assert run(*command, flags=WITHOUT_SAMPLES) == 0
    result = json.loads(Path("result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert result["model"] == models[0] and result["task"] == "even" and result["options"]["count"] == 24
    assert result["n"] == result["examples"] and result["pass@1"] == result["pass@1_greedy"]
    assert {row["mode"] for row in rows_of(next(Path("evaluations").iterdir()))} == {"greedy"}


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
    for result in summary["results"]:
        low, high = result["ci95"]
        figures = f"{result['pass@1']:.1%} ({low:.1%} to {high:.1%}) {result['pass@k']['4']['value']:.1%}"
        assert any(" ".join(line.split()).startswith(f"{result['label']} {figures}") for line in lines)


def test_a_folder_of_others_is_left_alone_and_other_packages_are_reported(whole, models, tasks, place, capsys):
    command = ["--models", *models, "--tasks", *tasks, "--output"]
    busy = pytest.raises(UserError, match=r"another program \(process \d+ on .*\) is writing")
    with stages.locked(place / "locked"), busy:
        run(*command, place / "locked")
    with pytest.raises(UserError, match="and no evaluation"):
        run(*command, place)
    folder = shutil.copytree(whole, place / "older")
    config = json.loads((folder / "config.json").read_text())
    config["packages"]["transformers"] = "4.0"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "completions.jsonl").write_text((folder / "completions.jsonl").read_text()[:-9])
    assert run(*command, folder, flags=LOUD) == 0
    assert "transformers 4.0 (now " in capsys.readouterr().err and files_of(folder) == files_of(whole)
