"""What the processes of a run tell each other."""

import os

import pytest
from crew import crew

from minrl.config import ModelConfig
from minrl.model import peers
from minrl.model.peers import LostPeer, Peers
from minrl.model.processes import Processes
from minrl.system.launch import Launch
from minrl.types import UserError


class Unreadable(Exception):
    """Pickled, it cannot be made again."""

    def __init__(self, *, code):
        super().__init__(f"code {code}")


def decided():
    """What each process makes of the main one's decisions."""
    with Processes(ModelConfig(device="cpu", threads=1), lambda: {"packages": "the same"}).open() as processes:
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


def test_one_process_raises_its_own_error(processes):
    error = Unreadable(code=7)

    def fail():
        raise error

    with pytest.raises(Unreadable) as raised:
        processes.on_main(fail)
    assert raised.value is error


def test_processes_on_several_machines_meet_where_all_can_reach():
    """A machine may know itself by an address of its loopback, as Debian's 127.0.1.1, which the others cannot reach."""
    for local_count, reach in ((2, "127.0.0.1"), (1, "::")):
        launch = Launch("torchrun", count=2, local_count=local_count, address="127.0.0.1", port=1)
        with peers._listening(launch) as listener:
            found = listener.getsockname()[0]
            assert found == reach or (reach == "::" and found == "0.0.0.0")  # without IPv6


class Silent:
    """A store in which the first process never said where it listens."""

    def get(self, name):
        raise RuntimeError("wait timeout after 300000ms, keys: /peers")


def test_a_process_that_meets_nobody_says_so_in_one_line():
    launch = Launch("torchrun", rank=1, count=2, local_count=2, local_rank=1, address="127.0.0.1", port=1)
    with pytest.raises(LostPeer, match=r"process 1 of 2 could not connect to the others within 5 s.*wait timeout"):
        Peers(launch, Silent(), ["here", f"pid {os.getpid()}"], 5.0)
