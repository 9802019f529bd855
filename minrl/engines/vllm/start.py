"""Starting vLLM in this process for the shape of a policy, whose classes and torch's settings it leaves as they were.

What vLLM cannot run is refused in one line with vLLM's own reason.
"""

import copy
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from torch import nn

from minrl.config import EngineConfig
from minrl.engines import CACHE_GIB
from minrl.engines.vllm import versions as vllm_versions
from minrl.models.loading import save_processor
from minrl.models.shape import keeps_states, layer_configs
from minrl.policy import Policy
from minrl.types import CausalModel, UserError, require
from minrl.utils.text import first_line

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, so that weights are a copy away
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

LONGEST_REASON = 300
"""Characters: vLLM names every architecture that it has where it lacks one."""

UNINSPECTED = "failed to be inspected"
"""What vLLM says of a model whose code it cannot import."""

SMALLEST_CACHE = 64 * 2**20
"""Bytes of key-value memory at least: the states of recurrent layers are not counted."""


def start(config: EngineConfig, policy: Policy, model: CausalModel, sequences: int, context_length: int) -> Any:  # noqa: ANN401 - vllm.LLM
    """A vLLM engine of the model's shape, which is the policy's or that of its text part, with dummy weights."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if config.batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    from vllm import LLM

    folder = Path(tempfile.mkdtemp(prefix="minrl-vllm-"))
    classes = PolicyClasses(policy.model)
    llm: Any = None
    dtype: Any = str(policy.processes.dtype).removeprefix("torch.")
    try:
        save_shape(folder, policy, model)
        llm = LLM(
            model=str(folder),
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
        classes.restore(nn.Module() if llm is None else vllm_versions.engine_model(llm))
        shutil.rmtree(folder)


def caches_prefixes(policy: Policy) -> bool:
    """Whether vLLM may keep a prompt's start for another. For states of rows it would have to compute prompts in parts,
    which it cannot do on a CPU (see `_memory`).
    """
    return policy.device.type == "cuda" or not keeps_states(policy.model.config)


def save_shape(folder: Path, policy: Policy, model: CausalModel) -> None:
    """Write what vLLM starts from with dummy weights."""
    shape = copy.deepcopy(model.config)
    shape.architectures = [type(model).__name__]  # which the config of a model made in memory lacks
    shape.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    save_processor(model, folder)  # a multimodal model's, which vLLM makes at its start


@contextmanager
def refused(policy: Policy) -> Iterator[None]:
    """Whatever vLLM raises inside is a refusal of the policy's model, in one line with vLLM's reason."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # its config, its loaders and its kernels raise whatever they like
        raise UserError(
            f"vLLM {vllm_versions.installed_version()} cannot sample for {type(policy.model).__name__} on this "
            f"{policy.device.type}: {_reason(error, policy.model)}; use --engine torch"
        ) from error


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


def _processes(config: EngineConfig, policy: Policy) -> dict[str, Any]:
    """vLLM's settings for several processes: each has its own rank and card, of which without them it takes the first.
    Neighbours hold a model together where it is parallel.
    """
    require_groups(config, policy)
    if policy.processes.count == 1:
        return {}
    os.environ.setdefault("RANK", str(policy.processes.rank))  # vLLM reads both, and not every launcher sets them
    os.environ.setdefault("LOCAL_RANK", str(policy.device.index or 0))
    return {
        "distributed_executor_backend": "external_launcher",
        "tensor_parallel_size": config.engine_tensor_parallel,
    }


def require_groups(config: EngineConfig, policy: Policy) -> None:
    """Refuse a tensor parallelism that the processes or the model's heads cannot be divided by."""
    size = config.engine_tensor_parallel
    local = policy.processes.launch.local_count
    require(
        local % size == 0,
        f"--engine-tensor-parallel {size} needs a number of processes on each node that it divides, and there are "
        f"{local}: start {size} processes or a multiple of it on each node",
    )
    shape = policy.model.config.get_text_config()
    heads = getattr(shape, "num_attention_heads", None) or size
    shared = getattr(shape, "num_key_value_heads", None) or heads
    require(
        heads % size == 0 and (shared % size == 0 or size % shared == 0),
        f"--engine-tensor-parallel {size} does not divide the model's {heads} attention heads and {shared} key-value "
        "heads evenly: choose a number that divides both",
    )


def _memory(config: EngineConfig, policy: Policy, sequences: int, context_length: int) -> dict[str, Any]:
    """vLLM's settings for memory and kernels on this device."""
    if policy.device.type == "cuda":
        vllm_versions.refuse_expandable_segments(config.engine_sleep)
        return {"gpu_memory_utilization": config.engine_memory_frac, "enable_sleep_mode": config.engine_sleep != "off"}
    layers = list(map(_heads, layer_configs(policy.model.config.get_text_config())))
    supported = vllm_versions.supported_head_sizes()
    latent = hasattr(policy.model.config.get_text_config(), "kv_lora_rank")  # vLLM says what it thinks of these
    odd = [head_dim for count, head_dim in layers if count and head_dim not in supported and not latent]
    if odd:
        raise UserError(
            f"vLLM on a CPU needs a head dimension of {supported}, the model has {odd[0]}: use --engine torch"
        )
    token = 2 * sum(count * head_dim for count, head_dim in layers) * policy.processes.dtype.itemsize
    wanted = min(token * context_length * sequences, int(CACHE_GIB * 2**30))
    size = max(wanted, 2 * token * context_length, SMALLEST_CACHE)
    size = int(config.engine_cache_gib * 2**30) or size
    # Of a prompt that is computed in parts vLLM sets the seed's generator back, which torch's on a CPU cannot be.
    return {"kv_cache_memory_bytes": size, "enforce_eager": True, "enable_chunked_prefill": False}


def _heads(shape: Any) -> tuple[int, int]:  # noqa: ANN401 - a config of transformers'
    """The number of key-value heads, 0 where every layer is recurrent, and their dimension."""
    heads = getattr(shape, "num_attention_heads", None) or 0
    head_dim = getattr(shape, "head_dim", None) or (shape.hidden_size // heads if heads else 0)
    return getattr(shape, "num_key_value_heads", None) or heads, head_dim


def _reason(error: Exception, model: nn.Module) -> str:
    """What an error of vLLM's says, in one line."""
    if UNINSPECTED in str(error):  # in a process of its own, whose error it leaves in the log
        error = _import_error(type(model).__name__) or error
    errors = getattr(error, "errors", None)  # pydantic's, whose text has a line for each
    if callable(errors):
        said = str(errors()[0]["msg"]).splitlines()[0]
    elif str(error):
        said = f"{type(error).__name__}: {first_line(error)}"
    else:
        said = f"{type(error).__name__}: {traceback.extract_tb(error.__traceback__)[-1].line}"
    return shorten(said, LONGEST_REASON, placeholder=" ...")


def _import_error(architecture: str) -> Exception | None:
    """Why vLLM's own code for the architecture cannot be imported."""
    from vllm import ModelRegistry

    try:
        ModelRegistry.models[architecture].load_model_cls()
    except Exception as error:  # as it comes: it is the reason that is looked for
        return error
    return None
