"""Checkpoints are whole or not there, and continue where they were made."""

import json
import resource
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file, save_file

from minrl.dataflow import TrainState, UserError
from minrl.models.distributed import Processes
from minrl.models.lora import Adapters
from minrl.optimizer import make_optimizer
from minrl.run import checkpoint
from minrl.run.checkpoint import MOMENTS, has_moments, is_whole, load_state, newest, save_checkpoint, save_policy
from minrl.run.folder import resolve_model, step_name
from minrl.run.setup import load_policy
from tests.conftest import CPU
from tests.killing import killed_at
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


def begun(base, processes, settings):
    """The policy and the optimizer of a run that begins with a model."""
    policy, config = load_policy(str(base), CPU, processes), sized(learning_rate=1e-2, **settings)
    if config.lora_rank:
        policy.adapters = Adapters(policy.model, config, str(base), seed=0)
    return policy, make_optimizer(policy, config)


ALONE = {"lora_rank": 4, "lora_checkpoint": "adapter"}
MISSING = "bitsandbytes is not installed: make setup EXTRA=optim8bit"
EIGHT_BITS = [pytest.mark.optim8bit, pytest.mark.skipif(find_spec("bitsandbytes") is None, reason=MISSING)]


@pytest.mark.parametrize(
    "settings", [{}, {"lora_rank": 4}, ALONE, pytest.param({"optimizer": "adamw8bit"}, marks=EIGHT_BITS)], ids=str
)
def test_what_is_loaded_goes_on_bit_for_bit(tmp_path, policy, processes, settings):
    save_policy(policy, tmp_path / "base")
    adapted = "lora_rank" in settings
    first, optimizer = begun(tmp_path / "base", processes, settings)
    step(first, optimizer)
    first.tokenizer.chat_template += "{# own #}"
    first.model.generation_config.eos_token_id = [5, 2]
    path = save_checkpoint(tmp_path / "kept", tmp_path / "run", first, optimizer, STATE, sized())
    assert path == tmp_path / "kept/step_000003" and is_whole(path) and load_state(path) == STATE
    assert (path / "config.json").exists() == (settings != ALONE)  # alone they are small
    names = [] if settings == ALONE else load_file(path / "model.safetensors")
    assert not any("lora" in name for name in names) and "tasks" not in checkpoint.read_state(path)  # of one task
    place = next(iter(path.rglob("adapter_config.json")), path / "config.json").parent
    assert (place / "chat_template.jinja").read_text() == first.tokenizer.chat_template
    assert json.loads((place / "generation_config.json").read_text())["eos_token_id"] == [5, 2]
    # Whoever loads it has a plain model that says the same.
    loaded, ids = load_policy(str(path), CPU, processes), torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(loaded.model(ids).logits, first.model(ids).logits, atol=1e-5, rtol=0)
    prompt = [{"role": "user", "content": "numbers 1 2"}]
    assert loaded.encode_prompt(prompt) == first.encode_prompt(prompt) and loaded.adapters is None
    # The run that resumes goes on with it.
    second, restored = begun(tmp_path / "base" if adapted else path, processes, settings)
    if adapted:
        second.adapters.load(path)
    checkpoint.restore_optimizer(path, second, restored)
    assert checkpoint.weights_sha256(second) == checkpoint.weights_sha256(first)
    for _ in range(3):
        step(first, optimizer)
        step(second, restored)
    assert checkpoint.weights_sha256(second) == checkpoint.weights_sha256(first)


def test_the_states_of_several_tasks_and_counts_of_steps_come_back_as_they_were(tmp_path, trained):
    """bitsandbytes counts steps in an int, torch in a float32."""
    policy, optimizer = trained
    state = TrainState(step=3, tasks={"a": TrainState(step=2), "b": TrainState(examples_drawn=7)})
    for moments in optimizer.state.values():
        moments["step"] = 7
    path, fresh = save_checkpoint(tmp_path, tmp_path, policy, optimizer, state, sized()), make_optimizer(policy, CPU)
    checkpoint.restore_optimizer(path, policy, fresh)
    assert load_state(path) == state and {repr(moments["step"]) for moments in fresh.state.values()} == {"7"}


def test_one_process_alone_writes_and_tied_weights_are_there_once(tmp_path, trained, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "main", False)
        assert save(tmp_path, trained) == tmp_path / "step_000003" and list(tmp_path.iterdir()) == []
    names = set(dict(trained[0].model.named_parameters()))
    assert set(load_file(save(tmp_path, trained) / "model.safetensors")) == names


def test_scores_that_come_after_a_save_are_added_to_it(tmp_path, trained):
    path = save(tmp_path, trained)
    scored = replace(load_state(path), held_out=[[3, 0.75, 0.7, 0.8, 0.75]])
    checkpoint.note_scores(path, scored)
    assert load_state(path) == scored and is_whole(path) and has_moments(path)


