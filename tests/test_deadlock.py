"""A process that stays away from an operation of all: the others end when the time limit is over, and so does it."""

import os
import time
from functools import partial
from threading import Event

import pytest
from crew import crew

from minrl.config import ModelConfig
from minrl.models import distributed
from minrl.models.distributed import LostPeer, Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.sharding import hold_whole
from minrl.policy import as_policy
from minrl.run.setup import sharded_policy

LIMIT_S = 4.0
AWAY_S = 120.0
ENDED_S = LIMIT_S + 15.0
"""With what noticing takes, on a busy machine."""


def sharded_model(processes, kind):
    """A policy whose weights are shards."""
    tokenizer = word_tokenizer([f"w{number}" for number in range(60)])
    config = ModelConfig(device="cpu", threads=1)
    load = partial(as_policy, small_qwen3(tokenizer, 64, 2, 2, 0), tokenizer, config, processes)
    return sharded_policy(load, processes, kind)


def whole_weights(processes):
    """An operation on a sharded policy, which is made before."""
    return partial(hold_whole, sharded_model(processes, "full").model)


OPERATIONS = {
    "what the main process decides": lambda processes: partial(processes.on_main, lambda: 1),
    "sharding": lambda processes: partial(sharded_model, processes, "full"),
    "whole weights": whole_weights,
}


def left_alone(name, absent):
    """How this process ends where one does not come to an operation, and after how many seconds."""
    distributed.COLLECTIVE_S, distributed.PATIENCE_S = LIMIT_S, 1.0
    with pytest.raises(LostPeer) as lost, Processes(ModelConfig(device="cpu", threads=1)).open() as processes:
        operation = OPERATIONS[name](processes)
        processes.wait()
        begun = time.monotonic()
        if processes.rank == absent:  # alive, as one that waits for something else, which it is not to do for ever
            with pytest.MonkeyPatch.context() as patch:
                ended = Event()
                patch.setattr(os, "_exit", lambda status: ended.set())
                assert ended.wait(AWAY_S)
        operation()
    return str(lost.value), time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_waits_for_ever(name):
    absent = 0 if name == "whole weights" else 1
    for said, seconds in crew(2, left_alone, name, absent, machines=1):
        assert seconds < ENDED_S
        assert "\n" not in said and ("lost each other" in said or "failed: " in said), said
