"""An engine with its own copy of the weights, as servers of vLLM have, and `minrl` with it in their place.

python tests/own_copy.py train FLAG...
"""

import copy
import sys
from dataclasses import replace

from minrl.__main__ import main as program
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm_sync import require_current
from minrl.run import setup
from minrl.utils.cli import run_main

SERVERS = str.split("--engine vllm-server --engine-urls http://127.0.0.1:1 --engine-weights-dir weights")
"""What a run is told in which this engine stands for a server."""


class OwnCopy(TorchEngine):
    """Refuses to sample with other weights than those that it is asked for."""

    cores = 0

    def __init__(self, policy):
        super().__init__(replace(policy, model=copy.deepcopy(policy.model)))
        self.needs_correction = True

    def sync(self, policy):
        self.version = policy.version
        self.policy.model.load_state_dict(policy.model.state_dict())

    def generate(self, requests, sampling, *, on_end=None):
        require_current(self.version, self.policy, sampling.version)
        return super().generate(requests, sampling, on_end=on_end)


def stand_in(config, policy, *_):
    """What `make_engine` gives."""
    return OwnCopy(policy)


if __name__ == "__main__":
    setup.make_engine = stand_in
    run_main(program, sys.argv[1:])