def test_a_weight_that_is_not_finite_is_not_saved(tmp_path, trained):
    trained[0].model.model.norm.weight.data[3] = torch.nan
    with pytest.raises(UserError, match=r"^model\.norm\.weight is not finite and is not saved: lower --learning-rate$"):
        save(tmp_path, trained)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_recognised_and_the_one_before_used(tmp_path, trained, said):
    before, last = save(tmp_path, trained, 3), save(tmp_path, trained, 4)
    assert newest(tmp_path) == last and said == []
    weights = last / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert is_whole(last) is False and resolve_model(str(tmp_path)) == str(before)
    assert len(said) == 1 and f"{last} is damaged; going back" in said[0]
    with pytest.raises(UserError, match=r"step_000004 is damaged: name the one before it"):
        resolve_model(str(last))


@contextmanager
def files_up_to(size):
    """No file grows beyond so many bytes: to whoever writes it is a disk that is full at that byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_save_that_finds_no_room_leaves_the_checkpoint_before_and_nothing_else(tmp_path, trained):
    before = save(tmp_path, trained, 1)
    # Every file's last byte is missing in turn, the smallest's first: what comes before it in the save is whole.
    for size in sorted({file.stat().st_size for file in before.rglob("*") if file.is_file()} - {0}):
        with files_up_to(size - 1), pytest.raises(UserError) as refused:
            save(tmp_path, trained, 2, keep=1)
        assert str(refused.value).startswith(f"cannot write {tmp_path}/.step_000002.tmp")
        assert str(refused.value).endswith(": File too large") and "\n" not in str(refused.value)
        assert list(tmp_path.iterdir()) == [before] and is_whole(before)
    assert save(tmp_path, trained, 2, keep=1) == newest(tmp_path)


def test_the_newest_are_kept_and_what_lies_beyond_the_step_that_is_resumed_is_removed(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(checkpoint, "save_policy", lambda *given: None)  # what is in them does not matter
    monkeypatch.setattr(checkpoint, "save_file", lambda *given: None)
    (tmp_path / ".step_000001.tmp/left").mkdir(parents=True)  # by a kill in its removal
    steps = [*range(1, 5), 999_999, 1_000_000]  # the last has a digit more: the order is that of numbers
    for count, number in enumerate(steps, 1):
        save(tmp_path, trained, number, 2, keep_best=False)
        assert {path.name for path in tmp_path.glob("step_*")} == {step_name(one) for one in steps[:count][-2:]}
        assert newest(tmp_path).name == step_name(number)
    (tmp_path / ".step_1000001.tmp").mkdir()  # half written
    checkpoint.discard_after(tmp_path, 999_999)
    assert [path.name for path in tmp_path.iterdir()] == [step_name(999_999)]


def test_the_hash_of_a_file_is_that_of_its_tensors(tmp_path):
    """Two metadata entries are in either order in the file, whose bytes then differ."""
    given, found = torch.arange(3.0), []
    for tensor in (given, given, given + 1, given.to(torch.int32), given[None]):
        save_file({"a": tensor}, tmp_path / "x.safetensors", {"format": "pt", "made by": str(len(found))})
        found.append(checkpoint.hash_files(tmp_path)["x.safetensors"])
    assert found[0] == found[1] and len(set(found)) == 4


def moments(folder):
    """Which checkpoints are there, and whether each has moments. All are whole."""
    found = {int(path.name[-1]): path for path in sorted(folder.glob("step_*"))}
    assert all(map(is_whole, found.values()))
    return {number: has_moments(path) and (path / MOMENTS).exists() for number, path in found.items()}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"keep": 0}, {1: True, 2: True, 3: True, 4: True}),
        ({"keep": 3, "save_moments": "last"}, {1: False, 2: False, 3: True, 4: True}),
        ({"keep": 2}, {1: False, 3: True, 4: True}),  # the best, which only its score keeps
    ],
)
def test_moments_are_kept_of_the_newest(tmp_path, trained, settings, found):
    for number in (1, 2, 3, 4):
        save(tmp_path, trained, number, **settings)
    assert moments(tmp_path) == found


def test_a_kill_while_moments_are_removed_leaves_whole_checkpoints_and_those_of_the_newest(tmp_path, trained):
    for number in (1, 2):
        save(tmp_path, trained, number, save_moments="last")
    with killed_at(type(tmp_path), "unlink", 1):
        save(tmp_path, trained, 3, save_moments="last")
    assert moments(tmp_path) == {1: False, 2: True, 3: True}
    save(tmp_path, trained, 4, save_moments="last")
    assert moments(tmp_path) == {1: False, 2: False, 3: True, 4: True}
    assert not (tmp_path / "step_000001" / MOMENTS).exists()
    assert json.loads((tmp_path / "step_000001/trainer.json").read_text())["held_out"] == [[1, 0.5, 0.4, 0.6, 0.5]]
