"""The engine that samples: the one in the config, or the best that this machine can run."""

from collections.abc import Callable

from loguru import logger

from minrl.config import EngineConfig
from minrl.engines import Engine
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm.versions import installed_build, refusal
from minrl.policy import Policy
from minrl.types import UserError, require

DEFAULT_SEQUENCES = 256
"""Completions that vLLM samples at a time if their number is not given."""


def takes_vllm(config: EngineConfig, device: str) -> bool:
    """Whether vLLM samples, here or in servers, for a policy on this kind of device. Raises `UserError` if it should
    and cannot.
    """
    build = installed_build()
    if config.engine == "vllm-server":
        from minrl.engines.vllm_server.address import private_urls

        return bool(private_urls(config.urls))
    if config.engine == "torch" or (config.engine == "auto" and not (device == "cuda" and build == "cuda")):
        return False
    reason = refusal(device, build)
    if reason is not None:
        raise UserError(reason)
    return True


def make_engine(
    config: EngineConfig, policy: Policy, sequences: int = DEFAULT_SEQUENCES, going_on: Callable[[], str] = lambda: ""
) -> Engine:
    """The engine for this policy, unless `takes_vllm` refuses it.

    `sequences` is the number of completions in a batch (0: nothing will be sampled); `going_on` says how to resume the
    run if the engine hangs.
    """
    if not takes_vllm(config, policy.device.type):
        if config.engine == "auto" and policy.device.type == "cuda":
            logger.warning(f"the embedded engine samples on this card: {refusal('cuda', installed_build())}")
        require(config.engine_tensor_parallel == 1, "--engine-tensor-parallel needs vLLM: give --engine vllm")
        return TorchEngine(policy, config.engine_cache_gib, samples=sequences > 0)
    if config.engine == "vllm-server":
        from minrl.engines.vllm_server.engine import ServerEngine

        return ServerEngine(config, policy, going_on)
    from minrl.engines.vllm.engine import VllmEngine

    return VllmEngine(config, policy, sequences, going_on)
