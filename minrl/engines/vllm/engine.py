"""Rollouts by vLLM in the trainer's process: on the same CUDA card, or on a CPU.

vLLM holds its own copy of the weights, in its own layout. `sync` updates it after every update of the policy, and an
independent check compares the engine's weights and log-probabilities with the policy's. vLLM itself is imported when
an engine is made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from loguru import logger
from torch import Tensor, nn

from minrl.config import EngineConfig
from minrl.engines import PromptReuse, Sampling, require_room
from minrl.engines.seeds import mix_seed
from minrl.engines.vllm import versions as vllm_versions
from minrl.engines.vllm.checkpoint import Checkpoint
from minrl.engines.vllm.device_copies import DeviceCopies, StableWeights
from minrl.engines.vllm.start import refused, start
from minrl.engines.vllm.verify import (
    ADVICE,
    GAP_TOLERANCE,
    PROBE_TOKENS,
    SyncError,
    differing,
    find_held,
    judged_gap,
    policy_logprobs,
    spread_ids,
    transposed_names,
    unread,
)
from minrl.engines.vllm.watchdog import Watchdog
from minrl.model.lora import MergedWeights
from minrl.policy import Policy
from minrl.system.progress import activity
from minrl.types import Completion, Request, UserError


class VllmEngine:
    """Samples with vLLM. Its numbers are not the policy's own: other kernels, other rounding."""

    exact = False

    def __init__(
        self, config: EngineConfig, policy: Policy, sequences: int, going_on: Callable[[], str] = lambda: ""
    ) -> None:
        self.config, self.policy = config, policy
        self.version: int | None = None
        self.dtype = policy.processes.dtype
        with refused(policy):
            self.context_length = min(config.engine_context_length or policy.context_length, policy.context_length)
        self._cuda = policy.device.type == "cuda"
        self._watchdog = Watchdog(config.engine_timeout_s, going_on)
        self._owns_process_group = not torch.distributed.is_initialized()
        self._checkpoint = Checkpoint(policy.model)
        with activity("starting vLLM"), self._watchdog, vllm_versions.torch_left_alone(), refused(policy):
            self._llm = start(config, policy, self._checkpoint.shape, sequences, self.context_length)
        self.model: nn.Module = vllm_versions.engine_model(self._llm)
        self._copies: DeviceCopies | None = None
        self._stable = StableWeights(self.dtype)
        self._asleep = self._discarded = False
        self._syncs, self._reuse, self._checked = 0, PromptReuse(), dict[str, float]()
        self._prompts: set[tuple[int, ...]] = set()
        self._probe = spread_ids(policy)
        with refused(policy):
            self.sync(policy)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each request, in order. Requests with the same prompt share its cache."""
        if not requests:
            return []
        self._require_current()
        require_room(requests, self.context_length)
        if not self._continues(requests):
            self._llm.reset_prefix_cache()  # so that a batch depends on nothing before it
        prompts = [{"prompt_token_ids": request.ids} for request in requests]
        parameters = [sampling_parameters(request, sampling) for request in requests]
        with self._watchdog:
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        asked = sum(len(request.ids) for request in requests)
        self._reuse.add(asked, asked - sum(output.num_cached_tokens or 0 for output in outputs))
        completions = [_completion(output.outputs[0]) for output in outputs]
        ids = requests[0].ids + completions[0].ids
        self._probe = ids[-PROBE_TOKENS:] if len(ids) > 1 else self._probe
        return completions

    def sync(self, policy: Policy) -> None:
        """Load the policy's weights and check them. Raises `SyncError` if the check fails."""
        if policy.model is not self.policy.model:
            self._checkpoint = Checkpoint(policy.model)
        self.policy = policy
        with self._watchdog:
            self._load(MergedWeights(policy.model, self._checkpoint.tensors()))
            self.version = policy.version
            self._discarded = False
            self._llm.reset_prefix_cache()
            self._wake_cache()
            every = self.config.sync_check_every
            if every and self._syncs % every == 0:
                self.check()
        self._syncs += 1

    def check(self) -> None:
        """Raise `SyncError` unless the engine has the policy's weights and log-probabilities."""
        state = self._checkpoint.of_text(self.policy.model.state_dict(keep_vars=True))
        weights = MergedWeights(self.policy.model, state)
        held = find_held(self.model, weights, transposed_names(self.policy.model))
        if self._syncs == 0 and unread(held, weights):
            logger.warning(f"not found in the engine, so checked by the probe alone: {unread(held, weights)}")
        wrong = differing(held, weights, self.dtype, self.policy.version)
        expected = policy_logprobs(self.policy, self._probe)
        gaps = (torch.tensor(self.score(self._probe)[-len(expected) :]) - expected).abs()
        gap, tolerance = float(gaps.max()), GAP_TOLERANCE[self.dtype]
        self._checked = {"engine/sync_gap_max": gap, "engine/sync_checked_tensors": float(len(held))}
        if not wrong and judged_gap(gaps, weights, self.dtype) <= tolerance:
            return
        tensors = f"{len(wrong)} of {len(held)} weight tensors differ" + (f" ({wrong[0]}, ...)" if wrong else "")
        findings = f"{tensors}; log-probabilities differ by up to {gap:.2g}, tolerance {tolerance:g}; {ADVICE}"
        if self._syncs == 0:  # of the weights that the run starts from: it is the model, not an update
            name = type(self.policy.model).__name__
            version = vllm_versions.installed_version()
            raise UserError(f"vLLM {version} does not compute {name} as transformers does: {findings}")
        raise SyncError(
            f"after the sync of update {self.policy.version} the engine does not have the policy's weights: {findings}"
        )

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        with self._watchdog:
            output = self._llm.generate([{"prompt_token_ids": list(ids)}], [parameters], use_tqdm=False)[0]
        entries = output.prompt_logprobs[1:]
        return [entry[token].logprob for entry, token in zip(entries, ids[1:], strict=True)]

    def take_facts(self) -> dict[str, float]:
        """How many prompt tokens were computed, and the findings of the last check of a sync."""
        checked, self._checked = self._checked, {}
        return {**self._reuse.take(), **checked}

    def sleep(self) -> None:
        """On CUDA, release the key-value memory, or all memory, while the policy trains."""
        if not self._cuda or self.config.engine_sleep == "off" or self._asleep:
            return
        with self._watchdog:
            self._discarded = vllm_versions.fall_asleep(self._llm, self.config.engine_sleep == "all")
        self._asleep = True
        if self._discarded:
            self.version = None  # until the next sync there are no weights

    def wake(self) -> None:
        """Make room for the weights again. The cache follows in `sync`, when they are there."""
        if not self._asleep:
            return
        torch.cuda.empty_cache()  # the engine needs what the update has freed
        if self._discarded:
            with self._watchdog:
                self._llm.wake_up(tags=["weights"])
        elif self.version == self.policy.version:
            self._wake_cache()

    def close(self) -> None:
        """Release everything."""
        with self._watchdog:
            self._copies = None
            self.model = nn.Module()
            vllm_versions.shut_down(self._llm, self._owns_process_group)
            del self._llm

    def _load(self, merged: Mapping[str, Tensor]) -> None:
        """Load the weights: packed again on a CPU, by copies on the device on CUDA."""
        with torch.no_grad():
            if not self._cuda:
                biased = getattr(self.policy.model.get_output_embeddings(), "bias", None) is not None
                return vllm_versions.load_packed(self._llm, self._checkpoint.as_saved(merged), biased)
            weights = self._stable.of(merged)
            if self._copies is None or not self._copies.fits(weights):
                self._copies = DeviceCopies(self.model, weights, self._checkpoint.as_saved)
            self._copies.run()

    def _wake_cache(self) -> None:
        """The last part of waking up: allocate the key-value cache."""
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False

    def _require_current(self) -> None:
        """Refuse to sample after an update without a sync, however small the update was."""
        if self.version != self.policy.version or self._asleep:
            raise SyncError(
                f"the engine has the weights of update {self.version} and the policy is at {self.policy.version}: "
                "call wake() and sync(policy) after each update"
            )

    def _continues(self, requests: Sequence[Request]) -> bool:
        """Whether a request continues a prompt of the last call, whose cache is worth keeping."""
        before, self._prompts = self._prompts, {tuple(request.ids) for request in requests}
        lengths = set(map(len, before))
        return any(ids[:length] in before for ids in self._prompts for length in lengths if length < len(ids))


def sampling_parameters(request: Request, sampling: Sampling) -> Any:  # noqa: ANN401 - vllm.SamplingParams
    """vLLM's settings for one request. Completions include the token or string that stopped them."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        seed=mix_seed(request.seed),
        max_tokens=request.max_tokens,
        stop_token_ids=sorted(sampling.stop_ids),
        stop=list(sampling.stop_strings),
        skip_special_tokens=False,  # a stop string may hold one
        include_stop_str_in_output=True,
        ignore_eos=True,  # which tokens stop is the caller's choice
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop_strings),
    )


def _completion(output: Any) -> Completion:  # noqa: ANN401 - vllm.CompletionOutput
    """vLLM's completion in our type."""
    if output.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a completion with {output.finish_reason!r} in place of stop or length")
    logprobs = output.logprobs.logprobs
    assert len(logprobs) == len(output.token_ids), "one log-probability for each sampled token"
    return Completion(list(output.token_ids), list(logprobs), output.finish_reason)
