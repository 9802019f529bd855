"""evaluate.py as a whole: models x tasks -> one folder, stopped and resumed, forced, checked, refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minrl.config import EvaluationConfig, ModelConfig, RolloutConfig
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate import generate, local, plan, report, score
from minrl.evaluate.folder import locked
from minrl.evaluate.local import check_prompts
from minrl.evaluate.models import NamedModel
from minrl.evaluate.plan import PlannedTask
from minrl.evaluation import evaluate as evaluate_while_training
from minrl.models.processes import Processes
from minrl.rewards.workers import Workers
from minrl.run.setup import load_policy
from minrl.tasks import load_task
from minrl.types import UserError
from tests import evaluated
from tests.evaluated import files_of, rows_of, run, summary_of
from tests.forked import Forked

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "evaluated_tasks.py").write_text(evaluated.TASKS)
    evaluated.save_models(folder)
    return folder


@pytest.fixture
def models(place):
    return [str(place / "model0"), str(place / "model1")]


@pytest.fixture
def tasks(place):
    return [f"{place}/evaluated_tasks.py:{name}" for name in ("even", "talk")]


@pytest.fixture(scope="module")
def whole(place):
    """An evaluation that nothing interrupted."""
    tasks = [f"{place}/evaluated_tasks.py:{name}" for name in ("even", "talk")]
    assert run("--models", place / "model0", place / "model1", "--tasks", *tasks, "--output", place / "whole") == 0
    return place / "whole"


def test_one_folder_has_everything(whole):
    rows, summary = rows_of(whole), summary_of(whole)
    examples = {task: len({r["index"] for r in rows if r["task"] == task}) for task in ("even", "talk")}
    assert len(rows) == 2 * 5 * sum(examples.values())  # two models, four samples and a greedy one
    assert [(r["label"], r["task"]) for r in summary["results"]] == [
        (model, task) for model in ("model0", "model1") for task in ("even", "talk")
    ]
    table = parquet.read_table(whole / "scores.parquet").to_pandas()
    assert len(table) == len(rows) and table.unscorable.isna().all()
    assert set(table.columns) >= {"part/words", "part/short", "category/odd", "tokens", "finish_reason", "solved"}
    assert "| model1 | " in (whole / "summary.md").read_text()


@pytest.mark.slow
def test_pictures_are_drawn_where_they_are_missing(whole, models, tasks, tmp_path):
    drawn = shutil.copytree(whole, tmp_path / "drawn")
    command = ["--models", *models, "--tasks", *tasks, "--output", drawn]
    flags = [flag for flag in evaluated.FLAGS if flag != "--no-charts"]
    assert run(*command, flags=flags) == 0
    pictures = {f"charts/{path.stem}" for path in (drawn / "charts").glob("*.png")}
    assert {"charts/pass_at_1", "charts/pass_at_k", "charts/differences", "charts/parts-even"} <= pictures
    assert "charts/categories-talk" in pictures
    events = EventAccumulator(str(drawn / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["images"]) == pictures
    first = (drawn / "charts/pass_at_1.png").read_bytes()
    shown = Image.open(BytesIO(events.Images("charts/pass_at_1")[0].encoded_image_string))
    assert shown.tobytes() == Image.open(BytesIO(first)).convert("RGB").tobytes()
    (drawn / "charts/pass_at_1.png").unlink()
    assert run(*command, flags=flags) == 0
    assert (drawn / "charts/pass_at_1.png").read_bytes() == first


def test_the_figures_are_those_of_the_completions(whole):
    # By hand from the texts: solved is an even number of words; pass@2 of 4 samples with c solved ones is
    # 1 - C(4-c, 2) / 6: 0, 1/2, 5/6, 1, 1.
    of_pair = [r for r in rows_of(whole) if r["task"] == "even" and r["model"].endswith("model0")]
    sampled = [r for r in of_pair if r["mode"] == "sampled"]
    solved = {}
    for row in sampled:
        solved.setdefault(row["index"], []).append(len(row["completion"].split()) % 2 == 0)
    counts = [sum(of_example) for of_example in solved.values()]
    assert all(len(of_example) == 4 for of_example in solved.values()) and 0 < sum(counts) < len(sampled)
    result = summary_of(whole)["results"][0]
    assert result["pass@1"] == result["pass@k"]["1"]["value"] == pytest.approx(sum(counts) / len(sampled))
    assert result["pass@k"]["2"]["value"] == pytest.approx(np.mean([(0, 1 / 2, 5 / 6, 1, 1)[c] for c in counts]))
    assert result["pass@k"]["4"]["value"] == pytest.approx(np.mean([c > 0 for c in counts]))
    greedy = [len(r["completion"].split()) % 2 == 0 for r in of_pair if r["mode"] == "greedy"]
    assert result["pass@1_greedy"] == pytest.approx(np.mean(greedy))
    assert result["parts"]["words"] == pytest.approx(np.mean([len(r["completion"].split()) for r in sampled]))
    odd = [len(r["completion"].split()) % 2 == 0 for r in sampled if r["category"] == {"odd": "1"}]
    assert result["by_category"]["odd=1"]["pass@1"] == result["categories"]["odd=1"] == pytest.approx(np.mean(odd))
    assert (result["n"], result["missing"], result["unscorable"]) == (len(sampled), 0, 0)


@pytest.mark.parametrize("name", ["even", "talk"])
def test_it_samples_and_rewards_what_train_does(whole, place, name):
    # Same seeds, same texts, and a multi-turn episode with dice gets on replay what it was paid when it was played.
    config = ModelConfig(device="cpu", threads=1)
    policy = load_policy(str(place / "model1"), config, Processes(config))
    task, workers = load_task(f"{place}/evaluated_tasks.py:{name}"), Workers(1, 120.0)
    settings = EvaluationConfig(eval_samples=4)
    sampling = RolloutConfig(max_tokens=5)
    there = evaluate_while_training(policy, TorchEngine(policy), workers, task, settings, sampling, 0)
    here = next(r for r in summary_of(whole)["results"] if (r["label"], r["task"]) == ("model1", name))
    expected = there.to_json()
    assert {key: here[key] for key in expected if key != "ci95"} == {
        key: value for key, value in expected.items() if key != "ci95"
    }
    assert here["ci95"] == pytest.approx(expected["ci95"])


def test_episodes_that_fail_before_their_first_turn_count_as_they_do_while_training(place, tmp_path):
    command = ["--checkpoint", place / "model1", "--task", f"{place}/evaluated_tasks.py:fails"]
    assert run(*command, "--output", tmp_path / "out") == 0
    (here,) = summary_of(tmp_path / "out")["results"]
    config = ModelConfig(device="cpu", threads=1)
    policy, task = load_policy(str(place / "model1"), config, Processes(config)), load_task(str(command[-1]))
    settings, sampling = EvaluationConfig(eval_samples=4), RolloutConfig(max_tokens=5)
    there = evaluate_while_training(policy, TorchEngine(policy), Workers(1, 120.0), task, settings, sampling, 0)
    expected = there.to_json()
    assert {key: here[key] for key in expected if key != "ci95"} == {k: v for k, v in expected.items() if k != "ci95"}
    assert here["n"] == 4 * here["examples"] and 0.2 < here["unscorable_frac"] < 0.8
    rows = rows_of(tmp_path / "out")
    assert here["unscorable"] == sum("failure" in row for row in rows) and here["missing"] == 0
    assert set(here["pass@k"]) == {"1", "2", "4"}
    assert {figure["examples"] for figure in here["pass@k"].values()} == {here["examples"]}
    assert here["pass@k"]["1"]["value"] == here["pass@1"]


def test_where_nothing_could_be_scored_there_is_no_figure(place, models, tmp_path, capsys):
    command = ["--models", *models, "--task", f"{place}/evaluated_tasks.py:fails", "--fails.broken"]
    charts = [flag for flag in evaluated.FLAGS if flag != "--no-charts"]
    for _ in ("as it is scored", "from the folder"):
        assert run(*command, "--output", tmp_path / "out", flags=charts) == 1
        said, summary = capsys.readouterr().err, summary_of(tmp_path / "out")
        for result in summary["results"]:
            all_of_it = f"{result['n']} of {result['n']} completions could not be scored"
            why = "the first because: RuntimeError: no board\n"
            assert f"error: {result['label']} on fails: {all_of_it}, {why}" in said
    for result in summary["results"]:
        assert "pass@1" not in result and (result["n"], result["missing"]) == (4 * result["completions"] // 5, 0)
        assert result["unscorable"] == result["completions"]
    assert summary["differences"] == []
    (first,) = (line for line in (tmp_path / "out/summary.md").read_text().splitlines() if "| model0 " in line)
    assert first.endswith(f" - | 0.0% | {summary['results'][0]['unscorable']} | 0 |")
    assert f",unscorable,{summary['results'][0]['unscorable']}," in (tmp_path / "out/summary.csv").read_text()


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
    [(local.LocalSampler, "_play", 3), (local.LocalSampler, "_play", 9), (score, "score_rows", 5), (report, "tidy", 0)],
)
def test_stopped_anywhere_it_goes_on_to_the_same_result(
    whole, models, tasks, tmp_path, monkeypatch, owner, name, calls
):
    command = ["--models", *models, "--tasks", *tasks, "--output", tmp_path / "out"]
    with monkeypatch.context() as patch:
        stop_after(patch, owner, name, calls)
        with pytest.raises(Stopped):
            run(*command)
    assert not (tmp_path / "out/summary.json").exists()
    for name in ("completions.jsonl", "scores.partial.jsonl"):
        if (path := tmp_path / "out" / name).exists():
            path.write_bytes(path.read_bytes()[:-9])  # and the last line was not written to its end
    assert run(*command) == 0
    assert files_of(tmp_path / "out") == files_of(whole)


def test_what_is_done_is_not_done_again_unless_forced(whole, models, tasks, monkeypatch):
    command = ["--models", *models, "--tasks", *tasks, "--output", whole]
    before = files_of(whole)
    stages = {"generate": (local.LocalSampler, "_play"), "score": (score, "score_rows"), "report": (report, "tidy")}
    made = {stage: stop_after(monkeypatch, *where, 10**9) for stage, where in stages.items()}
    for forced, again in (
        ([], []),
        (["--force", "report"], ["report"]),
        (["--pass-at", "1", "3"], ["report"]),
        ([], ["report"]),
        (["--force", "score"], ["score", "report"]),
        (["--force"], ["generate", "score", "report"]),
    ):
        for calls in made.values():
            calls.clear()
        assert run(*command, *forced) == 0
        assert [stage for stage, calls in made.items() if calls] == again
        assert "--pass-at" in forced or files_of(whole) == before
    (whole / "summary.csv").unlink()
    assert run(*command) == 0 and files_of(whole) == before


def test_a_damaged_table_or_completion_is_made_again(whole, models, tasks, monkeypatch):
    before = files_of(whole)
    table, completions = whole / "scores.parquet", whole / "completions.jsonl"
    table.write_bytes(table.read_bytes()[:-100])
    lines = completions.read_text().splitlines(keepends=True)
    completions.write_text("".join([*lines[:3], lines[3][:40] + "\n", *lines[5:]]))  # one damaged, one lost
    generated = stop_after(monkeypatch, local.LocalSampler, "_play", 10**9)
    assert run("--models", *models, "--tasks", *tasks, "--output", whole) == 0
    assert len(generated) == 1  # the batch that both are of
    assert files_of(whole) == before


def test_a_further_model_is_added_and_the_others_are_kept(whole, models, tasks, tmp_path, monkeypatch):
    command = ["--tasks", *tasks, "--output", tmp_path]
    assert run("--checkpoint", models[0], *command) == 0
    generated = stop_after(monkeypatch, local, "load_policy", 1)
    assert run("--models", *models, *command) == 0
    assert len(generated) == 1
    assert files_of(tmp_path) == files_of(whole)
    with pytest.raises(UserError, match=r"model .*model0, which is not named now: choose another --output"):
        run("--checkpoint", models[1], *command)


def test_samples_that_are_there_are_never_thrown_away(models, tasks, tmp_path, monkeypatch):
    # The number of samples that --pass-at decided is the folder's: 8 for a further model, for whom nobody says it.
    flags = [flag for flag in evaluated.FLAGS if flag not in ("--samples", "4")]
    shared = ["--task", tasks[0], "--output", tmp_path / "out", "--no-greedy"]
    monkeypatch.setattr(plan, "MIN_SAMPLES", 1)

    def numbers():
        found = {}
        for row in rows_of(tmp_path / "out"):
            found.setdefault(row["model"], set()).add(row["sample"])
        return [len(found.get(model, ())) for model in models]

    assert run("--checkpoint", models[0], *shared, "--pass-at", "8", flags=flags) == 0
    paid = rows_of(tmp_path / "out")
    assert numbers() == [8, 0]
    assert run("--models", *models, *shared, flags=flags) == 0
    assert numbers() == [8, 8] and rows_of(tmp_path / "out")[: len(paid)] == paid
    lost = (tmp_path / "out/completions.jsonl").read_text().splitlines(keepends=True)
    lost.pop(next(i for i, r in enumerate(rows_of(tmp_path / "out")) if r["model"] == models[1] and r["sample"] == 0))
    (tmp_path / "out/completions.jsonl").write_text("".join(lost))
    assert run("--models", *models, *shared, "--samples", "2", flags=flags) == 0  # fewer are asked for: the first ones
    result = summary_of(tmp_path / "out")["results"][0]
    assert result["n"] == 2 * result["examples"] and numbers() == [8, 8]
    solved = [len(r["completion"].split()) % 2 == 0 for r in paid if r["sample"] < 2]
    assert result["pass@1"] == pytest.approx(np.mean(solved))
    assert run("--models", *models, *shared, flags=flags) == 0
    still = [row for row in rows_of(tmp_path / "out") if row["model"] == models[0]]
    assert sorted(still, key=lambda row: (row["index"], row["sample"])) == paid
    assert [r["n"] for r in summary_of(tmp_path / "out")["results"]] == [len(paid), len(paid)]
    kept = rows_of(tmp_path / "out")
    assert run("--checkpoint", models[1], *shared, "--force", flags=flags) == 0
    aside = (tmp_path / "out/completions.1.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in aside] == kept and numbers() == [0, 1]


def test_what_changed_beside_the_settings_is_said(whole, models, tasks, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "older")
    config = json.loads((folder / "config.json").read_text())
    config["packages"]["transformers"] = "4.0"
    (folder / "config.json").write_text(json.dumps(config))
    lines = (folder / "completions.jsonl").read_text().splitlines(keepends=True)
    (folder / "completions.jsonl").write_text("".join(lines[:-1]))
    loud = [flag for flag in evaluated.FLAGS if flag != "--quiet"]
    assert run("--models", *models, "--tasks", *tasks, "--output", folder, flags=loud) == 0
    said = capsys.readouterr().err
    assert "changed since this evaluation began" in said and "transformers 4.0 (now " in said
    assert files_of(folder) == files_of(whole)
    record = json.loads((folder / "config.json").read_text())
    assert record["packages"]["transformers"] == "4.0" != record["resumed"][0]["packages"]["transformers"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "0.5"], r"temperature 1\.0, now 0\.5: choose another --output, or .* --force generate"),
        (["--max-tokens", "6"], "max_tokens 5, now 6"),
        (["--seed", "1"], "seed 0, now 1"),
        (["--even.count", "30"], "even: options count 24, now 30"),
        (["--examples", "3"], "even: examples"),
        (["--reward-deadline-s", "7"], r"reward_deadline_s 30.0, now 7.0: .* --force score"),
    ],
)
def test_other_settings_are_refused_by_name_and_nothing_is_touched(whole, models, tasks, flags, message):
    before = files_of(whole)
    kept = [flag for flag in evaluated.FLAGS if flags[0] != "--max-tokens" or flag not in ("--max-tokens", "5")]
    with pytest.raises(UserError, match=message) as refused:
        run("--models", *models, "--tasks", *tasks, "--output", whole, *flags, flags=kept)
    assert "\n" not in str(refused.value) and files_of(whole) == before


def test_other_weights_at_the_same_place_are_refused(place, tasks, tmp_path):
    (model,) = evaluated.save_models(tmp_path)[:1]
    command = ["--checkpoint", model, "--task", tasks[0], "--output", tmp_path / "out", "--examples", "2"]
    assert run(*command) == 0
    for path in Path(model).glob("*.safetensors"):
        path.write_bytes((place / "model1" / path.name).read_bytes())
    with pytest.raises(UserError, match=r"other weights of .*model0"):
        run(*command)
    assert run(*command, "--force") == 0


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


def test_a_changed_reward_is_refused_until_scores_are_forced(changing, tmp_path):
    assert changing(evaluated.TASKS, "even") == 0
    completions = (tmp_path / "out/completions.jsonl").read_bytes()
    before = summary_of(tmp_path / "out")["results"][0]["pass@1"]
    changed = evaluated.TASKS.replace("% 2 == 0), {", "% 2 == 1), {")
    with pytest.raises(UserError, match=r"even: programs changing_task .*--force score"):
        changing(changed, "even")
    assert changing(changed, "even", "--force", "score") == 0
    assert summary_of(tmp_path / "out")["results"][0]["pass@1"] == pytest.approx(1 - before)
    assert (tmp_path / "out/completions.jsonl").read_bytes() == completions


@pytest.mark.parametrize(
    ("beside", "before", "after", "message"),
    [
        ("the_rest.py", "EVEN = 0", "EVEN = 1", "programs the_rest '.*', now"),
        ("answers.json", '{"rest": 0}', '{"rest": 1}', "references '.*', now"),
    ],
)
def test_answers_and_modules_that_the_reward_reads_are_part_of_a_score(
    changing, tmp_path, beside, before, after, message
):
    # Solved is a number of words with the rest EVEN + rest by 2: each change turns the figure round.
    (tmp_path / "the_rest.py").write_text("EVEN = 0\n")
    (tmp_path / "answers.json").write_text('{"rest": 0}')
    text = evaluated.TASKS.replace("% 2 == 0), {", '% 2 == (the_rest().EVEN + example["rest"]) % 2), {')
    text = (
        text.replace('{"broken": options.broken}', '{"broken": options.broken, **answers()}')
        + """

