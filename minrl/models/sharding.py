"""Weights sharded over the processes of a run, by torch's FSDP2 (arXiv:2304.11277).

Each process keeps a part of every weight, with its gradient and moments, in float32. Before a layer computes, forward
and backward, its weights are gathered; after it they are freed. Gradients are summed, not averaged, as everywhere here.
Gathering is collective: every process makes as many forward passes, and reads whole weights in the same order.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from minrl.dataflow import CausalModel, require
from minrl.models.distributed import Processes
from minrl.models.modules import recast_linears
from minrl.models.structure import decoder_of, layers_of

R = TypeVar("R")

ROOT = "minrl_sharded"
"""The attribute of a model that holds its `Sharded`. It is no submodule: that would be a cycle."""


class Sharded(nn.Module):
    """The root of a sharded model. What the model computes, decoder and head, is computed in one call of this module,
    before which FSDP gathers the weights that belong to no layer.
    """

    def __init__(self, model: CausalModel) -> None:
        super().__init__()
        self.model = model
        self.weights: dict[str, Tensor] = {}  # the shards, by name: while whole weights are held, the model has these
        self.state: dict[str, Tensor] = {}
        self.groups: list[Any] = []  # modules whose weights are gathered together: this one, then the layers
        self.whole = False

    def forward(self, compute: Callable[..., R], *args: Any) -> R:  # noqa: ANN401 - of any function
        """`compute(model, *args)`."""
        return compute(self.model, *args)


def sharded(model: CausalModel) -> Sharded | None:
    """The root of the model if it is sharded."""
    return vars(model).get(ROOT)


def in_one_pass(model: CausalModel, compute: Callable[..., R], *args: Any) -> R:  # noqa: ANN401
    """`compute(model, *args)`, which may make one forward pass of the decoder and read the head."""
    root = sharded(model)
    if root is None:
        return compute(model, *args)
    if root.whole and torch.is_grad_enabled():  # an optimizer step may follow: whole weights would be old ones
        release_weights(model)
    result = root(compute, *args)
    if not root.whole and not torch.is_grad_enabled():
        root.groups[0].reshard()  # the root's weights, which FSDP keeps for a backward pass
    return result


def shard(model: CausalModel, processes: Processes, kind: str) -> None:
    """Shard a model without storage (on `meta`), and give its shards uninitialised storage: see `load_from_main`."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    known = hasattr(FSDPModule, "set_reduce_scatter_unused_params")
    require(known, f"--sharding needs torch 2.13 or newer, and {torch.__version__} is installed: leave it out")
    root, mesh = Sharded(model), _mesh(processes, kind)
    recast_linears(model)
    for module in dict.fromkeys(layers_of(decoder_of(model))):  # a layer that occurs twice once
        fully_shard(module, mesh=mesh)
    fully_shard(root, mesh=mesh)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            root.groups.append(module)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
            module.set_reduce_scatter_unused_params(True)  # a weight that this process did not use adds 0
    root.to_empty(device=processes.device)
    model.__dict__[ROOT] = root


@torch.no_grad()
def load_from_main(model: CausalModel, values: Mapping[str, Tensor] | None, processes: Processes) -> None:
    """Give a sharded model the main process's whole tensors by name, one at a time. The others have none to give."""
    from torch.distributed import broadcast
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, own in chain(model.named_parameters(), model.named_buffers()):
        full = torch.empty(own.shape, dtype=own.dtype, device=processes.device)
        if values is not None:
            full.copy_(values[name])
        if isinstance(own, DTensor):
            own.to_local().copy_(distribute_tensor(full, own.device_mesh, own.placements).to_local())
        else:
            broadcast(full, 0)
            own.copy_(full)
    root = sharded(model)
    assert root is not None
    root.weights, root.state = dict(model.named_parameters()), model.state_dict(keep_vars=True)


@runtime_checkable
class Models(Protocol):
    """A policy: the model that is trained, and the frozen ones beside it."""

    model: CausalModel
    reference: CausalModel | None
    teacher: CausalModel | None
    processes: Processes


P = TypeVar("P", bound=Models)


def sharded_policy(load: Callable[[], P], processes: Processes, kind: str) -> P:
    """The policy that `load` gives the main process, with its frozen models, sharded. The others get its structure, in
    which every tensor is on `meta`, and then the tensors one at a time, of which each process keeps its part. Errors
    are raised everywhere.
    """
    loaded: list[P] = []

    def structure() -> P:
        loaded.append(load())
        return without_storage(loaded[0])

    policy = processes.on_main(structure)
    policy.processes = processes
    for number, model in enumerate(_models(policy)):
        shard(model, processes, kind)
        load_from_main(model, _tensors(_models(loaded[0])[number]) if loaded else None, processes)
    return policy


