"""What the processes of a run tell each other."""

import os

import pytest
import torch
from crew import crew

from minrl.dataflow import UserError
from minrl.models import distributed as processes_module
from minrl.models.distributed import Processes, buckets
from tests.parsed import sized


class Unreadable(Exception):
    """Pickled, it cannot be made again."""

    def __init__(self, *, code):
        super().__init__(f"code {code}")


def decided():
    """What each process makes of the main one's decisions."""
    with Processes(sized(device="cpu", threads=1), lambda: {"packages": "the same"}).open() as processes:
        found = [processes.on_main(lambda: ("decided by", processes.rank))]
        for error in (UserError("a wrong use"), Unreadable(code=7)):

            def fail(error=error):
                raise error

            with pytest.raises(Exception) as raised:
                processes.on_main(fail)
            found.append((type(raised.value).__name__, str(raised.value)))
        return processes.rank, found


def test_what_the_main_process_decides_or_raises_all_have():
    found = [("decided by", 0), ("UserError", "a wrong use"), ("RuntimeError", "Unreadable: code 7")]
    assert crew(3, decided) == [(rank, found) for rank in range(3)]


def bound_twice():
    """The cores of a process that is bound to two of its own, in a first and in a second run."""
    processes_module.own_cores = lambda: [2 * int(os.environ["RANK"]), 2 * int(os.environ["RANK"]) + 1]
    runs = [Processes(sized(device="cpu", threads=1)) for _ in range(2)]
    with runs[0].open():
        return [one.cores for one in runs]


def test_a_second_run_in_the_same_processes_has_as_many_cores():
    assert crew(2, bound_twice) == [[2, 2]] * 2


def test_gradients_are_put_together_in_order_by_type_and_size():
    sizes = [(3, torch.float32), (2, torch.float32), (9, torch.float32), (1, torch.float32), (1, torch.float64)]
    weights = [torch.zeros(count, dtype=dtype) for count, dtype in sizes]
    found = [[(len(weight), weight.dtype) for weight in bucket] for bucket in buckets(weights, 20)]
    assert found == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]  # 20 bytes, 36 of a larger one, and another type
    assert list(buckets([], 20)) == []


def summed():
    """The gradients of five weights after their sum, in several buckets."""
    processes_module.BUCKET = 64
    with Processes(sized(device="cpu", threads=1)).open() as processes:
        weights = [torch.nn.Parameter(torch.zeros(2, 4)) for _ in range(5)]
        for number, weight in enumerate(weights):
            if number != 3 * processes.rank:  # a process without a gradient adds 0
                weight.grad = torch.full_like(weight, 10.0**processes.rank * (number + 1))
        processes.sum_gradients(weights)
        return [weight.grad.unique().tolist() for weight in weights]


def test_gradients_are_summed():
    both = [[10.0], [22.0], [33.0], [4.0], [55.0]]  # the first is one process's alone, and so is the fourth
    assert crew(2, summed) == [both] * 2
