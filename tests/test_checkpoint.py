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
from minrl.run.checkpoint import (
    MOMENTS,
    discard_after,
    has_moments,
    hash_files,
    is_whole,
    load_state,
    newest,
    note_scores,
    read_state,
    restore_optimizer,
    save_checkpoint,
    save_policy,
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


def begun(base, processes, settings):
    """The policy and the optimizer of a run that begins with a model."""
    policy, config = load_policy(str(base), CPU, processes), sized(learning_rate=1e-2, **settings)
    if config.lora_rank:
        policy.adapters = Adapters(policy.model, config, str(base), seed=0)
    return policy, make_optimizer(policy, config)


ALONE = {"lora_rank": 4, "lora_checkpoint": "adapter"}


MISSING = find_spec("bitsandbytes") is None
EIGHT_BITS = pytest.param(
    {"optimizer": "adamw8bit"},
    marks=[
        pytest.mark.optim8bit,
        pytest.mark.skipif(MISSING, reason="bitsandbytes is not installed: make setup EXTRA=optim8bit"),
    ],
    id="8 bits",
)


@pytest.mark.parametrize(
    "settings", [{}, {"lora_rank": 4}, ALONE, EIGHT_BITS], ids=["whole", "merged", "adapters alone", None]
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
    assert not any("lora" in name for name in names) and "tasks" not in read_state(path)  # of one task
    assert len(list(path.rglob("adapter_config.json"))) == adapted
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
    restore_optimizer(path, second, restored)
    assert weights_sha256(second) == weights_sha256(first)
    for _ in range(3):
        step(first, optimizer)
        step(second, restored)
    assert weights_sha256(second) == weights_sha256(first)


def test_the_states_of_several_tasks_and_counts_of_steps_come_back_as_they_were(tmp_path, trained):
    """bitsandbytes counts steps in an int, torch in a float32."""
    policy, optimizer = trained
    state = TrainState(step=3, tasks={"a": TrainState(step=2), "b": TrainState(examples_drawn=7)})
    for count in (None, 7):
        for moments in optimizer.state.values() if count else ():
            moments["step"] = count
        path, fresh = (
            save_checkpoint(tmp_path, tmp_path, policy, optimizer, state, sized()),
            make_optimizer(policy, CPU),
        )
        restore_optimizer(path, policy, fresh)
        assert load_state(path) == state
        found = [moments["step"] for moments in fresh.state.values()]
        assert set(map(type, found)) == {int if count else torch.Tensor} and set(map(float, found)) == {count or 1.0}


def test_one_process_alone_writes_and_tied_weights_are_there_once(tmp_path, trained, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "main", False)
        assert save(tmp_path, trained) == tmp_path / "step_000003" and list(tmp_path.iterdir()) == []
    names = set(dict(trained[0].model.named_parameters()))
    assert set(load_file(save(tmp_path, trained) / "model.safetensors")) == names


def test_scores_that_come_after_a_save_are_added_to_it(tmp_path, trained):
    path = save(tmp_path, trained)
    scored = replace(load_state(path), held_out=[[3, 0.75, 0.7, 0.8, 0.75]])
    note_scores(path, scored)
    assert load_state(path) == scored and is_whole(path) and has_moments(path)


def test_a_weight_that_is_not_finite_is_not_saved(tmp_path, trained):
    trained[0].model.model.norm.weight.data[3] = torch.nan
    with pytest.raises(UserError, match=r"^model\.norm\.weight is not finite and is not saved: lower --learning-rate$"):
        save(tmp_path, trained)
    assert list(tmp_path.iterdir()) == []


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
    assert is_whole(last) is False and resolve_model(str(tmp_path)) == str(before)
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


@pytest.mark.parametrize("keep", [0, 2])
def test_the_newest_are_kept(tmp_path, trained, monkeypatch, keep):
    monkeypatch.setattr(checkpoint, "save_policy", lambda *given: None)  # what is in them does not
    monkeypatch.setattr(checkpoint, "save_file", lambda *given: None)
    (tmp_path / ".step_000001.tmp/left").mkdir(parents=True)  # by a kill in its removal
    steps = [*range(1, 5), 999_999, 1_000_000]  # the last has a digit more: the order is that of numbers
    for count, number in enumerate(steps, 1):
        save(tmp_path, trained, number, keep, keep_best=False)
        kept = steps[:count][-keep:]
        assert {path.name for path in tmp_path.glob("step_*")} == {step_name(one) for one in kept}
        assert newest(tmp_path).name == step_name(number)


def test_what_lies_beyond_the_step_that_is_resumed_is_removed(tmp_path, trained):
    for number in (1, 2, 3, 10):
        save(tmp_path, trained, number)
    (tmp_path / ".step_000011.tmp").mkdir()  # half written
    discard_after(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002"]


def test_the_hash_of_a_file_is_that_of_its_tensors(tmp_path):
    """Two metadata entries are in either order in the file, whose bytes then differ."""
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)}
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        save_file(tensors, tmp_path / f"{number}/x.safetensors", {"format": "pt", "made by": str(number)})
    first, second = (hash_files(tmp_path / str(number)) for number in range(2))
    assert first == second and set(first) == {"x.safetensors"}
    others = [{"a": tensors["a"] + 1}, {"a": tensors["a"].to(torch.int32)}, {"a": tensors["a"][None]}]
    for changed in (*({**tensors, **other} for other in others), {"c": tensors["a"], "b": tensors["b"]}):
        save_file(changed, tmp_path / "1/x.safetensors")
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

    def killed(place, *more, **_):
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
