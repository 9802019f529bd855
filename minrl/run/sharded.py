"""A policy in all processes, sharded, of which only the main process had a whole copy, in its own memory.

The main process loads and verifies the model as it would alone. The others get its structure, in which every tensor is
on `meta`, and then the tensors one at a time, of which each process keeps its part.
"""

import copy
from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn

from minrl.models.processes import Processes
from minrl.models.sharding import fill, shard
from minrl.policy import Policy
from minrl.types import CausalModel


def sharded_policy(load: Callable[[], Policy], processes: Processes, kind: str) -> Policy:
    """The policy that `load` gives the main process, with its frozen models, sharded. Errors are raised everywhere."""
    loaded: list[Policy] = []

    def structure() -> Policy:
        loaded.append(load())
        return without_storage(loaded[0])

    policy = processes.on_main(structure)
    policy.processes = processes
    for place, model in enumerate(_models(policy)):
        shard(model, processes, kind)
        fill(model, _tensors(_models(loaded[0])[place]) if loaded else None, processes)
    return policy


def _models(policy: Policy) -> list[CausalModel]:
    """The model that is trained, and the frozen ones beside it."""
    return [model for model in (policy.model, policy.reference, policy.teacher) if model is not None]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


def without_storage(policy: Policy) -> Policy:
    """A copy of a policy whose weights are on `meta`, tied where they were tied, and which knows no processes."""
    instead: dict[int, object] = {id(policy.processes): None}
    for tensor in (tensor for model in _models(policy) for tensor in _tensors(model).values()):
        empty = torch.empty_like(tensor, device="meta").detach()
        weight = isinstance(tensor, nn.Parameter)
        instead[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if weight else empty
    return copy.deepcopy(policy, instead)
