"""Processes that torchrun started again meet anew: its store still holds what the ended ones left there."""

import os

import pytest
import torch
from crew import crew

from minrl.config import ModelConfig
from minrl.models.distributed import Processes


def attempt(number, port):
    """The sum of ones over the processes of an attempt."""
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=str(number))
    os.environ["MASTER_PORT"] = str(port)
    with Processes(ModelConfig(device="cpu", threads=1)).open() as processes:
        return float(processes.sum(torch.ones(())))


@pytest.mark.slow
def test_a_second_attempt_finds_its_own_processes():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for number in range(2):
        assert crew(2, attempt, number, store.port) == [2.0, 2.0]
