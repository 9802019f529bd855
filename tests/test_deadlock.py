"""A process that stays away from an operation of all: the others end when the time limit is over, and then it does."""

import time
from functools import partial

import pytest
from crew import crew

from minrl.models import distributed
from minrl.models.distributed import LostPeer, Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.sharding import gather_weights, sharded_policy
from minrl.policy import as_policy
from tests.parsed import sized

LIMIT_S = 4.0
ENDED_S = LIMIT_S + 15.0
"""With what noticing takes, on a busy machine."""


def sharded_model(processes, kind):
    """A policy whose weights are shards."""
    tokenizer = word_tokenizer([f"w{number}" for number in range(60)])
    config = sized(device="cpu", threads=1)
    load = partial(as_policy, small_qwen3(tokenizer, 64, 2, 2, 0), tokenizer, config, processes)
    return sharded_policy(load, processes, kind)


def whole_weights(processes):
    """An operation on a sharded policy, which is made before."""
    return partial(gather_weights, sharded_model(processes, "full").model)


OPERATIONS = {
    "what the main process decides": lambda processes: partial(processes.on_main, lambda: 1),
    "sharding": lambda processes: partial(sharded_model, processes, "full"),
    "whole weights": whole_weights,
}


def left_alone(name, absent):
    """How this process ends where one does not come to an operation, and after how many seconds."""
    distributed.COLLECTIVE_S = LIMIT_S
    with pytest.raises(LostPeer) as lost, Processes(sized(device="cpu", threads=1)).open() as processes:
        operation = OPERATIONS[name](processes)
        processes.wait()
        begun = time.monotonic()
        if processes.rank == absent:  # alive, as one that waits for something else
            time.sleep(LIMIT_S + 2.0)
        operation()
    return str(lost.value), time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_waits_for_ever(name):
    absent = 0 if name == "whole weights" else 1
    for said, seconds in crew(2, left_alone, name, absent, machines=1):
        assert seconds < ENDED_S
        assert "\n" not in said and "lost each other" in said, said
