"""Engines sample completions: the protocol, and the choice of one of three.

`torch_engine` samples with the policy's own tensors, on any machine; `vllm` with vLLM in this process; `vllm_server`
with servers of vLLM elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loguru import logger

from minrl.config import TrainerConfig
from minrl.dataflow import Completion, Request, UserError, require
from minrl.policy import Policy

PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED = "prompt_tokens", "prompt_tokens_computed"
"""Facts that are summed over processes. Of all others the largest counts."""

CACHE_GIB = 4.0
"""Most key-value memory if the config sets none."""

DEFAULT_SEQUENCES = 256
"""Completions that vLLM samples at a time if their number is not given."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. Temperature 0 is greedy. Stop ids are part of the completion.

    Stop strings are searched in the text with its special tokens. `version` is that of the weights; None: the policy's.
    """

    temperature: float
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()
    version: int | None = None


OnEnd = Callable[[Sequence[tuple[int, Completion]]], None]
"""Called after each step of an engine with the completions that have ended in it, each with the index of its request;
also where none has.
"""


@runtime_checkable
class Engine(Protocol):
    """An engine as the loop sees it. It manages memory and caches itself.

    `needs_correction`: its log-probabilities are not the policy's own, and importance weights correct for that.
    """

    needs_correction: bool

    @property
    def context_length(self) -> int:
        """Tokens that it takes, prompt and completion together."""

    @property
    def cores(self) -> int:
        """Cores of this machine that it computes on while it samples; 0 where it does so on a GPU or elsewhere."""

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_end: OnEnd | None = None
    ) -> list[Completion]:
        """One completion for each request, in order. By then `on_end` has been called with each of them."""

    def sync(self, policy: Policy) -> None:
        """Hold the policy's weights from now on."""

    def take_facts(self) -> dict[str, float]:
        """Facts about sampling and syncing since the last call, by tag: counts of tokens, and extremes."""

    def sleep(self) -> None:
        """Release memory while the policy trains."""

    def wake(self) -> None:
        """Be ready to generate again."""

    def close(self) -> None:
        """Release everything."""


def takes_vllm(config: TrainerConfig, device: str) -> bool:
    """Whether vLLM samples, here or in servers, for a policy on this kind of device. Raises `UserError` if it should
    and cannot.
    """
    if config.engine == "vllm-server":
        return True
    from minrl.engines.vllm import installed_build, refusal

    build = installed_build()
    if config.engine == "torch" or (config.engine == "auto" and not (device == "cuda" and build == "cuda")):
        return False
    reason = refusal(device, build)
    if reason is not None:
        raise UserError(reason)
    return True


def make_engine(
    config: TrainerConfig,
    policy: Policy,
    sequences: int = DEFAULT_SEQUENCES,
    resumption: Callable[[], str] = lambda: "",
) -> Engine:
    """The engine for this policy, unless `takes_vllm` refuses it.

    `sequences` is the number of completions in a batch (0: nothing will be sampled); `resumption` says how to resume
    the run where the engine ends it.
    """
    takes = takes_vllm(config, policy.device.type)
    require(
        config.lora_serve == "merged" or policy.adapters is None or (takes and config.engine != "vllm-server"),
        "--lora-serve adapter is for --engine vllm: the embedded engine samples with adapters as they are, and servers "
        "take merged weights: leave it out, or choose that engine",
    )
    if not takes:
        from minrl.engines.torch_engine import TorchEngine
        from minrl.engines.vllm import installed_build, refusal

        if config.engine == "auto" and policy.device.type == "cuda":
            logger.warning(f"the embedded engine samples on this GPU: {refusal('cuda', installed_build())}")
        return TorchEngine(policy, config.engine_cache_gib, samples=sequences > 0)
    if config.engine == "vllm-server":
        from minrl.engines.vllm_server import ServerEngine

        return ServerEngine(config, policy, resumption)
    from minrl.engines.vllm import VllmEngine

    return VllmEngine(config, policy, sequences)


# What engines share


def on_end_as(on_end: OnEnd | None, indices: Sequence[int]) -> OnEnd | None:
    """The same for the requests that have these indices."""
    return on_end and (lambda completions: on_end([(indices[index], completion) for index, completion in completions]))


def require_room(requests: Sequence[Request], context_length: int) -> None:
    """Refuse requests that might outgrow the context."""
    longest = max(len(request.ids) + request.max_tokens for request in requests)
    require(
        longest <= context_length,
        f"a prompt and its completion may take {longest} tokens, the engine takes {context_length}: "
        "lower --max-tokens, or raise --engine-context-length where the model takes more",
    )
