"""A step can be repeated from the checkpoint before it, and what was changed is found."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.run.checkpoint import load_state, save_state, thin_out
from minrl.tools.verify import DIFFERS
from minrl.tracking.writers import PARTS
from minrl.utils.files import read_json, read_jsonl, write_json, write_jsonl
from tests.parsed import sized
from tests.runs import Run
from tests.say_sevens import SAY_SEVENS

FLAGS = [*SAY_SEVENS, *str.split("""--prompts-per-step 4 --group-size 8 --steps 3 --save-every 1 --keep-checkpoints 0
    --eval-every 0 --no-eval-first --eval-examples 4 --eval-samples 1 --rollouts-every 2 --threads 1 --device cpu
    --kl-coef 0.01 --no-preflight --quiet""")]  # fmt: skip
NAME = "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, sevens_base):
    """A run of three steps."""
    run = Run(tmp_path_factory.mktemp("whole"), FLAGS).given_base_of(sevens_base)
    assert run.here() == 0
    return run.place


@pytest.fixture
def place(whole, tmp_path, monkeypatch):
    """A copy of it, which is the current folder. No later step is to write to it."""
    for name in ("runs", "checkpoints"):
        shutil.copytree(whole / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_of(place):
    return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def test_a_repeated_step_is_the_same_and_neither_the_run_nor_its_board_changes(place, capsys, monkeypatch):
    config = read_json(place / "runs" / NAME / "config.json")
    write_json(place / "runs" / NAME / "config.json", {**config, "config": {**config["config"], "logger": "wandb"}})
    opened, before = [], files_of(place)
    monkeypatch.setattr("minrl.tracking.writers.Board", lambda *given: opened.append(given))
    assert main(["verify", NAME, "--step", "3"]) == 0
    said = capsys.readouterr().out
    assert said.count("ids the same, rewards the same, advantages the same") == 1
    assert "model.safetensors the same, optimizer.safetensors the same" in said
    assert files_of(place) == before and not opened


def test_a_changed_record_of_a_step_is_found(place, capsys):
    path = place / "runs" / NAME / "fingerprints.jsonl"
    changed = dict.fromkeys(PARTS, "0" * 64)
    write_jsonl(path, [{**line, **changed} if line["step"] == 2 else line for line in read_jsonl(path)])
    assert main(["verify", NAME, "--step", "2"]) == DIFFERS
    assert capsys.readouterr().out.count("DIFFERS") == len(PARTS)


def test_a_changed_checkpoint_is_found_in_the_step_after_it(place, capsys):
    saved = place / "checkpoints" / NAME / "step_000002"
    weights = load_file(saved / "model.safetensors")
    weights["model.norm.weight"][0] += 0.5
    save_file(weights, saved / "model.safetensors", {"format": "pt"})
    save_state(load_state(saved), saved, saved)  # with the hash of the changed weights
    assert main(["verify", NAME, "--step", "3"]) == DIFFERS
    assert " model.safetensors DIFFERS" in capsys.readouterr().out


def test_wrong_uses_are_one_line(place):
    thin_out(place / "checkpoints" / NAME, sized(keep_checkpoints=0, save_moments="last"))  # of 2 and 3
    without = "has no whole checkpoint with optimizer state of a step before it .it has 1, 2, 3.;"
    for step, message in (("2", without), ("9", "nothing of step 9: it has 1, 2, 3")):
        with pytest.raises(UserError, match=message):
            main(["verify", NAME, "--step", step])
