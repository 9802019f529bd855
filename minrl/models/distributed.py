"""Device, precision and the other processes of the run, by accelerate and torch.distributed.

Without a launcher there is one process; accelerate launch, torchrun and srun start several. Each plays a share of the
examples and computes a share of each optimizer step. All of them have all rollouts, and take the same decisions.
"""

import copy
import json
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, distributed
from torch.distributed import all_reduce

from minrl.config import ModelConfig
from minrl.dataflow import UserError, require
from minrl.models.cpu import keep_freed_memory, spin_less_when_busy
from minrl.models.launch import NAMES, Launch, launched
from minrl.models.memory import BUCKET
from minrl.utils.processor import cpu_cores, own_cores
from minrl.utils.signals import tell
from minrl.utils.text import first_line, printable, without_keys

T = TypeVar("T")

MEET_S = 300.0
"""Until all processes have come. On many nodes the imports from a shared disk take minutes."""

COLLECTIVE_S = 5400.0
"""Time limit of a collective operation: the others wait while the first makes a base model, or waits for a server of
vLLM (1800 s by default).
"""

ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
"""The variable in which torchrun counts its restarts, whose processes find what the former ones left in the store."""

HOST, PID, CARD, CORES = OWN = ("host", "pid", "card", "cores")
"""Facts of a process that are its own. All others must be the same."""

LEFT = "left"
"""Says that a process ended in order."""

ABOUT = "process "
"""How a message about another process begins."""

PATIENCE_S = 5.0
"""After another process is gone, until this one exits by force, if no collective operation has failed before."""

GREETING_S = 5.0
"""Until whoever connects has said which process it is."""

LONGEST = 500
"""Characters of a reason."""


class LostPeer(UserError):
    """Another process of the run is gone."""

    status = 1  # the same command may succeed


