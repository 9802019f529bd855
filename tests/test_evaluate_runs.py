"""evaluate.py and runs: their own settings are the defaults, and no problem and no weights but theirs are evaluated."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import make_dataclass

import pytest

from minrl.dataflow import UserError
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import runs_behind
from minrl.evaluate.run import prepared
from minrl.sft.config import SftConfig
from minrl.sft.demonstrations import fingerprint
from minrl.tasks import find_definition, load_task
from minrl.utils.cli import parse
from minrl.utils.files import read_json
from tests import evaluated
from tests.evaluated import rows_of, run, save_run, summary_of
from tests.runs import write_rows

FLAGS = [flag for flag in evaluated.FLAGS if flag not in ("--max-tokens", "5")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run_tasks.py").write_text(evaluated.TASKS)
    evaluated.save_models(folder)
    return folder


@pytest.fixture
def trained(place, tmp_path, monkeypatch):
    """Makes a run of `even`, whose options and settings are given; it lies where the program is started."""
    monkeypatch.chdir(tmp_path)

    def make(name, held_out_share=0.2, **changes):
        task = f"{place}/run_tasks.py:even"
        options = {"even": make_dataclass("Options", ["count", "held_out_share"])(40, held_out_share)}
        return save_run(tmp_path, name, str(place / "model0"), task, options=options, **changes)

    return make


def even(place, share):
    """The dataset of `even`."""
    task = f"{place}/run_tasks.py:even"
    return load_task(task, {"even": find_definition(task).options_class(count=40, held_out_share=share)}).dataset


def checked(*arguments):
    """The notes on an evaluation, before it begins."""
    return "\n".join(prepared(parse(EvaluateConfig, [*arguments, *FLAGS]))[1])


def edited(tmp_path, name, models=None, program="", **config):
    """Change what a run's config.json says."""
    path = tmp_path / "runs" / name / "config.json"
    record = read_json(path)
    record["config"].update(config)
    more = {"models": models} if models else {"program": program} if program else {}
    path.write_text(json.dumps({**record, **more}, indent=1))


def test_a_run_is_evaluated_as_it_was_trained(place, trained, tmp_path, capsys):
    # 0.2 of 40 problems are held out from the run; the task's own default of 0.5 would ask many that it was trained on.
    trained("one", max_tokens=3, stop_strings=("4 4",), chat_template_options='{"x": 1}')
    assert run("--checkpoint", "one", "--output", "out", flags=FLAGS) == 0  # its task too
    settings = summary_of(tmp_path / "out")["settings"]
    assert (settings["max_tokens"], settings["stop_strings"]) == (3, ["4 4"])
    assert settings["chat_template_options"] == '{"x": 1}'
    assert {row["example"] for row in rows_of("out")} == {example.id for example in even(place, 0.2).held_out}
    assert "was trained with" not in capsys.readouterr().err


@pytest.mark.parametrize("named", ["one", "checkpoints/one/step_000001"])
def test_a_run_is_known_by_each_of_its_names(trained, tmp_path, named):
    trained("one")
    found, notes = runs_behind([named])
    assert [run.path for run in found] == [tmp_path / "runs/one"] and not notes
    shutil.move("runs", "others")
    assert not runs_behind(["one"])[0] and runs_behind(["one"], "others")[0]


def test_problems_that_a_run_was_trained_on_are_refused(place, trained):
    trained("one")
    asked = {example.id for example in even(place, 0.5).held_out}
    leaked = len(asked & {example.id for example in even(place, 0.2).train})
    assert leaked
    message = f"^{leaked} of the {len(asked)} problems of even are among those that one was trained on, and"
    command = ["--checkpoint", "one", "--task", f"{place}/run_tasks.py:even"]
    with pytest.raises(UserError, match=message) as refused:
        checked(*command, "--even.held-out-share", "0.5")
    assert "\n" not in str(refused.value)
    assert "held_out_share 0.2, here 0.1" in checked(*command, "--even.held-out-share", "0.1")  # fewer of them


