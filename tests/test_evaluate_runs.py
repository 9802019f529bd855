"""evaluate.py and runs: their own settings are the defaults, and no problem and no weights but theirs are evaluated."""

import json
import shutil
from dataclasses import make_dataclass

import pytest

from minrl.config import ModelConfig
from minrl.dataflow import UserError
from minrl.evaluate.models import find_runs
from minrl.evaluate.stages import stored_settings
from minrl.tasks import find_definition, load_task
from minrl.utils.files import read_json
from tests import evaluated
from tests.evaluated import rows_of, run, save_run, summary_of

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
    return load_task(task, {"even": find_definition(task).options(count=40, held_out_share=share)}).dataset


def checked(*arguments):
    """A dry run."""
    return run(*arguments, "--dry-run", flags=FLAGS)


def edited(tmp_path, name, models=None, **config):
    """Change what a run's config.json says."""
    path = tmp_path / "runs" / name / "config.json"
    record = read_json(path)
    record["config"].update(config)
    path.write_text(json.dumps({**record, **({"models": models} if models else {})}, indent=1))


def test_a_run_is_evaluated_as_it_was_trained(place, trained, tmp_path, capsys):
    # 0.2 of 40 problems are held out from the run; the task's own default of 0.5 would ask many that it was trained on.
    model = ModelConfig(chat_template_options='{"x": 1}')
    trained("one", rollout={"max_tokens": 3, "stop_strings": ("4 4",)}, model=model)
    assert run("--checkpoint", "one", "--output", "out", flags=FLAGS) == 0  # its task too
    settings = summary_of(tmp_path / "out")["settings"]["generate"]
    assert (settings["max_tokens"], settings["stop_strings"]) == (3, ["4 4"])
    assert settings["chat_template_options"] == '{"x": 1}'
    assert {row["example"] for row in rows_of("out")} == {example.id for example in even(place, 0.2).held_out}
    assert "was trained with" not in capsys.readouterr().err


@pytest.mark.parametrize("named", ["one", "checkpoints/one/step_000001"])
def test_a_run_is_known_by_each_of_its_names(trained, tmp_path, named):
    trained("one")
    found, notes = find_runs([named])
    assert [run.path for run in found] == [tmp_path / "runs/one"] and not notes
    shutil.move("runs", "others")
    assert not find_runs(["one"])[0] and find_runs(["one"], "others")[0]


def test_problems_that_a_run_was_trained_on_are_refused(place, trained):
    trained("one")
    asked = {example.id for example in even(place, 0.5).held_out}
    leaked = len(asked & {example.id for example in even(place, 0.2).train})
    assert leaked
    message = f"^{leaked} of the {len(asked)} problems of even are among those that one was trained .*share 0.2"
    command = ["--checkpoint", "one", "--task", f"{place}/run_tasks.py:even"]
    with pytest.raises(UserError, match=message) as refused:
        checked(*command, "--even.held-out-share", "0.5")
    assert "\n" not in str(refused.value)
    assert checked(*command, "--even.held-out-share", "0.1") == 0  # fewer of them


@pytest.mark.parametrize(("role", "came"), [("start model", "started from"), ("teacher", "learned from")])
def test_problems_of_the_runs_behind_a_run_are_refused(trained, tmp_path, capsys, role, came):
    first = trained("first", 0.2)
    trained("second", 0.5)
    assert checked("--checkpoint", "second") == 0
    edited(tmp_path, "second", {role: {"path": str(first / "step_000001")}})
    for _ in ("as it is", "without the checkpoint"):
        with pytest.raises(UserError, match="are among those that first was trained on"):
            checked("--checkpoint", "second")
        shutil.rmtree(first / "step_000001", ignore_errors=True)
    shutil.rmtree(tmp_path / "runs/first")
    assert checked("--checkpoint", "second") == 0
    assert f"second {came} {first}/step_000001, whose run is not there" in capsys.readouterr().err


def test_rows_that_a_run_was_fine_tuned_on_are_refused(place, trained, tmp_path, capsys):
    trained("one")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": even(place, 0.2).held_out[0].prompt, "response": "1"}) + "\n")
    edited(tmp_path, "one", data=str(rows))  # with its task it left out the rows that the task holds out
    assert checked("--checkpoint", "one") == 0
    edited(tmp_path, "one", task="")
    alone = ["--checkpoint", "one", "--task", f"{place}/run_tasks.py:even"]
    with pytest.raises(UserError, match=r"problems of even are among those in .*rows.jsonl, which one was fine-tuned"):
        checked(*alone)
    rows.unlink()
    assert checked(*alone) == 0
    assert "rows.jsonl, which it was fine-tuned on, is not there" in capsys.readouterr().err


def test_a_folder_with_settings_that_a_kill_left_half_written_is_free(tmp_path):
    (tmp_path / "config.json.tmp").write_text("{")
    assert stored_settings(tmp_path) == {}
