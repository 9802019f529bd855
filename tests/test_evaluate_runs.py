"""evaluate.py and runs: their own settings are the defaults, and no problem and no weights but theirs are evaluated."""

import json
import math
import shutil
from dataclasses import make_dataclass

import pytest

from minrl.config import LoraConfig, ModelConfig, RolloutConfig
from minrl.evaluate import generate
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import find_runs
from minrl.evaluate.run import prepared
from minrl.evaluate.stages import differences, make_plan
from minrl.models.distributed import Processes
from minrl.models.lora import Adapters
from minrl.run.checkpoint import save_policy
from minrl.run.defaults import ON_CPU, ON_GPU
from minrl.run.folder import resolve_model
from minrl.run.setup import load_policy
from minrl.tasks import find_definition, load_task
from minrl.tasks.hanoi import HanoiOptions
from minrl.types import UserError
from minrl.utils.cli import parse
from minrl.utils.files import read_json
from tests import evaluated
from tests.evaluated import rows_of, run, save_run, summary_of
from tests.parsed import parsed

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


@pytest.mark.parametrize("named", ["one", "runs/one", "checkpoints/one", "checkpoints/one/step_000001"])
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


def test_problems_of_another_file_are_refused_by_their_prompts(place, trained, tmp_path):
    # The other file's task is called alike, has the same options, holds others out and has other identities.
    trained("one")
    (tmp_path / "other_tasks.py").write_text(evaluated.TASKS.replace('f"e{n}"', 'f"other{n}"'))
    with pytest.raises(UserError, match=rf"problems of even are among .* one was trained .*task {place}/run_tasks.py"):
        checked("--checkpoint", "one", "--task", "other_tasks.py:even")


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


def evaluation_of(place, tmp_path, task, options, **changes):
    """A run of a task of ours, and what is prepared of an evaluation of it."""
    save_run(tmp_path, f"{task}-run", str(place / "model0"), task, options={task: options}, **changes)
    return lambda *flags: prepared(parse(EvaluateConfig, ["--checkpoint", f"{task}-run", "--task", task, *flags]))


def test_boards_of_other_sizes_on_pegs_that_the_run_was_trained_on_are_refused(place, trained, tmp_path):
    # No board is of both, as those that are asked have fewer disks.
    own = HanoiOptions(peg_names=5, held_out_share=0.2)
    evaluated_with = evaluation_of(place, tmp_path, "hanoi", own)
    sides = load_task("hanoi", {"hanoi": own}).dataset
    flags = ["--hanoi.min-disks", "2", "--hanoi.max-disks", "2"]
    evaluated_with(*flags)  # the same pegs are held out
    wider = HanoiOptions(peg_names=5, held_out_share=0.6, min_disks=2, max_disks=2)
    asked = load_task("hanoi", {"hanoi": wider}).dataset.held_out
    assert not {one.id for one in asked} & {one.id for one in sides.train}
    leaked = sum(one["pegs"] in {two["pegs"] for two in sides.train} for one in asked)
    assert leaked
    with pytest.raises(UserError, match=f"{leaked} of the {len(asked)} problems of hanoi are among those"):
        evaluated_with(*flags, "--hanoi.held-out-share", "0.6")


def test_runs_that_differ_are_compared_under_settings_that_are_named(trained, capsys):
    trained("one", rollout={"max_tokens": 3})
    trained("two", rollout={"max_tokens": 4})
    command = ["--models", "one", "two"]
    with pytest.raises(UserError, match=r"one was trained with max_tokens 3 and two with 4: .* by --max-tokens$"):
        checked(*command)
    assert checked(*command, "--max-tokens", "4") == 0
    assert "one was trained with max_tokens 3, here 4\n" in capsys.readouterr().err


def test_adapters_are_evaluated_on_the_weights_that_they_were_trained_on(place, tmp_path, monkeypatch):
    # The base model changes after two examples were generated: adapters on it, merged, would be another model.
    base, adapted = tmp_path / "base", str(tmp_path / "adapted")
    shutil.copytree(place / "model0", base)
    config = ModelConfig(device="cpu", threads=1)
    policy = load_policy(str(base), config, Processes(config))
    policy.adapters = Adapters(policy.model, LoraConfig(lora_rank=2, lora_checkpoint="adapter"), str(base), seed=0)
    save_policy(policy, tmp_path / "adapted")
    command = ["--checkpoint", adapted, "--task", f"{place}/run_tasks.py:even", "--output", "out", "--examples", "2"]
    monkeypatch.chdir(tmp_path)
    assert run(*command, flags=FLAGS) == 0
    shutil.copy(place / "model1/model.safetensors", base / "model.safetensors")
    with pytest.raises(UserError, match=r"other weights of .*adapted"):
        run(*command, flags=FLAGS)
    with pytest.raises(UserError, match=r"were trained on other weights than those of .*base: put the former back"):
        run(*command, "--force", flags=FLAGS)