def the_rest():
    import the_rest
    return the_rest


def answers():
    import json
    from pathlib import Path
    return json.loads(Path(__file__).with_name("answers.json").read_text())
"""
    )
    assert changing(text, "even") == 0
    figure = summary_of(tmp_path / "out")["results"][0]["pass@1"]
    (tmp_path / beside).write_text((tmp_path / beside).read_text().replace(before, after))
    sys.modules.pop("the_rest", None)
    with pytest.raises(UserError, match=f"even: {message} .*--force score"):
        changing(text, "even")
    assert changing(text, "even", "--force", "score") == 0
    assert summary_of(tmp_path / "out")["results"][0]["pass@1"] == pytest.approx(1 - figure)
    sys.modules.pop("the_rest", None)


@pytest.mark.parametrize(
    ("before", "after", "asks", "answer"),
    [
        ('"numbers 2"', '"numbers 3"', r"\('asked', 'numbers 3'\)", r"\('asked', 'numbers 2'\)"),
        ('second = yield Turn("asked", "numbers 2")', 'second = ""', "nothing", r"\('asked', 'numbers 2'\)"),
        (
            "judged = yield",
            'yield Turn("asked", "numbers 4")\n    judged = yield',
            r"\('asked', 'numbers 4'\)",
            "nothing",
        ),
    ],
    ids=["another", "fewer", "more"],
)
def test_old_conversations_are_not_scored_under_a_changed_episode(changing, before, after, asks, answer, tmp_path):
    assert changing(evaluated.TASKS, "talk") == 0
    scored = files_of(tmp_path / "out")
    changed = evaluated.TASKS.replace(before, after)
    assert changed != evaluated.TASKS
    message = (
        f"^talk: the episode of example e.* asks {asks} where its completions answer {answer}: .* --force generate$"
    )
    with pytest.raises(UserError, match=message) as refused:
        changing(changed, "talk", "--force", "score")
    assert "\n" not in str(refused.value)
    assert (tmp_path / "out/completions.jsonl").read_bytes() == scored["completions.jsonl"]


def test_what_cannot_be_scored_says_why_and_is_not_solved(models, tasks, tmp_path):
    command = ["--checkpoint", models[0], "--task", tasks[0], "--even.broken", "--output", tmp_path]
    assert run(*command) == 0
    table = parquet.read_table(tmp_path / "scores.parquet").to_pylist()
    words = {(r["mode"], r["index"], r["sample"]): len(r["completion"].split()) for r in rows_of(tmp_path)}
    for line in table:
        count = words[line["mode"], line["index"], line["sample"]]
        expected = f"RuntimeError: cannot judge {count}" if count % 3 == 0 else None
        assert line["unscorable"] == expected and (line["reward"] is None) == (count % 3 == 0)
        assert line["solved"] == (count % 2 == 0 and count % 3 != 0)
    result = summary_of(tmp_path)["results"][0]
    assert result["unscorable"] == sum(line["unscorable"] is not None for line in table) > 0


def test_prompts_that_do_not_fit_are_unscorable_counted_and_said(models, tasks, tmp_path, capsys):
    loud = [flag for flag in evaluated.FLAGS if flag != "--quiet"]
    command = ["--models", *models, "--task", tasks[0], "--even.long-every", "3", "--output", tmp_path]
    assert run(*command, flags=loud) == 0
    said, rows = capsys.readouterr().err, rows_of(tmp_path)
    full = {row["index"] for row in rows if row["model"] == models[0] and "no room" in row.get("failure", "")}
    every = {row["index"] for row in rows}
    assert 0 < len(full) < len(every)
    assert said.count(f"{len(full)} of {len(every)} prompts of even fill the 1024 tokens that") == 2
    for result in summary_of(tmp_path)["results"]:
        assert result["examples"] == len(every)
        assert result["unscorable"] == 5 * len(full)  # four samples and a greedy one of each
    for dry in ([], ["--dry-run"]):
        with pytest.raises(UserError, match="no prompt of even leaves room for a completion in the 1024 tokens"):
            run(*command, "--even.long-every", "1", "--output", tmp_path / "none", *dry, flags=loud)


def test_answers_that_do_not_fit_are_said(make_policy, sevens, said):
    task = replace(sevens, shortest_answer=lambda example: "1 " * (1 + example["number"]))
    counts = sorted(1 + example["number"] for example in task.dataset.held_out)
    planned = PlannedTask("sevens", task, task.dataset.held_out, [])
    check_prompts(make_policy(), NamedModel("m", "m"), planned, 1024, counts[-1])  # no room for the end token
    (line,) = said
    assert line.startswith(f"1 of {len(counts)} examples of sevens have no answer of {counts[-1]} tokens or less")


def test_a_dry_run_checks_and_generates_nothing(models, tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "sampler_of", None)
    loud = [flag for flag in evaluated.FLAGS if flag != "--quiet"]
    command = ["--models", *models, "--tasks", *tasks, "--output", tmp_path / "out", "--dry-run"]
    assert run(*command, flags=loud) == 0
    said = capsys.readouterr().err
    assert said.count(" to generate") == 5 and not (tmp_path / "out").exists()
    for wrong, message in (
        (["--models", tmp_path / "nothing"], "cannot load model"),
        (["--models", models[0], models[0]], "more than once"),
        (["--models", models[0], "--tasks", "evn"], "no task 'evn'"),
        (["--models", "openai:x@ftp://y"], "must begin with http"),
    ):
        with pytest.raises(UserError, match=message):
            run(*wrong, "--output", tmp_path / "out", "--dry-run")


def test_a_large_share_that_was_cut_off_is_said(whole, models, tasks, capsys):
    assert run("--models", *models, "--tasks", *tasks, "--output", whole) == 0
    said = capsys.readouterr().err
    rows = [row for row in rows_of(whole) if row["mode"] == "sampled"]
    cut = {}
    for row in rows:
        finished = row["finish_reason"] if "completion" in row else row["roles"]["asked"]["finish_reason"]
        cut.setdefault((Path(row["model"]).name, row["task"]), []).append(finished == "length")
    assert len(cut) == 4 and all(np.mean(of_pair) > 0.1 for of_pair in cut.values())
    for (model, task), of_pair in cut.items():
        assert f"{model} on {task}: {np.mean(of_pair):.0%} of the completions were cut off at --max-tokens 5" in said


def test_greedy_alone_at_temperature_0(models, tasks, tmp_path):
    flags = [flag for flag in evaluated.FLAGS if flag not in ("--samples", "4")]
    command = ["--checkpoint", models[0], "--task", tasks[0], "--temperature", "0", "--output", tmp_path]
    assert run(*command, flags=flags) == 0
    assert {row["mode"] for row in rows_of(tmp_path)} == {"greedy"}
    result = summary_of(tmp_path)["results"][0]
    assert result["pass@1"] == result["pass@1_greedy"] and list(result["pass@k"]) == ["1"]


def test_the_short_form_writes_and_shows_one_result(models, tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for samples in ("2", "3"):  # each has a folder of its own
        flags = ["--samples", samples, *evaluated.FLAGS[2:]]
        assert run("--checkpoint", models[0], "--task", tasks[0], "--output", "result.json", flags=flags) == 0
        result = json.loads(Path("result.json").read_text())
        assert json.loads(capsys.readouterr().out) == result
        assert result["model"] == models[0] and result["task"] == "even" and result["options"]["count"] == 24
        assert result["n"] == int(samples) * result["examples"] and len(result["ci95"]) == 2
    assert len(list(Path("evaluations").glob("even-*"))) == 2


def test_a_terminal_is_shown_tables_and_a_pipe_gets_json(whole, models, tasks, capsys, monkeypatch):
    command, summary = ["--models", *models, "--tasks", *tasks, "--output", whole], summary_of(whole)
    assert run(*command) == 0
    assert json.loads(capsys.readouterr().out) == summary
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(*command) == 0
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80 and not any("|" in line or "{" in line for line in lines)
    for result in summary["results"]:
        low, high = result["ci95"]
        figures = f"{result['pass@1']:.1%} ({low:.1%} to {high:.1%}) {result['pass@k']['4']['value']:.1%}"
        (line,) = [line for line in lines if " ".join(line.split()).startswith(f"{result['label']} {figures}")]
        assert line.split()[-2:] == [f"{result['reward']:.3f}", f"{result['completion_tokens_mean']:.1f}"]
    assert sum(line.startswith("Difference of pass@1 to model0") for line in lines) == 2
    assert [line.split()[0] for line in lines if "odd=" in line] == ["odd=0", "odd=1"] * 2


def test_two_programs_do_not_write_to_one_folder(models, tasks, tmp_path):
    with locked(tmp_path / "out"), pytest.raises(UserError, match=r"another program \(process \d+ on .*\) is writing"):
        run("--checkpoint", models[0], "--task", tasks[0], "--output", tmp_path / "out")


def test_a_folder_of_other_things_is_left_alone(models, tasks, place):
    with pytest.raises(UserError, match="and no evaluation"):
        run("--checkpoint", models[0], "--task", tasks[0], "--output", place)


@pytest.mark.slow
def test_told_to_stop_it_keeps_what_is_paid_and_says_how_to_go_on(models, tasks, tmp_path):
    """A program of its own, as a supervisor stops it."""
    flags = ["--samples", "20", "--batch-size", "2", *evaluated.FLAGS[2:6], "--threads", "1", "--quiet", "--no-charts"]
    command = ["--checkpoint", models[0], "--task", tasks[0], *flags, "--output", str(tmp_path / "out")]
    program = Forked(
        [sys.executable, str(ROOT / "evaluate.py"), *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    paid = tmp_path / "out" / "completions.jsonl"
    while program.poll() is None and not (paid.exists() and paid.stat().st_size):
        time.sleep(0.002)
    program.send_signal(signal.SIGTERM)
    _, said = program.communicate(timeout=120)
    assert program.returncode == 143, said
    assert f"stopped; {tmp_path / 'out'} keeps what is done, and the same command goes on" in said
    before = paid.read_text().splitlines()
    assert run(*command, "--batch-size", "64", flags=[]) == 0  # what is sampled does not depend on it
    after = paid.read_text().splitlines()
    assert 0 < len(before) < len(after) and set(before) <= set(after)


@pytest.mark.slow
def test_killed_in_each_stage_it_resumes_to_the_same_result(whole, models, tasks, tmp_path):
    command = [sys.executable, str(ROOT / "evaluate.py"), "--models", *models, "--tasks", *tasks, *evaluated.FLAGS]
    command += ["--output", str(tmp_path / "out")]

    def start():
        return Forked(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=tmp_path, text=True)

    for name in ("completions.jsonl", "scores.partial.jsonl"):
        program, watched = start(), tmp_path / "out" / name
        while program.poll() is None and not (watched.exists() and watched.stat().st_size):
            time.sleep(0.002)
        os.kill(program.pid, signal.SIGKILL)
        assert program.wait() in (-signal.SIGKILL, 0), program.stderr.read()
    last = start()
    _, errors = last.communicate()
    assert last.returncode == 0, errors
    assert files_of(tmp_path / "out") == files_of(whole)
