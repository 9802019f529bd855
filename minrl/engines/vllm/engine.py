"""Rollouts by vLLM in the trainer's process: on the same CUDA card, or on a CPU.

vLLM holds its own copy of the weights, in its own layout. `sync` updates it after every update of the policy, and an
independent check compares the engine's weights and log-probabilities with the policy's. vLLM itself is imported when
an engine is made.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from loguru import logger
from torch import Tensor, nn

from minrl.config import EngineConfig
from minrl.engines import Ended, PromptReuse, Sampling, require_room
from minrl.engines.vllm import versions as vllm_versions
from minrl.engines.vllm.checkpoint import Checkpoint
from minrl.engines.vllm.device_copies import DeviceCopies, StableWeights
from minrl.engines.vllm.sampling import sampling_settings
from minrl.engines.vllm.start import refused, start
from minrl.engines.vllm.verify import (
    PROBE_TOKENS,
    Compared,
    SyncError,
    differing,
    find_held,
    policy_logprobs,
    require_synced,
    spread_ids,
    transposed_names,
    unread,
)
from minrl.engines.vllm.watchdog import Watchdog
from minrl.models.lora import MergedWeights
from minrl.models.sharding import sharded, state_of
from minrl.policy import Policy
from minrl.types import Completion, Request
from minrl.utils.progress import activity
from minrl.utils.timers import timed


class VllmEngine:
    """Samples with vLLM. Its numbers are not the policy's own: other kernels, other rounding."""

    needs_correction = True

    def __init__(
        self, config: EngineConfig, policy: Policy, sequences: int, going_on: Callable[[], str] = lambda: ""
    ) -> None:
        self.config, self.policy = config, policy
        self.version: int | None = None
        self.dtype = policy.processes.dtype
        with refused(policy):
            self.context_length = min(config.engine_context_length or policy.context_length, policy.context_length)
        self._members = config.engine_tensor_parallel
        self._cuda = policy.device.type == "cuda"
        self._watchdog = Watchdog(config.engine_timeout_s, going_on)
        self._owns_process_group = not torch.distributed.is_initialized()
        self._checkpoint = Checkpoint(policy.model)
        with activity("starting vLLM"), self._watchdog, vllm_versions.torch_left_alone(), refused(policy):
            self._llm = start(config, policy, self._checkpoint.shape, sequences * self._members, self.context_length)
        self.model: nn.Module = vllm_versions.engine_model(self._llm)
        self._copies: DeviceCopies | None = None
        self._stable = StableWeights(self.dtype)
        self._asleep = self._discarded = False
        self._syncs, self._reuse, self._checked = 0, PromptReuse(), dict[str, float]()
        self._prompts: set[tuple[int, ...]] = set()
        self._probe = spread_ids(policy)
        with refused(policy):
            self.sync(policy)

    @property
    def cores(self) -> int:
        """Those of torch's threads, unless the policy is on a card."""
        return 0 if self._cuda else torch.get_num_threads()

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, ended: Ended | None = None
    ) -> list[Completion]:
        """One completion for each request, in order. Requests with the same prompt share its cache.

        Processes that hold the engine together sample all of their requests at the same time, and tell what has ended
        when all have. One that has none takes part until none of them has any.
        """
        if self._members == 1:
            return self._counted(requests, self._run(requests, sampling, ended)) if requests else []
        while True:
            shared = vllm_versions.exchanged((list(requests), sampling))
            together = [one for asked, _ in shared for one in asked]
            if not together:
                return []
            outputs = self._run(together, next(own for asked, own in shared if asked))
            if requests:
                start = sum(len(asked) for asked, _ in shared[: self.policy.processes.rank % self._members])
                completions = self._counted(requests, outputs[start : start + len(requests)])
                if ended is not None:
                    ended(list(enumerate(completions)))
                return completions

    def _run(self, requests: Sequence[Request], sampling: Sampling, ended: Ended | None = None) -> list[Any]:
        """vLLM's outputs for the requests, in order."""

        def tell(outputs: Sequence[tuple[int, Any]]) -> None:
            assert ended is not None
            with self._watchdog.paused():
                ended([(index, _completion(output.outputs[0])) for index, output in outputs])

        self._require_current()
        require_room(requests, self.context_length)
        if not self._continues(requests):
            self._llm.reset_prefix_cache()  # so that a batch depends on nothing before it
        prompts = [{"prompt_token_ids": request.ids} for request in requests]
        parameters = [sampling_parameters(request, sampling) for request in requests]
        telling = vllm_versions.told_of(self._llm, len(requests), tell) if ended is not None else nullcontext()
        with self._watchdog, telling:
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        ids = requests[0].ids + list(outputs[0].outputs[0].token_ids)
        self._probe = ids[-PROBE_TOKENS:] if len(ids) > 1 else self._probe
        return outputs

    def _counted(self, requests: Sequence[Request], outputs: Sequence[Any]) -> list[Completion]:
        """The completions in vLLM's outputs, whose prompt tokens are counted."""
        asked = sum(len(request.ids) for request in requests)
        self._reuse.add(asked, asked - sum(output.num_cached_tokens or 0 for output in outputs))
        return [_completion(output.outputs[0]) for output in outputs]

    @timed("sync")
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
        state = self._checkpoint.of_text(state_of(self.policy.model))
        weights = MergedWeights(self.policy.model, state)
        transposed, whole = transposed_names(self.policy.model), self._members == 1
        held = find_held(self.model, weights.bases, transposed) if whole else []  # of parts the probe alone tells
        if self._syncs == 0 and whole and (unseen := unread(held, weights.bases)):
            logger.warning(f"not found in the engine, so checked by the probe alone: {unseen}")
        wrong = differing(held, weights, self.dtype, self.policy.version, self.policy.processes.any_of_each)
        expected = policy_logprobs(self.policy, self._probe)
        gaps = (torch.tensor(self.score(self._probe)[-len(expected) :]) - expected).abs()
        self._checked = {"engine/sync_gap_max": float(gaps.max()), "engine/sync_checked_tensors": float(len(held))}
        engine = f"vLLM {vllm_versions.installed_version()}" if self._syncs == 0 else "the engine"
        require_synced(self.policy, Compared(gaps, wrong, len(held)), weights, self._syncs == 0, engine)

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

    @timed("sync")
    def sleep(self) -> None:
        """On CUDA, release the key-value memory, or all memory, while the policy trains."""
        if not self._cuda or self.config.engine_sleep == "off" or self._asleep:
            return
        with self._watchdog:
            self._discarded = vllm_versions.fall_asleep(self._llm, self.config.engine_sleep == "all")
        self._asleep = True
        if self._discarded:
            self.version = None  # until the next sync there are no weights

    @timed("sync")
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
                config = vllm_versions.model_config(self._llm)
                return vllm_versions.load_packed(self.model, config, self._checkpoint.as_saved(merged), biased)
            if sharded(self.policy.model):  # a layer at a time: all of them together are a whole model
                model: Any = self.model
                return model.load_weights(self._checkpoint.as_saved(merged))
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
    """vLLM's settings for one request."""
    from vllm import SamplingParams

    detokenize = bool(sampling.stop_strings)
    return SamplingParams(**sampling_settings(request, sampling), flat_logprobs=True, detokenize=detokenize)


def _completion(output: Any) -> Completion:  # noqa: ANN401 - vllm.CompletionOutput
    """vLLM's completion in our type."""
    if output.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a completion with {output.finish_reason!r} in place of stop or length")
    logprobs = output.logprobs.logprobs
    assert len(logprobs) == len(output.token_ids), "one log-probability for each sampled token"
    return Completion(list(output.token_ids), list(logprobs), output.finish_reason)