def _models(policy: Models) -> list[CausalModel]:
    """The model that is trained, and the frozen ones beside it."""
    return [model for model in (policy.model, policy.reference, policy.teacher) if model is not None]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


def without_storage(policy: P) -> P:
    """A copy of a policy whose weights are on `meta`, tied where they were tied, and which knows no processes."""
    instead: dict[int, object] = {id(policy.processes): None}
    for tensor in (tensor for model in _models(policy) for tensor in _tensors(model).values()):
        empty = torch.empty_like(tensor, device="meta").detach()
        weight = isinstance(tensor, nn.Parameter)
        instead[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if weight else empty
    return copy.deepcopy(policy, instead)


def named_weights(model: CausalModel) -> dict[str, Tensor]:
    """The weights by name, tied ones once: those that are trained and saved, even while whole ones are held."""
    root = sharded(model)
    return dict(model.named_parameters()) if root is None else root.weights


def state_of(model: CausalModel) -> dict[str, Tensor]:
    """The state dict, with every name of a tied weight, of what `named_weights` has and of the buffers."""
    root = sharded(model)
    return model.state_dict(keep_vars=True) if root is None else root.state


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor; a sharded one gathered. All processes must call it together."""
    gather = getattr(tensor.detach(), "full_tensor", None)
    return tensor if gather is None else gather()


@torch.no_grad()
def gathered(tensors: Iterable[tuple[str, Tensor]], keep: bool) -> dict[str, Tensor]:
    """`whole` of each named tensor, one at a time: the model's own whole weights where they are, all else on the CPU.
    Empty for a process that keeps none, which must call it all the same.
    """
    kept: dict[str, Tensor] = {}
    names: dict[Tensor, str] = {}  # a tied weight has several, and is gathered once
    for name, tensor in tensors:
        own = isinstance(tensor, nn.Parameter)  # all else, such as a merged weight, is not kept on a GPU
        first = names.setdefault(tensor, name) if own else name
        full = full_tensor(tensor) if first == name else None
        if keep:
            kept[name] = kept[first] if full is None else full if own and full is tensor else full.cpu()
    return kept


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor that all processes have, sharded as `like` is."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    placed: Any = like
    return distribute_tensor(tensor.to(placed.device), placed.device_mesh, placed.placements, src_data_rank=None)


def gather_weights(model: CausalModel) -> None:
    """Gather all weights, a layer at a time, until `release_weights`. A no-op if nothing is sharded."""
    if (root := sharded(model)) is not None:
        for module in root.groups:
            module.reshard()  # what is whole already may be of before an update
            module.unshard()
            module.set_reshard_after_forward(False, recurse=False)
        root.whole = True


def release_weights(model: CausalModel) -> None:
    """Free what `gather_weights` gathered."""
    if (root := sharded(model)) is not None:
        for module in root.groups:
            module.reshard()
            module.set_reshard_after_forward(module is not root, recurse=False)
        root.whole = False


@contextmanager
def equal_passes(
    model: CausalModel, processes: Processes, passes: int, blank: Callable[[], tuple[Tensor, Tensor]]
) -> Iterator[None]:
    """Inside, this process makes `passes` forward passes, with backward passes if there are gradients. Weights are cast
    once for all of them, unless the model is sharded: the casts would be a whole model. All processes of a sharded
    model must make as many passes: those with fewer add `blank` passes of weight 0.
    """
    shards = sharded(model) is not None
    most = max(processes.gather([passes])) if shards else passes
    with nullcontext() if shards else processes.autocast(), torch.autocast(processes.device.type, enabled=False):
        yield
    for _ in range(most - passes):
        nothing = 0 * blank()[0].sum()
        if nothing.requires_grad:
            nothing.backward()


def _mesh(processes: Processes, kind: str) -> Any:  # noqa: ANN401 - torch's DeviceMesh
    """All processes in a row; for `hybrid` the processes of each machine, whose shards the machines repeat."""
    from torch.distributed.device_mesh import init_device_mesh

    device, count, local = processes.device.type, processes.count, processes.local_count
    if kind == "full":
        return init_device_mesh(device, (count,), mesh_dim_names=("shard",))
    return init_device_mesh(device, (count // local, local), mesh_dim_names=("replicate", "shard"))