def test_damaged_checkpoints_are_left_out_with_a_word(trained, capsys):
    kept = trained("one")
    shutil.copytree(kept / "step_000001", kept / "step_000002")
    (kept / "step_000002/model.safetensors").write_bytes(b"")
    assert checked("--checkpoint", "one", "--every-checkpoint") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert len(said) == 1 and "step_000002 is damaged (model.safetensors is not what was written)" in said[0]


def test_the_opponent_is_the_checkpoint_that_was_planned(place, trained, workers, monkeypatch):
    kept = trained("one")
    command = ["--checkpoint", str(place / "model0"), "--opponent", "one", "--device", "cpu"]
    config, options = parsed([*command, "--task", "tictactoe", "--tictactoe.opponent", "frozen"], EvaluateConfig)
    plan = make_plan(config, options)
    shutil.copytree(kept / "step_000001", kept / "step_000002")  # the run goes on meanwhile
    loaded = []
    monkeypatch.setattr(generate, "load_policy", lambda name, *rest: loaded.append(name) or load_policy(name, *rest))
    generate.sampler_of(plan, plan.models[0], workers).close()
    assert loaded == [str(place / "model0"), str(kept / "step_000001")]


def test_a_model_that_no_run_trained_has_the_sizes_that_train_gives_it(place, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("minrl.evaluate.models.sizes_of", lambda name, model, runs_dir: ON_CPU[2e8])
    small, served = ON_CPU[2e8], ON_GPU[math.inf]
    given = shutil.copytree(place / "model0", tmp_path / "given")
    (given / "chat_template.jinja").write_text("{{ messages }}")  # another tokenizer's

    def asked_of(*arguments):
        command, notes = prepared(parse(EvaluateConfig, ["--task", "countdown", *arguments]))
        return (command.config.max_tokens, command.config.examples, command.config.samples), notes

    for name, sizes in (("some-org/model", small), ("openai:m@http://127.0.0.1:1/v1", served), (str(given), small)):
        asked, (note,) = asked_of("--checkpoint", name)
        assert asked == (sizes.max_tokens, sizes.eval_examples, sizes.eval_samples)
        assert note.startswith(f"by the size of {name}") and f"--max-tokens {sizes.max_tokens}" in note
        flags = ("--max-tokens", "7", "--examples", "8", "--samples", "9")
        assert asked_of("--checkpoint", name, *flags)[0] == (7, 8, 9)
    assert asked_of("--checkpoint", "some-org/model", "--pass-at", "4")[0][2] == 0  # as many as there is room for
    assert asked_of("--checkpoint", str(place / "model0")) == ((RolloutConfig().max_tokens, 512, 0), [])  # MinRL's own
    assert asked_of("--models", str(place / "model0"), "some-org/model")[0][0] == small.max_tokens
    trained("one", rollout={"max_tokens": 3})
    assert asked_of("--models", "one", "some-org/model")[0][0] == 3


def test_a_name_like_a_runs_in_another_place_is_not_the_run(trained):
    trained("one")
    for named in ("/no/such/dir/one", "some-org/one", "moved/one"):
        assert resolve_model(named) == named  # for transformers to find or refuse


def test_weights_of_the_hub_are_compared_where_their_commit_is_known():
    def compared(before, now):
        before, now = ({"generate": {"models": {"org/m": commit}}} for commit in (before, now))
        return list(differences(before, now, "generate"))

    assert compared("", "first") == compared("first", "") == compared("first", "first") == []
    assert compared("first", "second") == ["other weights of org/m"]


def test_what_is_unknown_of_a_runs_problems_is_reported(place, trained, tmp_path, capsys):
    trained("one")
    task = tmp_path / "task.py"
    task.write_text("now")
    path = tmp_path / "runs/one/config.json"
    path.write_text(json.dumps({**read_json(path), "files": {str(task): "then", "gone.py": "then"}}))
    assert checked("--checkpoint", "one") == 0
    assert f"changed since one was trained: {task};" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "runs/one")
    assert checked("--task", f"{place}/run_tasks.py:even", "--checkpoint", "checkpoints/one") == 0
    assert "checkpoints/one: its run is not there" in capsys.readouterr().err
