"""A step can be repeated from the checkpoint before it, and what was changed is found; a fork goes on from there."""

import gzip
import json
import shutil

import pytest

from minrl import train
from minrl.__main__ import main
from minrl.run.checkpoint import load_state, save_state
from minrl.run.folder import RunFolder
from minrl.tools.verify.verify import DIFFERS, forked
from minrl.tracking.writers import PARTS
from minrl.types import UserError
from minrl.utils.files import read_json, read_jsonl, write_json, write_jsonl
from tests.killing import killed_at
from tests.say_sevens import SAY_SEVENS

SETTINGS = """--prompts-per-step 4 --group-size 8 --steps 5 --save-every 2 --keep-checkpoints 0 --eval-every 0
    --no-eval-first --eval-examples 4 --eval-samples 1 --rollouts-every 2 --threads 1 --device cpu"""
FLAGS = [*SAY_SEVENS, *SETTINGS.split()]
NAME = "sevens-grpo-prompts_per_step=4-max_tokens=4-seed0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of five steps, of which 2, 4 and the last are saved."""
    place = tmp_path_factory.mktemp("whole")
    assert main(["train", *FLAGS, *folders(place)]) == 0
    return place


@pytest.fixture
def place(whole, tmp_path, monkeypatch):
    """A copy of it, which is the current folder. No later step is to write to it."""
    for name in ("runs", "checkpoints"):
        shutil.copytree(whole / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    config = read_json(tmp_path / "runs" / NAME / "config.json")
    config["config"] |= {"runs_dir": str(tmp_path / "runs"), "checkpoints_dir": str(tmp_path / "checkpoints")}
    write_json(tmp_path / "runs" / NAME / "config.json", config)
    return tmp_path


def folders(place):
    return ["--runs-dir", str(place / "runs"), "--checkpoints-dir", str(place / "checkpoints")]


def files_of(place):
    return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def test_every_step_has_its_hashes_and_saved_ones_those_of_their_files(whole):
    found = RunFolder(whole / "runs" / NAME).fingerprints
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert all({*PARTS} <= found[step].keys() for step in found)
    assert [step for step in found if "files" in found[step]] == [2, 4, 5]
    assert set(found[5]["files"]) == {"model.safetensors", "optimizer.safetensors"}
    for part in ("ids", "advantages"):  # steps of which two are alike would prove nothing
        assert len({found[step][part] for step in found}) == 5


@pytest.mark.parametrize("step", [3, 5])
def test_a_repeated_step_is_the_same_and_the_run_stays_as_it_is(place, capsys, step):
    before = files_of(place)
    assert main(["verify", NAME, "--step", str(step), "--output", "result.json"]) == 0
    said = capsys.readouterr().out
    assert said.count("ids the same, rewards the same, advantages the same") == 1
    assert ("model.safetensors the same, optimizer.safetensors the same" in said) == (step == 5)
    assert read_json(place / "result.json")["steps"][0]["same"]["ids"] is True
    (place / "result.json").unlink()
    assert files_of(place) == before


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_record_of_a_step_is_found(place, capsys, part):
    path = place / "runs" / NAME / "fingerprints.jsonl"
    lines = read_jsonl(path)
    write_jsonl(path, [{**line, part: "0" * 64} if line["step"] == 3 and part in line else line for line in lines])
    assert main(["verify", NAME, "--step", "3"]) == DIFFERS
    assert capsys.readouterr().out.count("DIFFERS") == 1


def edit_weights(saved):
    from safetensors.torch import load_file, save_file

    weights = load_file(saved / "model.safetensors")
    weights["model.norm.weight"][0] += 0.5
    save_file(weights, saved / "model.safetensors", {"format": "pt"})


def seal_again(saved):
    save_state(load_state(saved), saved)


def test_a_changed_checkpoint_is_found_in_the_steps_after_it(place, capsys):
    saved = place / "checkpoints" / NAME / "step_000002"
    edit_weights(saved)
    seal_again(saved)
    assert main(["verify", NAME, "--step", "4"]) == DIFFERS
    assert " model.safetensors DIFFERS" in capsys.readouterr().out


def test_a_changed_checkpoint_is_found_in_its_own_step(place, capsys):
    saved = place / "checkpoints" / NAME / "step_000004"
    edit_weights(saved)
    assert main(["verify", NAME, "--step", "4"]) == DIFFERS
    said = capsys.readouterr().out
    assert " model.safetensors the same" in said and said.count("DIFFERS") == 1
    assert "step_000004/model.safetensors DIFFERS" in said and "step_000004/optimizer.safetensors the same" in said
    shutil.rmtree(saved)  # as --keep-checkpoints does
    assert main(["verify", NAME, "--step", "4"]) == 0
    assert "step_000004/" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ids", "reward"])
def test_the_first_token_or_reward_that_differs_is_named(place, capsys, name):
    path = place / "runs" / NAME / "rollouts" / "step_000004.jsonl.gz"
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file]
    was = lines[1][name]
    now = lines[1][name] = [*was[:-1], was[-1] + 1] if name == "ids" else was + 0.5
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    assert main(["verify", NAME, "--step", "4"]) == DIFFERS
    place_of = f" from token {len(was) - 1}: {now[-1:]}, now {was[-1:]}" if name == "ids" else f": {now}, now {was}"
    said = capsys.readouterr().out
    assert f"rollout 2 (train) differs in {name}{place_of}" in said
    assert "DIFFERS" not in said  # the hashes were not edited


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the run first"),
        (["nowhere"], "no run nowhere"),
        ([NAME, "--step", "2"], "has no whole checkpoint of a step before it .it has 2, 4, 5.;"),
        ([NAME, "--step", "9"], "nothing of step 9: it has 1, 2, 3, 4, 5"),
        (["--fork", NAME], "--fork needs RUN@STEP"),
        ([f"--fork={NAME}@3"], "step_000003: no readable trainer.json"),
        ([NAME, f"--fork={NAME}@2", "--step", "3"], "unknown flag sevens-grpo"),
        (["--fork", f"{NAME}@3"], "step_000003: no readable trainer.json; the run has step_000002, step_000004, step"),
        (["--fork", f"{NAME}@2", "--seed", "1"], "a fork has the seed of its run"),
        (["--fork", f"{NAME}@2", "--lora-rank", "4"], "a fork has the adapters of its run"),
        (["--fork", f"{NAME}@2", "--resume", "latest"], "--resume leaves a run as it is"),
    ],
)
def test_wrong_uses_are_one_line(place, arguments, message):
    before = files_of(place)
    with pytest.raises(UserError, match=message) as error:
        main(["verify", *arguments])
    assert "\n" not in str(error.value)
    assert files_of(place) == before