def buckets(weights: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The weights in order, in lists of one type of at most so many bytes; a larger one is alone."""
    bucket: list[Tensor] = []
    for weight in weights:
        if bucket and (weight.dtype != bucket[0].dtype or sum(w.nbytes for w in bucket) + weight.nbytes > most):
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket


def has_hidden_card(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has an NVIDIA card, which nobody has hidden by CUDA_VISIBLE_DEVICES."""
    return "CUDA_VISIBLE_DEVICES" not in os.environ and any(devices.glob("nvidia[0-9]*"))


class Processes:
    """This process among those of the run, which must all have the same `facts`."""

    def __init__(self, config: ModelConfig, facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda asks for a CUDA card, and torch finds none: use --device cpu")
        on_cpu = config.device == "cpu" or not torch.cuda.is_available()
        if config.device == "auto" and on_cpu and has_hidden_card():
            raise UserError(
                f"this machine has an NVIDIA card that torch {torch.__version__} cannot use: update its driver or "
                "install torch for it (`nvidia-smi` says which CUDA the driver takes), or train on the processor with "
                "--device cpu"
            )
        dtype = config.dtype if config.dtype != "auto" else ("float32" if on_cpu else "bfloat16")
        self.launch = launched(os.environ)
        self._cores, self._watchdog = join(self.launch, on_cpu, facts)
        self._accelerator = Accelerator(cpu=on_cpu, mixed_precision="bf16" if dtype == "bfloat16" else "no")
        self._place: torch.device | None = None
        torch.set_num_threads(config.threads or self._cores)
        keep_freed_memory()
        if on_cpu:
            spin_less_when_busy()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self._place or self._accelerator.device

    def in_main_memory(self) -> "Processes":
        """This process, computing on the CPU: for what has no room on its card yet."""
        other = copy.copy(self)
        other._place = torch.device("cpu")
        return other

    @property
    def dtype(self) -> torch.dtype:
        """Precision of matrix products."""
        return torch.bfloat16 if self._accelerator.mixed_precision == "bf16" else torch.float32

    @property
    def count(self) -> int:
        """The number of processes of the run."""
        return self._accelerator.num_processes

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._accelerator.process_index

    @property
    def main(self) -> bool:
        """Whether this process writes files and the screen."""
        return self._accelerator.is_main_process

    @property
    def cores(self) -> int:
        """The number of cores that this process has to itself."""
        return self._cores

    def autocast(self) -> AbstractContextManager:
        """Matrix products in the configured precision."""
        return self._accelerator.autocast()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._accelerator.reduce(values, "sum")

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        """Replace each gradient by the sum over all processes, in flat buckets: one message each, sent while the next
        is filled. A process without a gradient adds 0. Those of sharded weights were summed in the backward pass.
        """
        weights = [weight for weight in weights if self.count > 1 and not hasattr(weight, "full_tensor")]
        sent = []
        for bucket in buckets(weights, BUCKET):
            grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = torch.cat([grad.flatten() for grad in grads])
            for weight in bucket:
                weight.grad = None  # so that there are never two copies of all gradients
            del grads
            sent.append((bucket, flat, all_reduce(flat, async_op=True)))
        for bucket, flat, handle in sent:
            handle.wait()
            for weight, total in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad = total.view_as(weight)

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all processes, in order of rank."""
        return items if self.count == 1 else gather_object(items)

    def on_main(self, work: Callable[[], T]) -> T:
        """What `work` returns in the main process, in all of them. What it raises there, all raise."""
        result: Any = None
        if self.main:
            try:
                result = work()
            except Exception as error:
                result = error if self.count == 1 else _sendable(error)
        result = self.gather([result])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def share(self, total: int) -> slice:
        """This process's block of `total` items in order. Block sizes differ by one at most; blocks may be empty."""
        return slice(self.rank * total // self.count, (self.rank + 1) * total // self.count)

    def split(self, total: int) -> int:
        """This process's part of a total that the processes divide: at least 1."""
        return max(1, total // self.count)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self._accelerator.wait_for_everyone()

    @contextmanager
    def open(self) -> Iterator["Processes"]:
        """Leave the process group at the end; without this torch aborts when the interpreter ends. Inside, the loss of
        another process is an error of one line.
        """
        watchdog = self._watchdog
        try:
            with watchdog.watched() if watchdog else nullcontext():
                yield self
        finally:
            self._accelerator.end_training()


def _sendable(error: Exception) -> Exception:
    """The error, or one with its text if the other processes could not read it."""
    try:
        pickle.dumps(copy.copy(error))  # which makes it anew, as the others must
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def join(launch: Launch, on_cpu: bool, facts: Callable[[], Mapping[str, Any]]) -> tuple[int, "Watchdog | None"]:
    """Meet the other processes and make torch's process group. Returns the number of cores that this process has to
    itself, and the watchdog of the others.

    Raises UserError if some do not come in time, or if they differ in `facts`.
    """
    for name in NAMES:  # accelerate and torch read them, and make a group of one process too
        os.environ.pop(name, None)
    if launch.count == 1:
        return cpu_cores(), None
    os.environ.update(launch.variables)
    if distributed.is_initialized():  # an earlier call met the others
        return max(1, cpu_cores() // launch.local_count), None
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # accelerate warns without it; torch's threads are set later
    card = None if on_cpu else own_card(launch, torch.cuda.device_count())
    if card is not None:
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(card)
        torch.cuda.set_device(card)
    store = _meet(launch)
    uuid = None if card is None else str(torch.cuda.get_device_properties(card).uuid)
    own = dict(zip(OWN, (socket.gethostname(), os.getpid(), uuid, own_cores()), strict=True))
    everyone = _exchange(store, launch, {**facts(), **own})
    require_one_run(everyone)
    require_own_cards(everyone)
    distributed.init_process_group(
        backend="gloo" if on_cpu else "cpu:gloo,cuda:nccl",
        store=distributed.PrefixStore("group", store),
        rank=launch.rank,
        world_size=launch.count,
        timeout=timedelta(seconds=COLLECTIVE_S),
    )
    watchdog = Watchdog(launch, store, [f"on {one[HOST]}, pid {one[PID]}" for one in everyone])
    return share_of_cores(everyone, launch.rank), watchdog


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


def require_one_run(everyone: Sequence[Mapping[str, Any]]) -> None:
    """Refuse processes that were started differently, naming the first that differs and in what."""
    first = everyone[0]
    for rank, one in enumerate(everyone):
        for name in dict.fromkeys([*first, *one]):
            require(
                name in OWN or one.get(name) == first.get(name),
                f"process {rank} of {len(everyone)} (on {one[HOST]}) has {name} {one.get(name)}, and process 0 (on "
                f"{first[HOST]}) has {first.get(name)}: start all with the same command, code and packages",
            )


def require_own_cards(everyone: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two processes on one card."""
    taken: dict[tuple[Any, Any], int] = {}
    for rank, one in enumerate(everyone):
        first = taken.setdefault((one[HOST], one[CARD]), rank)
        require(
            one[CARD] is None or first == rank,
            f"processes {first} and {rank} of {len(everyone)} have the same card of {one[HOST]}: start as many "
            "processes on a node as it has cards, or train on the processor with --device cpu",
        )


def share_of_cores(everyone: Sequence[Mapping[str, Any]], rank: int) -> int:
    """How many of its cores a process has to itself: the node's processes may share them, or be bound to their own."""
    own = everyone[rank]
    sharing = [one for one in everyone if one[HOST] == own[HOST] and not set(own[CORES]).isdisjoint(one[CORES])]
    return max(1, len(own[CORES]) // max(1, len(sharing)))


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


def _exchange(store: distributed.Store, launch: Launch, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
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


class Watchdog:
    """Notices that another process is gone, by a connection that the kernel closes when the process ends. A collective
    operation notices by itself only while it runs, and not always on GPUs; a launcher kills, and says nothing.

    Process 0 has a connection to each of the others, and passes on what it learns. `names` says where each is.
    """

    def __init__(self, launch: Launch, store: distributed.Store, names: Sequence[str]) -> None:
        self._names, self._lost = names, ""
        self._noticed, self._ended = threading.Event(), threading.Event()
        try:
            self._others = dict(_connections(launch, store))
        except (RuntimeError, OSError) as error:
            raise LostPeer(
                f"process {launch.rank} of {launch.count} could not connect to the others within {MEET_S:g} s, to "
                f"see whether they live: {first_line(error)}"
            ) from error
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell the others how it ends inside. If another process is gone, that is the error."""
        try:
            yield
        except BaseException as error:
            collective = isinstance(error, distributed.DistError) or "gloo" in str(error).lower()
            if collective:  # the operation may fail before the thread knows why
                self._noticed.wait(PATIENCE_S)
            lost = self._lost  # now: whoever is told ends too, which is no reason
            self._end(lost or f"failed: {_reason(error)}")
            if lost or collective:
                raise LostPeer(lost or f"the processes of the run lost each other: {_reason(error)}") from error
            raise
        self._end(LEFT)

    def _end(self, message: str) -> None:
        self._ended.set()
        for connection in self._others:
            with suppress(OSError):  # it is gone too
                connection.sendall(f"{message}\n".encode())

    def _watch(self) -> None:
        left = dict(self._others)
        while left and not self._ended.is_set():
            for connection in wait(list(left), timeout=1.0):
                assert isinstance(connection, socket.socket)
                rank, message = left.pop(connection), _received(connection)
                if message != LEFT and not self._ended.is_set():
                    own = f"{ABOUT}{rank} of {len(self._names)} ({self._names[rank]}) {message or 'is gone'}"
                    self._lost = message if message.startswith(ABOUT) else own
                    self._noticed.set()
                    if not self._ended.wait(PATIENCE_S):
                        self._end(self._lost)
                        tell(f"error: {self._lost}\n")
                        os._exit(LostPeer.status)
                    return


def _connections(launch: Launch, store: distributed.Store) -> Iterator[tuple[socket.socket, int]]:
    """A connection to each other process that is watched from here, with its rank."""
    if launch.rank > 0:
        connection = socket.create_connection((launch.address, int(store.get("watchdog"))), timeout=MEET_S)
        connection.sendall(f"{ABOUT}{launch.rank}\n".encode())
        connection.settimeout(None)
        yield connection, 0
        return
    expected = {f"{ABOUT}{rank}": rank for rank in range(1, launch.count)}
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both) as listener:
        listener.settimeout(MEET_S)
        store.set("watchdog", str(listener.getsockname()[1]))
        while expected:
            connection, _ = listener.accept()
            connection.settimeout(GREETING_S)  # whoever else connects may say nothing
            rank = expected.pop(_received(connection), None)
            connection.settimeout(None)
            if rank is None:
                connection.close()
            else:
                yield connection, rank


def _received(connection: socket.socket) -> str:
    """The next line; empty if the other side is gone."""
    with suppress(OSError), connection.makefile("r", encoding="utf-8", errors="replace") as lines:
        return lines.readline(4 * LONGEST).rstrip("\n")
    return ""


def _reason(error: BaseException) -> str:
    text = first_line(error) if isinstance(error, Exception) else type(error).__name__
    return without_keys(printable(text))[:LONGEST]
