"""Checkpoints are whole or not there, and continue where they were made."""

import json
from dataclasses import asdict

import pytest
import torch

from minrl import checkpoint
from minrl.checkpoint import (
    MANIFEST,
    TrainState,
    damage,
    discard_after,
    find_checkpoint,
    load_state,
    newest_complete,
    restore_optimizer,
    save_checkpoint,
    step_name,
    weights_sha256,
)
from minrl.config import OptimizerConfig
from minrl.optimizer import make_optimizer
from minrl.policy import load_policy
from minrl.types import UserError
from tests.conftest import CPU

STATE = TrainState(step=3, examples_drawn=24, policy_version=5, sampled_tokens=99, seconds=1.5, baselines={"a": 0.5})


@pytest.fixture
def trained(policy):
    """A policy and an optimizer that have taken a step."""
    optimizer = make_optimizer(policy, OptimizerConfig())
    step(policy, optimizer)
    return policy, optimizer


def step(policy, optimizer):
    policy.model(torch.tensor([[5, 6, 7]])).logits.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def save(folder, trained, number=3, keep=0):
    return save_checkpoint(folder, *trained, TrainState(step=number), keep)


def test_what_is_loaded_goes_on_bit_for_bit(tmp_path, trained, processes):
    policy, optimizer = trained
    path = save_checkpoint(tmp_path, policy, optimizer, STATE, keep=0)
    assert path == tmp_path / "step_000003"
    other = load_policy(str(path), CPU, processes)
    fresh = make_optimizer(other, OptimizerConfig())
    restore_optimizer(path, other, fresh)
    assert weights_sha256(other) == weights_sha256(policy)
    for _ in range(3):
        step(policy, optimizer)
        step(other, fresh)
    assert weights_sha256(other) == weights_sha256(policy)


def test_without_the_optimizers_moments_it_would_not(tmp_path, trained, processes):
    policy, optimizer = trained
    other = load_policy(str(save(tmp_path, trained)), CPU, processes)
    step(policy, optimizer)
    step(other, make_optimizer(other, OptimizerConfig()))
    assert weights_sha256(other) != weights_sha256(policy)


def test_the_state_goes_to_the_disk_and_back(tmp_path, trained):
    assert load_state(save_checkpoint(tmp_path, *trained, STATE, keep=0)) == STATE
    assert TrainState.from_dict(json.loads(json.dumps(asdict(STATE)))) == STATE


def test_a_tokenizer_and_its_template_come_back(tmp_path, trained, processes):
    policy = trained[0]
    other = load_policy(str(save(tmp_path, trained)), CPU, processes)
    prompt = [{"role": "user", "content": "numbers 1 2"}]
    assert other.encode_prompt(prompt) == policy.encode_prompt(prompt)
    assert other.stop_ids == policy.stop_ids


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "trainer.json", "tokenizer.json"])
@pytest.mark.parametrize("harm", ["torn", "flipped", "gone", "empty"])
def test_a_damaged_checkpoint_is_recognised_and_the_one_before_used(tmp_path, trained, name, harm):
    before, last = save(tmp_path, trained, 3), save(tmp_path, trained, 4)
    assert newest_complete(tmp_path) == last
    content = (last / name).read_bytes()
    middle = len(content) // 2
    if harm == "gone":
        (last / name).unlink()
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (last / name).write_bytes({"torn": content[:middle], "flipped": flipped, "empty": b""}[harm])
    assert name in damage(last)
    assert newest_complete(tmp_path) == find_checkpoint(tmp_path) == before
    with pytest.raises(UserError, match=r"is damaged .* name the one before it"):
        find_checkpoint(last)


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"trainer.json": "0"}', "\xff", ""])
def test_a_manifest_that_lists_no_whole_checkpoint_is_damage(tmp_path, trained, text):
    before, last = save(tmp_path, trained, 3), save(tmp_path, trained, 4)
    (last / MANIFEST).write_bytes(text.encode("latin-1"))
    assert MANIFEST in damage(last)
    assert newest_complete(tmp_path) == before


def test_a_folder_in_the_place_of_a_file_is_damage(tmp_path, trained):
    last = save(tmp_path, trained)
    (last / "trainer.json").unlink()
    (last / "trainer.json").mkdir()
    assert damage(last) == "trainer.json is missing"


@pytest.mark.parametrize("content", [None, "", "{", '{"model.safetensors"'])
def test_without_its_manifest_a_folder_is_no_checkpoint(tmp_path, trained, content):
    before, last = save(tmp_path, trained, 3), save(tmp_path, trained, 4)
    (last / MANIFEST).unlink()
    if content is not None:
        (last / MANIFEST).write_text(content)
    assert newest_complete(tmp_path) == before


@pytest.mark.parametrize("moment", ["save_policy", "save_optimizer", "_seal", "_fsync"])
def test_a_save_that_is_cut_off_leaves_the_checkpoint_before(tmp_path, trained, monkeypatch, moment):
    before = save(tmp_path, trained, 3)
    kept = monkeypatch.context

    def killed(*_):
        raise KeyboardInterrupt

    with kept() as patch:
        patch.setattr(checkpoint, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, trained, 4, keep=1)
    assert newest_complete(tmp_path) == before
    assert newest_complete(tmp_path / "nowhere") is None
    assert save(tmp_path, trained, 4, keep=1) == newest_complete(tmp_path)  # what was left over is in nobody's way
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 4, 5, 10])
def test_the_newest_are_kept(tmp_path, trained, monkeypatch, keep):
    monkeypatch.setattr(checkpoint, "save_policy", lambda policy, folder: None)  # what is in them does not matter here
    monkeypatch.setattr(checkpoint, "save_optimizer", lambda optimizer, policy, path: path.write_bytes(b""))
    steps = [*range(1, 11), 999_999, 1_000_000]  # the last has a digit more: the order is that of numbers
    for count, number in enumerate(steps, 1):
        save(tmp_path, trained, number, keep)
        kept = steps[:count][-keep:]
        assert {path.name for path in tmp_path.iterdir()} == {step_name(one) for one in kept}
        assert newest_complete(tmp_path).name == step_name(number)


def test_saving_a_step_again_replaces_it(tmp_path, trained):
    save(tmp_path, trained, 3)
    step(*trained)
    again = save(tmp_path, trained, 3)
    assert damage(again) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step_000003"]


def test_what_lies_beyond_the_step_that_is_resumed_is_set_aside(tmp_path, trained):
    for number in (1, 2, 3, 10):
        save(tmp_path, trained, number)
    (tmp_path / ".step_000011.tmp").mkdir()  # half written
    discard_after(tmp_path, 2)
    aside = ["step_000003.damaged", "step_000010.damaged"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002", *aside]
    # Nothing takes what is set aside for a checkpoint, and a second one of the step takes another name.
    assert newest_complete(tmp_path) == tmp_path / "step_000002"
    save(tmp_path, trained, 3)
    discard_after(tmp_path, 2)
    assert (tmp_path / "step_000003.damaged-2").is_dir() and (tmp_path / "step_000003.damaged").is_dir()


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        find_checkpoint(tmp_path)


def test_the_hash_is_of_the_weights_and_of_nothing_else(make_policy):
    policy, same, other = make_policy(0), make_policy(0), make_policy(1)
    assert weights_sha256(policy) == weights_sha256(same) != weights_sha256(other)
    with torch.no_grad():
        policy.model.model.norm.weight[0] = torch.nextafter(policy.model.model.norm.weight[0], torch.tensor(9.0))
    assert weights_sha256(policy) != weights_sha256(same)
