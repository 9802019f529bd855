"""Sharded models are loaded and saved by one process, and the others neither hold a whole copy nor wait."""

from itertools import accumulate

import pytest
from crew import crew
from torch.profiler import profile

from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.sharding import named_weights, sharded_policy
from minrl.policy import as_policy
from tests.parsed import sized

CPU = sized(device="cpu", threads=1)
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
