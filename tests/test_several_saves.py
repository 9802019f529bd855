"""Sharded models are loaded and saved by one process, and the others neither hold a whole copy nor wait."""

import time
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
from crew import crew
from torch.profiler import profile

from minrl.config import ModelConfig, OptimizerConfig
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.processes import Processes
from minrl.models.sharding import named_weights
from minrl.optimizer import make_optimizer
from minrl.policy import as_policy
from minrl.run import checkpoint
from minrl.run.checkpoint import damage, save_checkpoint
from minrl.run.setup import sharded_policy
from minrl.types import TrainState

CPU = ModelConfig(device="cpu", threads=1)
DEEP = 12


def load(processes, layers=2):
    """A whole policy."""
    tokenizer = word_tokenizer([f"w{number}" for number in range(60)])
    return as_policy(small_qwen3(tokenizer, 64, layers, 2, 0), tokenizer, CPU, processes)


def held():
    """The bytes of a deep model, the most that sharding it took in this process, and how many loaded it."""
    with Processes(CPU).open() as processes:
        loads, policies = [], []

        def once():
            loads.append(processes.rank)
            return load(processes, DEEP)

        with profile(profile_memory=True) as profiled:
            policies.append(sharded_policy(once, processes, "full"))
        events = sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns())
        taken = accumulate(event.nbytes() for event in events if event.name() == "[memory]")
        weights = named_weights(policies[0].model).values()
        return sum(weight.nbytes for weight in weights), max(weight.nbytes for weight in weights), max(taken), loads


@pytest.mark.slow
def test_one_process_loads_the_model_and_the_others_take_their_part_tensor_by_tensor():
    for rank, (whole, largest, peak, loads) in enumerate(crew(3, held)):
        assert loads == ([0] if rank == 0 else [])
        assert 6 * largest < whole / 6  # the transport may let go of a few tensors late
        if rank:
            assert whole / 3 <= peak < whole / 2


def saved(folder, sharding):
    """Whether another process came back from saving before the main one's files were hashed and on the disk."""
    folder, usual, order = Path(folder), checkpoint.hash_files, []
    with Processes(CPU).open() as processes:
        policy = load(processes) if sharding == "none" else sharded_policy(partial(load, processes), processes, "full")
        optimizer = make_optimizer(policy, OptimizerConfig())
        went_on = folder / "went_on"

        def seal(temporary):
            deadline = time.monotonic() + 60
            while not went_on.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            order.append(went_on.exists())
            return usual(temporary)

        checkpoint.hash_files = seal
        place = save_checkpoint(folder, policy, optimizer, TrainState(step=1), keep=0)
        if not processes.main:
            went_on.touch()
        return str(place), order


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_while_the_main_process_hashes_and_flushes_the_others_go_on(tmp_path, sharding):
    (place, order), (same, none) = crew(2, saved, tmp_path, sharding)
    assert place == same == str(tmp_path / "step_000001")
    assert (order, none) == ([True], [])
    assert damage(tmp_path / "step_000001") is None