@pytest.mark.parametrize(("role", "came"), [("start model", "started from"), ("teacher", "learned from")])
def test_problems_of_the_runs_behind_a_run_are_refused(trained, tmp_path, role, came):
    first = trained("first", 0.2)
    trained("second", 0.5)
    assert not checked("--checkpoint", "second")
    edited(tmp_path, "second", {role: {"path": str(first / "step_000001"), "run": "../first"}})
    for _ in ("as it is", "without the checkpoint"):
        with pytest.raises(UserError, match="are among those that first was trained on"):
            checked("--checkpoint", "second")
        shutil.rmtree(first / "step_000001", ignore_errors=True)
    shutil.rmtree(tmp_path / "runs/first")
    assert f"second {came} {first}/step_000001, whose run is not there" in checked("--checkpoint", "second")


SUMS = """
from minrl import task

QUESTIONS = [{"question": f"What is the sum of the first {n} odd positive integers?"} for n in range(20)]

@task(data=QUESTIONS, prompt="question", held_out=0.5)
def sums(completion, row):
    return 1.0
"""


def test_rows_that_a_run_was_fine_tuned_on_are_refused_in_whatever_words(trained, tmp_path):
    trained("one")
    (tmp_path / "asked_sums.py").write_text(SUMS)
    prompt = load_task(f"{tmp_path}/asked_sums.py:sums").dataset.held_out[0].prompt
    worded = f"User: {prompt.upper()} Answer in a word.\nAssistant: <think>"
    asked = ({"prompt": said, "response": "1"} for said in (prompt, "other", worded))
    rows = write_rows(tmp_path / "rows.jsonl", *asked)
    edited(tmp_path, "one", data=str(rows), program="sft", task="")
    alone = ["--checkpoint", "one", "--task", f"{tmp_path}/asked_sums.py:sums"]
    with pytest.raises(UserError, match=r"1 of the \d+ problems of sums are among those that one was trained on"):
        checked(*alone)  # the run was stopped before it noted its rows
    noted = tmp_path / "runs/one/data.json"
    config = SftConfig(data=str(rows))
    for numbers, leaks in (([1], True), ([2], False), ([2, 3], True)):
        noted.write_text(json.dumps({"sha256": fingerprint(config), "trained_on": numbers}))
        with pytest.raises(UserError, match="1 of the") if leaks else nullcontext():
            assert not checked(*alone)
    rows.write_text(rows.read_text() * 2)
    assert "rows.jsonl has changed since" in checked(*alone)
    rows.unlink()
    assert "rows.jsonl, which it was fine-tuned on, is not there" in checked(*alone)


def test_the_temperature_is_that_of_the_runs_own_evaluations(trained):
    trained("one", eval_temperature=0.6)
    command = ["--checkpoint", "one", *FLAGS]
    assert prepared(parse(EvaluateConfig, command))[0].config.temperature == 0.6
    assert prepared(parse(EvaluateConfig, [*command, "--temperature", "0.7"]))[0].config.temperature == 0.7


def test_runs_that_were_trained_otherwise_are_evaluated_alike_which_is_noted(trained, tmp_path):
    trained("one", max_tokens=3)
    trained("two", max_tokens=4)
    edited(tmp_path, "two", of_another_version=1)
    options = read_json(tmp_path / "runs/two/config.json")["config"]["tasks"]
    options["even"]["gone"] = 3
    edited(tmp_path, "two", tasks=options)
    older, other = checked("--models", "one", "two").splitlines()
    assert older == "two was made by another version, with even.gone, which is left out"
    assert other == "two was trained with max_tokens 4, here 3"


def test_sizes_are_those_of_the_model_or_of_the_evaluation_in_the_folder(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["--checkpoint", str(place / "model0"), "--task", "countdown", "--device", "cpu"]
    config = prepared(parse(EvaluateConfig, command))[0].config
    assert (config.examples, config.samples, config.max_tokens) == (512, 0, 192)  # as for any model of this size
    sizes = {str(place / "model0"): {"examples": 9, "samples": 2, "max_tokens": 77}}
    (tmp_path / "evaluations/countdown").mkdir(parents=True)
    (tmp_path / "evaluations/countdown/config.json").write_text(json.dumps({"sizes": sizes}))
    config = prepared(parse(EvaluateConfig, [*command, "--samples", "3"]))[0].config
    assert (config.examples, config.samples, config.max_tokens) == (9, 3, 77)
