"""Several processes as threads of one: what each computes and what they tell each other is real.

One that raises, leaves early or takes part in another operation than the others fails them all, where real processes
would wait.
"""

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from minrl.models.distributed import Processes
from tests.parsed import sized

T = TypeVar("T")


class Member(Processes):
    """One of `count` processes."""

    rank, count, main = 0, 1, True
    _meeting: "_Meeting | None" = None

    def __init__(self, rank: int, count: int, meeting: "_Meeting") -> None:
        super().__init__(sized(device="cpu", threads=1))
        self.rank, self.count, self.main, self._meeting = rank, count, rank == 0, meeting

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meeting.exchange(self.rank, "sum", values)).sum(0)

    def sum_gradients(self, weights: Sequence[torch.Tensor]) -> None:
        for weight in weights:
            weight.grad = self.sum(torch.zeros_like(weight) if weight.grad is None else weight.grad)

    def gather(self, items: list[Any]) -> list[Any]:
        if self._meeting is None:  # it is made alone
            return items
        shares = self._meeting.exchange(self.rank, "gather", pickle.dumps(items))
        return [item for share in shares for item in pickle.loads(share)]

    def wait(self) -> None:
        self._meeting.exchange(self.rank, "wait", None)


class _Meeting:
    def __init__(self, count: int) -> None:
        self.brought: list[tuple[str, Any]] = [("", None)] * count
        self.barrier = threading.Barrier(count, timeout=120.0)

    def exchange(self, rank: int, operation: str, value: Any) -> list[Any]:
        self.brought[rank] = operation, value
        self.barrier.wait()
        brought = list(self.brought)
        self.barrier.wait()
        assert len({operation for operation, _ in brought}) == 1, f"the processes do not agree: {brought}"
        return [value for _, value in brought]


def together(count: int, make: Callable[[Processes], T], work: Callable[[T], Any]) -> list[Any]:
    """What `work` returns in each of `count` processes for what `make` made there; raises what one of them raised.

    Making is not at the same time, since threads share torch's generator of random numbers.
    """
    meeting = _Meeting(count)
    made = [make(Member(rank, count, meeting)) for rank in range(count)]

    def member(rank: int) -> Any:
        try:
            return work(made[rank])
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(member, rank) for rank in range(count)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
