"""Whole runs whose weights are sharded: what they save, and what goes on from it in another number of processes."""

import gzip
import json
import pickle
import shutil

import pytest
import torch
from crew import crew
from safetensors.torch import load_file

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.models.lora import Adapters
from minrl.models.sharding import without_storage
from minrl.run.checkpoint import is_whole, save_policy
from tests.parsed import sized

STEPS = 4


def trained(folder, count, *flags):
    """The exit status of a run of train.py in so many processes."""
    common = (
        f"--task countdown --model-id {folder}/model --runs-dir {folder}/runs --checkpoints-dir {folder}/checkpoints "
        "--prompts-per-step 3 --group-size 2 --max-tokens 6 --learning-rate 1e-3 --warmup-steps 0 --save-every 2 "
        "--keep-checkpoints 0 --eval-every 0 --eval-examples 3 --eval-samples 2 --rollouts-every 1 --threads 1 "
        "--device cpu --quiet --no-preflight"
    )
    statuses = crew(count, main, ["train", *([] if "--resume" in flags else common.split()), *map(str, flags)])
    assert set(statuses) == {0}


def summary(folder, name):
    return json.loads((folder / "runs" / name / "summary.json").read_text())


def weights(folder, name, step):
    return load_file(folder / "checkpoints" / name / f"step_{step:06d}" / "model.safetensors")


def ids(folder, name, step):
    """The tokens of a step's rollouts."""
    with gzip.open(folder / "runs" / name / "rollouts" / f"step_{step:06d}.jsonl.gz", "rt") as lines:
        return [line["ids"] for line in map(json.loads, lines)]


@pytest.fixture
def folder(policy, tmp_path):
    save_policy(policy, tmp_path / "model")
    return tmp_path


@pytest.mark.slow
def test_a_sharded_run_saves_what_one_process_saves(folder):
    flags = ("--lora-rank", "4", "--passes-per-step", "2", "--kl-coef", "0.1")
    trained(folder, 2, "--run-name", "two", "--sharding", "full", "--steps", 2, *flags)
    trained(folder, 1, "--run-name", "one", "--sharding", "full", "--steps", 2, *flags)
    for step in (1, 2):
        assert ids(folder, "two", step) == ids(folder, "one", step)
    saved = {name: folder / "checkpoints" / name / "step_000002" for name in ("one", "two")}
    assert is_whole(saved["two"])
    files = [{str(path.relative_to(place)) for path in place.rglob("*")} for place in saved.values()]
    assert files[0] == files[1]
    for file in (path for path in files[0] if path.endswith(".safetensors")):
        one, two = load_file(saved["one"] / file), load_file(saved["two"] / file)
        assert {name: tensor.shape for name, tensor in one.items()} == {name: two[name].shape for name in two}
        for name in one:
            assert torch.allclose(one[name], two[name], rtol=1e-3, atol=1e-6), (file, name)


@pytest.mark.slow
def test_a_sharded_run_goes_on_bit_for_bit_and_in_another_number_of_processes(folder):
    flags = ("--sharding", "full", "--steps")
    trained(folder, 2, "--run-name", "whole", *flags, STEPS)
    for count in (2, 3):
        part = folder / f"in {count}"  # as if the run had been killed after its second step
        for kind in ("runs", "checkpoints"):
            shutil.copytree(folder / kind, part / kind)
        shutil.rmtree(part / "checkpoints" / "whole" / f"step_{STEPS:06d}")
        places = "--runs-dir", part / "runs", "--checkpoints-dir", part / "checkpoints"
        trained(folder, count, "--resume", "whole", *places)
        if count == 2:
            assert summary(part, "whole")["weights_sha256"] == summary(folder, "whole")["weights_sha256"]
        for step in (3, 4):
            assert ids(part, "whole", step) == ids(folder, "whole", step)
        expected, found = weights(folder, "whole", STEPS), weights(part, "whole", STEPS)
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-6), (count, name)


@pytest.fixture
def adapted_in_bfloat16(policy):
    """Adapters in a model whose frozen weights are held in two bytes."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.copy_(weight.bfloat16())
    policy.adapters = Adapters(policy.model, sized(lora_rank=4), "base", seed=0)
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.bfloat16, torch.float32}
    return policy


@pytest.mark.slow
def test_a_frozen_opponent_is_found_by_all_processes(tmp_path):
    """The main process alone has loaded the start model, which the others play against too."""
    flags = (
        f"--task tictactoe --tictactoe.opponent frozen --base-steps 2  --runs-dir {tmp_path}/runs "
        f"--checkpoints-dir {tmp_path}/checkpoints --prompts-per-step 2 --group-size 2 --max-tokens 6 --eval-every 0 "
        "--eval-examples 2 --eval-samples 2 --threads 1 --device cpu --quiet --no-preflight --sharding full --steps 1"
    )
    assert crew(2, main, ["train", *flags.split()]) == [0, 0]


def test_a_policy_with_held_weights_has_a_structure_to_send(adapted_in_bfloat16):
    """Other processes get the modules without their tensors."""
    sent = pickle.loads(pickle.dumps(without_storage(adapted_in_bfloat16)))
    for (name, own), (other, theirs) in zip(
        adapted_in_bfloat16.model.named_modules(), sent.model.named_modules(), strict=True
    ):
        assert (name, type(own)) == (other, type(theirs))
    assert all(weight.is_meta for weight in sent.model.parameters())
    assert sent.model.get_input_embeddings().weight is sent.model.get_output_embeddings().weight


def test_moments_in_8_bits_are_not_sharded():
    with pytest.raises(UserError, match="--optimizer adamw8bit takes whole weights only"):
        sized(sharding="full", optimizer="adamw8bit")
