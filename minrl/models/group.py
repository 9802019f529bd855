"""The processes of a run meet at the launcher's address: in time, with the same settings, each with its own card."""

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from minrl.models.launch import NAMES, Launch
from minrl.models.peers import LostPeer, Peers
from minrl.types import require
from minrl.utils.processor import cpu_cores, own_cores
from minrl.utils.text import first_line

MEET_S = 300.0
"""Until all processes have come. On many nodes the imports from a shared disk take minutes."""

COLLECTIVE_S = 5400.0
"""Until an operation of all processes is given up: the others wait while the first makes a base model, or waits for a
server of vLLM that says nothing (1800 s by default).
"""

ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
"""The variable in which torchrun counts its restarts, whose processes find what the former ones left in the store."""

HOST, PID, CARD, CORES = OWN = ("host", "pid", "card", "cores")
"""Facts of a process that are its own. All others must be the same."""


@dataclass(frozen=True)
class Group:
    """The other processes, watched; None if there are none. `cores` are those of this process alone."""

    peers: Peers | None
    cores: int


def join(launch: Launch, on_cpu: bool, facts: Callable[[], Mapping[str, Any]]) -> Group:
    """Meet the other processes and make torch's process group.

    Raises UserError if some do not come in time, or if they differ in `facts`.
    """
    for name in NAMES:  # accelerate and torch read them, and make a group of one process too
        os.environ.pop(name, None)
    if launch.count == 1:
        return Group(None, cpu_cores())
    os.environ.update(launch.variables)
    if distributed.is_initialized():  # an earlier call met the others
        return Group(None, max(1, cpu_cores() // launch.local_count))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # accelerate warns without it; torch's threads are set later
    card = None if on_cpu else own_card(launch, torch.cuda.device_count())
    if card is not None:
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(card)
        torch.cuda.set_device(card)
    store = _meet(launch)
    told = _exchanged(store, launch, {**facts(), **_own_facts(card)})
    require_one_run(told)
    require_own_cards(told)
    distributed.init_process_group(
        backend="gloo" if on_cpu else "cpu:gloo,cuda:nccl",
        store=distributed.PrefixStore("group", store),
        rank=launch.rank,
        world_size=launch.count,
        timeout=timedelta(seconds=COLLECTIVE_S),
    )
    peers = Peers(launch, store, [f"on {one[HOST]}, pid {one[PID]}" for one in told], MEET_S)
    return Group(peers, share_of_cores(told, launch.rank))


def own_group(members: Sequence[Sequence[int]]) -> distributed.ProcessGroup:
    """This process's group of those that divide the processes; all must ask for the same."""
    group, _ = distributed.new_subgroups_by_enumeration([*map(list, members)], timeout=timedelta(seconds=COLLECTIVE_S))
    assert group is not None
    return group


def own_card(launch: Launch, cards: int) -> torch.device:
    """The card of this process: its own by number, or the only one that it sees, as with srun --gpus-per-task."""
    require(
        cards == 1 or launch.local_count <= cards,
        f"{launch.local_count} processes on this node, and torch finds {cards} cards: start as many processes as "
        "cards, or train on the processor with --device cpu",
    )
    return torch.device("cuda", launch.local_rank if cards > 1 else 0)


def require_one_run(told: Sequence[Mapping[str, Any]]) -> None:
    """Refuse processes that were started differently, naming the first that differs and in what."""
    for rank, one in enumerate(told):
        for name in dict.fromkeys([*told[0], *one]):
            require(
                name in OWN or one.get(name) == told[0].get(name),
                f"process {rank} of {len(told)} (on {one[HOST]}) has {name} {one.get(name)}, and process 0 (on "
                f"{told[0][HOST]}) has {told[0].get(name)}: start all with the same command, code and packages",
            )


def require_own_cards(told: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two processes on one card."""
    taken: dict[tuple[Any, Any], int] = {}
    for rank, one in enumerate(told):
        first = taken.setdefault((one[HOST], one[CARD]), rank)
        require(
            one[CARD] is None or first == rank,
            f"processes {first} and {rank} of {len(told)} have the same card of {one[HOST]}: start as many processes "
            "on a node as it has cards, or train on the processor with --device cpu",
        )


def share_of_cores(told: Sequence[Mapping[str, Any]], rank: int) -> int:
    """How many of its cores a process has to itself: the node's processes may share them, or be bound to their own."""
    own = told[rank]
    sharing = [one for one in told if one[HOST] == own[HOST] and not set(own[CORES]).isdisjoint(one[CORES])]
    return max(1, len(own[CORES]) // max(1, len(sharing)))


def _own_facts(card: torch.device | None) -> dict[str, Any]:
    uuid = None if card is None else str(torch.cuda.get_device_properties(card).uuid)
    return dict(zip(OWN, (socket.gethostname(), os.getpid(), uuid, own_cores()), strict=True))


def _meet(launch: Launch) -> distributed.Store:
    """The store of the processes, at the launcher's address."""
    try:
        store, *_ = next(distributed.rendezvous("env://", timeout=timedelta(seconds=MEET_S)))
    except (RuntimeError, OSError) as error:
        raise LostPeer(
            f"process {launch.rank} of {launch.count} found nobody at {launch.address}:{launch.port} within "
            f"{MEET_S:g} s: {first_line(error)}"
        ) from error
    return distributed.PrefixStore(f"attempt {os.environ.get(ATTEMPT, 0)}", store)


def _exchanged(store: distributed.Store, launch: Launch, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts of all processes, by rank."""
    names = [f"facts/{rank}" for rank in range(launch.count)]
    try:
        store.set(names[launch.rank], json.dumps(facts))
        store.wait(names, timedelta(seconds=MEET_S))
        return [json.loads(store.get(name)) for name in names]
    except RuntimeError as error:
        absent = "others"
        with suppress(RuntimeError):  # the one that holds the store may be gone
            absent = ", ".join(str(rank) for rank, name in enumerate(names) if not store.check([name]))
        raise LostPeer(
            f"of the {launch.count} processes of this run {absent} did not come within {MEET_S:g} s: see what they say"
        ) from error
