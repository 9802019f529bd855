"""Checkpoints are whole or not there, and continue where they were made."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from minrl.dataflow import TrainState, UserError
from minrl.optimizer import make_optimizer
from minrl.run import checkpoint
from minrl.run.checkpoint import (
    MOMENTS,
    discard_after,
    has_moments,
    hash_files,
    is_whole,
    load_state,
    newest,
    restore_optimizer,
    save_checkpoint,
    weights_sha256,
)
from minrl.run.folder import resolve_model, step_name
from minrl.run.setup import load_policy
from minrl.utils import files
from tests.conftest import CPU
from tests.parsed import sized

STATE = TrainState(step=3, examples_drawn=24, policy_version=5, sampled_tokens=99, seconds=1.5, baselines={"a": 0.5})


@pytest.fixture
def trained(policy):
    """A policy and an optimizer that have taken a step."""
    optimizer = make_optimizer(policy, sized())
    step(policy, optimizer)
    return policy, optimizer


def step(policy, optimizer):
    policy.model(torch.tensor([[5, 6, 7]])).logits.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def save(folder, trained, number=3, keep=0, **more):
    state = TrainState(step=number, held_out=[[1, 0.5, 0.4, 0.6, 0.5]])  # of step 1 alone
    return save_checkpoint(folder, folder, *trained, state, sized(keep_checkpoints=keep, **more))


def test_what_is_loaded_goes_on_bit_for_bit(tmp_path, trained, processes):
    policy, optimizer = trained
    path = save_checkpoint(tmp_path, tmp_path, policy, optimizer, STATE, sized())
    assert path == tmp_path / "step_000003"
    other = load_policy(str(path), CPU, processes)
    fresh = make_optimizer(other, sized())
    restore_optimizer(path, other, fresh)
    assert weights_sha256(other) == weights_sha256(policy) and load_state(path) == STATE
    prompt = [{"role": "user", "content": "numbers 1 2"}]
    assert other.encode_prompt(prompt) == policy.encode_prompt(prompt) and other.stop_ids == policy.stop_ids
    for _ in range(3):
        step(policy, optimizer)
        step(other, fresh)
    assert weights_sha256(other) == weights_sha256(policy)


@pytest.mark.parametrize(
    ("name", "harm"), [("model.safetensors", "torn"), ("optimizer.safetensors", "gone"), ("trainer.json", "empty")]
)
def test_a_damaged_checkpoint_is_recognised_and_the_one_before_used(tmp_path, trained, said, name, harm):
    before, last = save(tmp_path, trained, 3), save(tmp_path, trained, 4)
    assert newest(tmp_path) == last and said == []
    content = (last / name).read_bytes()
    if harm == "gone":
        (last / name).unlink()
    else:
        (last / name).write_bytes(content[: len(content) // 2] if harm == "torn" else b"")
    assert not is_whole(last) and resolve_model(str(tmp_path)) == str(before)
    assert len(said) == 1 and f"{last} is damaged; going back" in said[0]
    with pytest.raises(UserError, match=r"step_000004 is damaged: name the one before it"):
        resolve_model(str(last))


@pytest.mark.parametrize("moment", ["save_file", "fsync"])
def test_a_save_that_is_cut_off_leaves_the_checkpoint_before(tmp_path, trained, monkeypatch, moment):
    before = save(tmp_path, trained, 3)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files if moment == "fsync" else checkpoint, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, trained, 4, keep=1)
    assert list(tmp_path.iterdir()) == [before]
    assert newest(tmp_path) == before
    assert save(tmp_path, trained, 4, keep=1) == newest(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


def test_all_of_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_the_name_before_it_is_told(
    tmp_path, trained, monkeypatch
):
    flushed, descriptors, usual = [], set(), checkpoint.save_policy

    def with_a_folder(policy, folder, *rest):
        usual(policy, folder, *rest)
        (folder / "templates").mkdir()
        (folder / "templates" / "tools.jinja").write_text("tools")

    def flush(descriptor):
        descriptors.add(descriptor)
        flushed.append((os.fstat(descriptor).st_ino, [one.name for one in kept.iterdir()]))

    monkeypatch.setattr(checkpoint, "save_policy", with_a_folder)
    monkeypatch.setattr(os, "fsync", flush)
    kept = tmp_path / "not" / "there" / "yet"
    path = save(kept, trained)
    written = {one.stat().st_ino for one in (path, *path.rglob("*"))}
    assert {number for number, names in flushed if names == [".step_000003.tmp"]} >= written
    assert flushed[-1] == (kept.stat().st_ino, [path.name])
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):  # closed
            os.fstat(descriptor)


@pytest.mark.parametrize("keep", [0, 2])
def test_the_newest_are_kept(tmp_path, trained, monkeypatch, keep):
    monkeypatch.setattr(checkpoint, "save_policy", lambda *given: None)  # what is in them does not
    monkeypatch.setattr(checkpoint, "save_file", lambda *given: None)
    steps = [*range(1, 5), 999_999, 1_000_000]  # the last has a digit more: the order is that of numbers
    for count, number in enumerate(steps, 1):
        save(tmp_path, trained, number, keep, keep_best=False)
        kept = steps[:count][-keep:]
        assert {path.name for path in tmp_path.iterdir()} == {step_name(one) for one in kept}
        assert newest(tmp_path).name == step_name(number)


def test_what_lies_beyond_the_step_that_is_resumed_is_removed(tmp_path, trained):
    for number in (1, 2, 3, 10):
        save(tmp_path, trained, number)
    (tmp_path / ".step_000011.tmp").mkdir()  # half written
    discard_after(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002"]


def test_a_kill_while_a_checkpoint_is_removed_leaves_no_half_of_one(tmp_path, trained, monkeypatch):
    save(tmp_path, trained, 3)
    usual = shutil.rmtree

    def killed(path, **more):
        if more:
            return usual(path, **more)
        (path / "trainer.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, trained, 4, keep=1)
    assert newest(tmp_path) == tmp_path / "step_000004"
    discard_after(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


def test_the_hash_of_a_file_is_that_of_its_tensors(tmp_path):
    """Two metadata entries are in either order in the file, whose bytes then differ."""
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)}
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        save_file(tensors, tmp_path / f"{number}/x.safetensors", {"format": "pt", "made by": str(number)})
    first, second = (hash_files(tmp_path / str(number)) for number in range(2))
    assert first == second and set(first) == {"x.safetensors"}
    for changed in ({"a": tensors["a"] + 1}, {"a": tensors["a"].to(torch.int32)}, {"a": tensors["a"][None]}):
        save_file({**tensors, **changed}, tmp_path / "1/x.safetensors")
        assert hash_files(tmp_path / "1") != first


def moments(folder):
    """Which checkpoints are there, and whether each has moments. All are whole."""
    found = {int(path.name[-1]): path for path in sorted(folder.glob("step_*"))}
    assert all(map(is_whole, found.values()))
    return {number: has_moments(path) and (path / MOMENTS).exists() for number, path in found.items()}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"keep": 0}, {1: True, 2: True, 3: True, 4: True}),
        ({"keep": 0, "save_moments": "last"}, {1: False, 2: False, 3: True, 4: True}),
        ({"keep": 3, "save_moments": "last"}, {1: False, 2: False, 3: True, 4: True}),
        ({"keep": 2}, {1: False, 3: True, 4: True}),  # the best, which only its score keeps
        ({"keep": 2, "keep_best": False}, {3: True, 4: True}),
    ],
)
def test_moments_are_kept_of_the_newest(tmp_path, trained, settings, found):
    for number in (1, 2, 3, 4):
        save(tmp_path, trained, number, **settings)
    assert moments(tmp_path) == found


@pytest.mark.parametrize("moment", ["_remove_moments", "_write_state", "unlink"])
def test_a_kill_while_moments_are_removed_leaves_whole_checkpoints_and_those_of_the_newest(
    tmp_path, trained, monkeypatch, moment
):
    for number in (1, 2):
        save(tmp_path, trained, number, save_moments="last")

    def killed(place, *more):
        if moment != "_write_state" or place == tmp_path / "step_000001":
            raise KeyboardInterrupt
        usual(place, *more)

    usual = checkpoint._write_state
    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path) if moment == "unlink" else checkpoint, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, trained, 3, save_moments="last")
    assert moments(tmp_path) == {1: moment != "unlink", 2: True, 3: True}
    save(tmp_path, trained, 4, save_moments="last")
    assert moments(tmp_path) == {1: False, 2: False, 3: True, 4: True}
    assert not (tmp_path / "step_000001" / MOMENTS).exists()
    assert json.loads((tmp_path / "step_000001/trainer.json").read_text())["held_out"] == [[1, 0.5, 0.4, 0.6, 0.5]]
