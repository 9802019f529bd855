"""evaluate.py and runs: their own settings are the defaults, and no problem and no weights but theirs are evaluated."""

import shutil
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from minrl.dataflow import UserError
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.run import prepared
from minrl.sft.config import SftConfig
from minrl.sft.demonstrations import fingerprint
from minrl.tasks import find_definition, load_task
from minrl.utils.cli import parse
from minrl.utils.files import read_json, write_json
from tests import evaluated
from tests.evaluated import rows_of, run, save_run, summary_of
from tests.runs import write_rows

FLAGS = [flag for flag in evaluated.FLAGS if flag not in ("--max-tokens", "5")]


@pytest.fixture
def trained(evaluated_place, tmp_path, monkeypatch):
    """Makes a run of `even`, whose options and settings are given; it lies where the program is started."""
    monkeypatch.chdir(tmp_path)

    def make(name, held_out_share=0.2, **changes):
        task = f"{evaluated_place}/evaluated_tasks.py:even"
        options = {"even": make_dataclass("Options", ["count", "held_out_share"])(40, held_out_share)}
        return save_run(tmp_path, name, str(evaluated_place / "model0"), task, options=options, **changes)

    return make


def even(evaluated_place, share):
    """The dataset of `even`."""
    task = f"{evaluated_place}/evaluated_tasks.py:even"
    return load_task(task, {"even": find_definition(task).options_class(count=40, held_out_share=share)}).dataset


def checked(*arguments):
    """The notes on an evaluation, before it begins."""
    return "\n".join(prepared(parse(EvaluateConfig, [*arguments, *FLAGS]))[1])


def edited(name, config=None, **changes):
    """Change what a run's config.json says."""
    record = read_json(path := Path("runs", name, "config.json"))
    write_json(path, record | changes | {"config": record["config"] | (config or {})})


def test_a_run_is_evaluated_as_it_was_trained(evaluated_place, trained, tmp_path, capsys):
    # 0.2 of 40 problems are held out from the run; the task's own default of 0.5 would ask many that it was trained on.
    own = {"max_tokens": 3, "stop_strings": ("4 4",), "chat_template_options": '{"x": 1}'}
    trained("one", eval_temperature=0.6, **own)
    assert run("--checkpoint", "one", "--output", "out", flags=FLAGS) == 0  # its task too
    settings, own = summary_of(tmp_path / "out")["settings"], {**own, "stop_strings": ["4 4"], "temperature": 0.6}
    assert {name: settings[name] for name in own} == own
    assert {row["example"] for row in rows_of("out")} == {example.id for example in even(evaluated_place, 0.2).held_out}
    assert "was trained with" not in capsys.readouterr().err


@pytest.mark.parametrize("named", ["one", "checkpoints/one/step_000001"])
def test_problems_that_a_run_was_trained_on_are_refused(evaluated_place, trained, named):
    trained("one")
    asked = {example.id for example in even(evaluated_place, 0.5).held_out}
    leaked = len(asked & {example.id for example in even(evaluated_place, 0.2).train})
    message = f"^{leaked} of the {len(asked)} problems of even are among those that one was trained on, and"
    command = ["--checkpoint", named, "--task", f"{evaluated_place}/evaluated_tasks.py:even"]
    with pytest.raises(UserError, match=message):
        checked(*command, "--even.held-out-share", "0.5")
    assert leaked and "held_out_share 0.2, here 0.1" in checked(*command, "--even.held-out-share", "0.1")  # fewer


@pytest.mark.parametrize(("role", "came"), [("start model", "started from"), ("teacher", "learned from")])
def test_problems_of_the_runs_behind_a_run_are_refused(trained, tmp_path, role, came):
    first = trained("first", 0.2)
    trained("second", 0.5)
    assert not checked("--checkpoint", "second")
    edited("second", models={role: {"path": str(first / "step_000001"), "run": "../first"}})
    for _ in ("as it is", "without the checkpoint"):
        with pytest.raises(UserError, match="are among those that first was trained on"):
            checked("--checkpoint", "second")
        shutil.rmtree(first / "step_000001", ignore_errors=True)
    shutil.rmtree(tmp_path / "runs/first")
    assert f"second {came} {first}/step_000001, whose run is not there" in checked("--checkpoint", "second")


def test_rows_that_a_run_was_fine_tuned_on_are_refused_in_whatever_words(trained, tmp_path):
    trained("one")
    (tmp_path / "asked_sums.py").write_text(evaluated.SUMS)
    prompt = load_task(f"{tmp_path}/asked_sums.py:sums").dataset.held_out[0].prompt
    worded = f"User: {prompt.upper()} Answer in a word.\nAssistant: <think>"
    rows = write_rows(tmp_path / "rows.jsonl", *({"prompt": said, "response": "1"} for said in ("other", worded)))
    edited("one", {"data": str(rows), "task": ""}, program="sft")
    alone = ["--checkpoint", "one", "--task", f"{tmp_path}/asked_sums.py:sums"]
    refusal = r"1 of the \d+ problems of sums are among those that one was trained on"
    with pytest.raises(UserError, match=refusal):
        checked(*alone)  # the run was stopped before it noted its rows
    for numbers in ([2], [1]):  # that it was trained on: the last are those of `other`
        noted = {"sha256": fingerprint(SftConfig(data=str(rows))), "trained_on": numbers}
        write_json(Path("runs/one/data.json"), noted)
        if numbers == [2]:
            with pytest.raises(UserError, match=refusal):
                checked(*alone)
    assert not checked(*alone)
    rows.write_text(rows.read_text() * 2)
    assert "rows.jsonl has changed since" in checked(*alone)


def test_sizes_are_those_of_the_model_or_of_the_evaluation_in_the_folder(evaluated_place, tmp_path):
    model = str(evaluated_place / "model0")
    own = ["--output", str(tmp_path), "--samples", "3", "--device", "cpu"]
    command = parse(EvaluateConfig, ["--checkpoint", model, "--task", "countdown", *own])
    for expected in ((512, 3, 192), (9, 3, 77)):  # as for any model of this size; of the evaluation
        config = prepared(command)[0].config
        assert (config.examples, config.samples, config.max_tokens) == expected
        write_json(tmp_path / "config.json", {"sizes": {model: {"examples": 9, "samples": 2, "max_tokens": 77}}})