@pytest.mark.parametrize(
    ("missing", "step", "has"),
    [([5], 5, "1, 2, 3, 4"), ([1, 4], 4, "2, 3, 5"), ([*range(1, 6)], 0, "none")],
)
def test_a_step_that_was_never_recorded_is_refused_with_those_that_were(place, missing, step, has):
    shutil.rmtree(place / "checkpoints" / NAME / "step_000005")  # so that recorded steps lie after the last checkpoint
    path = place / "runs" / NAME / "fingerprints.jsonl"
    write_jsonl(path, [line for line in read_jsonl(path) if line["step"] not in missing])
    with pytest.raises(UserError, match=f"has nothing of step {step}: it has {has}$"):
        main(["verify", NAME, "--step", str(step)])


def test_a_killed_run_has_the_hashes_of_one_that_was_not(tmp_path, whole):
    for base in (whole / "checkpoints").glob("base-*"):
        shutil.copytree(base, tmp_path / "checkpoints" / base.name)
    with killed_at(train, "update_policy", 4):
        main(["train", *FLAGS, *folders(tmp_path)])
    assert main(["train", "--resume", "latest", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert RunFolder(tmp_path / "runs" / NAME).fingerprints == RunFolder(whole / "runs" / NAME).fingerprints


def test_a_fork_that_changes_nothing_goes_on_as_the_run_did_and_a_change_is_compared(place, capsys, monkeypatch):
    monkeypatch.setattr("minrl.evaluate.report.draw", lambda *_: [])  # pictures take most of the time
    before = files_of(place)
    assert main(["verify", "--fork", f"{NAME}@2"]) == 0
    differences = read_json(place / "runs" / f"{NAME}-2" / "against/summary.json")["differences"]
    assert [found["difference"] for found in differences] == [0.0]  # on the same examples
    again = place / "runs" / f"{NAME}-2"
    assert RunFolder(again).fingerprints == RunFolder(place / "runs" / NAME).fingerprints
    assert read_json(again / "config.json")["forked_from"] == {"run": str(place / "runs" / NAME), "step": 2}
    # Also at the last step.
    assert main(["verify", "--fork", f"{NAME}@5", "--learning-rate", "0.1", "--steps", "6"]) == 0
    (other,) = (place / "runs").glob("*learning_rate*")
    assert read_json(other / "config.json")["config"]["learning_rate"] == 0.1
    was, now = RunFolder(place / "runs" / NAME).fingerprints, RunFolder(other).fingerprints
    assert {step: now[step] for step in was} == was and sorted(now) == [1, 2, 3, 4, 5, 6]
    assert {path: content for path, content in files_of(place).items() if path in before} == before


def test_steps_from_before_a_later_end_are_repeated_with_the_end_that_they_had(place, capsys):
    """The learning rate falls towards the last step, behind a warmup of five."""
    for steps in ("7", "9"):
        assert main(["train", "--resume", NAME, "--steps", steps]) == 0
    assert main(["verify", NAME, "--step", "7"]) == 0
    assert "optimizer.safetensors the same" in capsys.readouterr().out
    shutil.rmtree(place / "checkpoints" / NAME / "step_000007")  # the steps 7 and 8 have ends of their own
    assert main(["verify", NAME, "--step", "8"]) == 0
    assert "optimizer.safetensors the same" in capsys.readouterr().out


def test_paths_in_the_settings_of_a_fork_hold_in_every_folder(place):
    new = forked(RunFolder(place / "runs" / NAME), 2, ["--algorithm", "distill", "--teacher-id", f"checkpoints/{NAME}"])
    assert new.settings.algorithm.teacher_id == str(place / "checkpoints" / NAME)


def test_a_fork_learns_from_the_teacher_that_it_names_and_not_from_that_of_its_run(place):
    taught = ["--algorithm", "distill", "--steps", "3", "--teacher-id"]
    kept = place / "checkpoints" / NAME
    assert main(["verify", "--fork", f"{NAME}@2", *taught, str(kept / "step_000002")]) == 0
    (first,) = (place / "runs").glob("*teacher_id=step_000002*")
    run = forked(RunFolder(first), 3, [])
    assert run.models["teacher"]["path"] == str(kept / "step_000002")
    run = forked(RunFolder(first), 3, ["--teacher-id", str(kept / "step_000005")])
    assert "teacher" not in run.models and "start model" in run.models
