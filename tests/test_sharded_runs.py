"""Whole runs whose weights are sharded: what they save, and what goes on from it in another number of processes."""

import shutil
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from crew import crew
from safetensors.torch import load_file
from torch.profiler import profile

from minrl.__main__ import main
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.sharding import named_weights, sharded_policy
from minrl.policy import as_policy
from minrl.run.checkpoint import is_whole, save_policy
from tests.conftest import CPU
from tests.runs import Run

STEPS = 4


def trained(run, count, *more):
    """The run after train.py in so many processes."""
    assert set(crew(count, main, run.words(*more))) == {0}
    return run


def weights(run, step):
    return load_file(run.checkpoints / f"step_{step:06d}" / "model.safetensors")


def ids(run, step):
    """The tokens of a step's rollouts."""
    return [line["ids"] for line in run.rollouts[f"step_{step:06d}.jsonl.gz"]]


@pytest.fixture
def run(policy, tmp_path):
    save_policy(policy, tmp_path / "model")
    flags = f"""--task countdown --model-id {tmp_path}/model --prompts-per-step 3 --group-size 2 --max-tokens 6
        --learning-rate 1e-3 --warmup-steps 0 --save-every 2 --keep-checkpoints 0 --eval-every 0 --eval-examples 3
        --eval-samples 2 --rollouts-every 1 --threads 1 --device cpu --quiet --no-preflight --sharding full"""
    return Run(tmp_path, flags.split())


@pytest.mark.slow
def test_a_sharded_run_saves_what_one_process_saves(run):
    flags = ("--lora-rank", "4", "--passes-per-step", "2", "--kl-coef", "0.1", "--steps", 2)
    two, one = (trained(replace(run, name=name), count, *flags) for name, count in (("two", 2), ("one", 1)))
    for step in (1, 2):
        assert ids(two, step) == ids(one, step)
    saved = one.checkpoints / "step_000002", two.checkpoints / "step_000002"
    assert is_whole(saved[1])
    files = [{str(path.relative_to(place)) for path in place.rglob("*")} for place in saved]
    assert files[0] == files[1]
    for file in (path for path in files[0] if path.endswith(".safetensors")):
        alone, sharded = (load_file(place / file) for place in saved)
        assert {name: tensor.shape for name, tensor in alone.items()} == {name: sharded[name].shape for name in sharded}
        for name in alone:
            assert torch.allclose(alone[name], sharded[name], rtol=1e-3, atol=1e-6), (file, name)


@pytest.mark.slow
def test_a_sharded_run_is_resumed_bit_for_bit_and_in_another_number_of_processes(run, tmp_path):
    trained(run, 2, "--steps", STEPS)
    for count in (2, 3):
        part = replace(run, place=tmp_path / f"in {count}")  # as if the run had been killed after its second step
        for kind in ("runs", "checkpoints"):
            shutil.copytree(tmp_path / kind, part.place / kind)
        shutil.rmtree(part.checkpoints / f"step_{STEPS:06d}")
        trained(part, count, "--resume", "run")
        if count == 2:
            assert part.summary["weights_sha256"] == run.summary["weights_sha256"]
        for step in (3, 4):
            assert ids(part, step) == ids(run, step)
        expected, found = weights(run, STEPS), weights(part, STEPS)
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-6), (count, name)


def held():
    """The bytes of a deep model, the most that sharding it took in this process, and which processes loaded it."""
    with Processes(CPU).open() as processes:
        loads, words = [], word_tokenizer([f"w{number}" for number in range(60)])

        def once():
            loads.append(processes.rank)
            return as_policy(small_qwen3(words, 64, 12, 2, 0), words, CPU, processes)

        with profile(profile_memory=True) as profiled:
            policy = sharded_policy(once, processes, "full")
        events = sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns())
        taken = accumulate(event.nbytes() for event in events if event.name() == "[memory]")
        return sum(weight.nbytes for weight in named_weights(policy.model).values()), max(taken), loads


@pytest.mark.slow
def test_one_process_loads_the_model_and_the_others_take_their_part_tensor_by_tensor():
    for rank, (whole, peak, loads) in enumerate(crew(3, held)):
        assert loads == ([0] if rank == 0 else [])
        if rank:
            assert whole / 3 <= peak < whole / 2
