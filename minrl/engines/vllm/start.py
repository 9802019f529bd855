"""Starting vLLM in this process for the shape of a policy, whose classes and torch's settings it leaves as they were.

What vLLM cannot run is refused in one line with vLLM's own reason.
"""

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from minrl.config import EngineConfig
from minrl.engines import CACHE_GIB
from minrl.engines.vllm import versions as vllm_versions
from minrl.policy import Policy
from minrl.system.streams import first_line
from minrl.types import UserError

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, so that weights are a copy away
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

SMALLEST_CACHE = 64 * 2**20
"""Bytes of key-value memory at least: the states of recurrent layers are not counted."""


def start(config: EngineConfig, policy: Policy, sequences: int, context_length: int) -> Any:  # noqa: ANN401 - vllm.LLM
    """A vLLM engine of the policy's shape with dummy weights."""
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
        shape = copy.deepcopy(policy.model.config)
        shape.architectures = [type(policy.model).__name__]  # which the config of a model made in memory lacks
        shape.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        llm = LLM(
            model=str(folder),
            runner="generate",
            load_format="dummy",
            dtype=dtype,
            max_model_len=context_length,
            max_num_seqs=sequences,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            enable_prefix_caching=True,
            seed=0,
            **_memory(config, policy, sequences, context_length),
        )
        return llm
    finally:
        classes.restore(nn.Module() if llm is None else vllm_versions.engine_model(llm))
        shutil.rmtree(folder)


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
            f"{policy.device.type}: {_reason(error)}; use --engine torch"
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


def _memory(config: EngineConfig, policy: Policy, sequences: int, context_length: int) -> dict[str, Any]:
    """vLLM's settings for memory and kernels on this device."""
    if policy.device.type == "cuda":
        vllm_versions.refuse_expandable_segments(config.engine_sleep)
        return {"gpu_memory_utilization": config.engine_memory_frac, "enable_sleep_mode": config.engine_sleep != "off"}
    shape = policy.model.config.get_text_config()
    heads = getattr(shape, "num_attention_heads", None) or 1  # none where every layer is recurrent
    head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    if hasattr(shape, "num_attention_heads") and head_dim not in vllm_versions.supported_head_sizes():
        raise UserError(
            f"vLLM on a CPU needs a head dimension of {vllm_versions.supported_head_sizes()}, the model has "
            f"{head_dim}: use --engine torch"
        )
    heads = getattr(shape, "num_key_value_heads", None) or heads
    token = 2 * shape.num_hidden_layers * heads * head_dim * policy.processes.dtype.itemsize
    wanted = min(token * context_length * sequences, int(CACHE_GIB * 2**30))
    size = max(wanted, 2 * token * context_length, SMALLEST_CACHE)
    return {"kv_cache_memory_bytes": int(config.engine_cache_gib * 2**30) or size, "enforce_eager": True}


def _reason(error: Exception) -> str:
    """What an error of vLLM's says, in one line."""
    errors = getattr(error, "errors", None)  # pydantic's, whose text has a line for each
    if callable(errors):
        return str(errors()[0]["msg"]).splitlines()[0]
    return f"{type(error).__name__}: {first_line(error)}"
