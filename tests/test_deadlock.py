"""A process that stays away from an operation of all: the others end when the time limit is over, and so does it."""

import os
import time
from functools import partial
from threading import Event

import pytest
import torch
from crew import crew

from minrl.config import ModelConfig
from minrl.models import distributed
from minrl.models.distributed import LostPeer, Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.sharding import hold_whole, sharded
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


def of_weights(kind, read):
    """An operation on a sharded policy, which is made before."""

    def prepared(processes):
        policy = sharded_model(processes, kind)
        return partial(read, policy)

    return prepared


def backward(policy):
    """Gradients are summed while the layers' weights are gathered again."""
    policy.score(policy._any_tokens(3), 1.0)[0].sum().backward()


OPERATIONS = {
    "sum": lambda processes: partial(processes.sum, torch.ones(3)),
    "what the main process decides": lambda processes: partial(processes.on_main, lambda: 1),
    "sharding": lambda processes: partial(sharded_model, processes, "full"),
    "backward pass of machines": of_weights("hybrid", backward),
    "whole weights": of_weights("full", lambda policy: hold_whole(policy.model)),
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
    absent = 1 if name in ("sharding", "what the main process decides") else 0
    for said, seconds in crew(2, left_alone, name, absent, machines=1):
        assert seconds < ENDED_S
        assert "\n" not in said and ("lost each other" in said or "failed: " in said), said


def limits(kind):
    """The time limit of each group of processes that a sharded model's operations use."""
    with Processes(ModelConfig(device="cpu", threads=1)).open() as processes:
        root = sharded(sharded_model(processes, kind).model)
        mesh = next(iter(root.weights.values())).device_mesh
        names = mesh.mesh_dim_names
        groups = [mesh.get_group(name) for name in names]
        return names, [one._get_backend(torch.device("cpu")).options._timeout.total_seconds() for one in groups]


@pytest.mark.slow
def test_all_groups_of_processes_have_one_time_limit():
    assert crew(2, limits, "full") == [(("shard",), [distributed.COLLECTIVE_S])] * 2
    for machines in (1, 2):
        found = crew(2, limits, "hybrid", machines=machines)
        assert found == [(("replicate", "shard"), [distributed.COLLECTIVE_S] * 2)] * 2
