"""Moves the policy's weights into vLLM, here or in a server, and verifies that they are there.

What is moved is what a checkpoint on disk holds (`Checkpoint`), by vLLM's layerwise reload (`reload`). Two checks
follow, each of which sees what the other cannot. The reading (`mismatched_tensors`) compares the weights that the
engine computes with, tensor by tensor and bit by bit after rounding to its precision: it sees the smallest step, but
only weights. The probe compares log-probabilities: it sees any change of the model's output, but rounding hides a
small one.
"""

import copy
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from loguru import logger
from torch import Tensor, nn

from minrl.dataflow import CausalModel, UserError
from minrl.models.sharding import in_one_pass, master_weights, state_of
from minrl.models.text import decoder_of, head_of
from minrl.policy import Policy

GAP_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25}
"""Nats by which log-probabilities of engine and policy may differ on the probe, at temperature 1: the largest gap in
float32, the mean in bfloat16. There the gap of one token says nothing: with the same weights, a residual stream in
bfloat16 (the engine's) and one in float32 (autocast's) differ by 0.05 on average and by 0.5 to 4 in one of 2,000
tokens, and a router sends a token near a tie to another expert. The mean of 32 tokens stays below 0.1.
"""

PROBE_TOKENS = 32
"""Tokens of the probe: cheap beside a step, and each depends on every layer."""

PROBE_CONTEXT = 512
"""Tokens of the prompt and completion that are probed: vLLM keeps the logits of all of them."""

LONGEST_WINDOW = 1024
"""Tokens of a window that the first probe goes beyond: vLLM keeps the logits of all its tokens."""

COLUMNS = 64
"""Columns of each packed weight that are read at a time; the next check reads others."""

FEW_EXPERTS = 8
"""Experts of each layer that are read at a time; the next check reads others."""

EXPERTS = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}
"""vLLM's and transformers' names of the tensors that hold all experts of a layer."""

WRAPPERS = frozenset(["model", "language_model", "transformer", "gpt_neox", "backbone", "_layer"])
EXPERT_PARTS = frozenset(["gate", "router", "experts", "routed_experts", "_shared_experts"])
"""Parts of names that transformers and vLLM do not use alike: around the decoder, around experts and their router."""

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What vLLM's fused layers hold where a model does not say it (`packed_modules_mapping`)."""

BLOCK = 2**24
"""Elements that are compared at once."""

ADVICE = (
    "try --engine torch, which samples with the policy's own weights; with --sync-check-every 0 the run goes on "
    "unverified"
)


class SyncError(RuntimeError):
    """The engine does not hold the policy's weights: what it samples would not be on-policy."""


def require_current(version: int | None, policy: Policy) -> None:
    """Raise unless the weights of this update, which an engine has, are the policy's, however small an update was."""
    if version != policy.version:
        raise SyncError(
            f"the engine has the weights of update {version} and the policy is at {policy.version}: call wake() and "
            "sync(policy) after each update"
        )


class Checkpoint:
    """What vLLM is given of a model: `shape`, a model whose config and class it runs, and tensors under its names.

    In memory transformers has some weights under other names and in other shapes: the experts of a layer are one
    tensor, projections are joined. Of a multimodal model vLLM is given the text part, as the model of text alone.
    """

    def __init__(self, model: CausalModel) -> None:
        self.model = model
        self.shape = _text_model(model)
        self._renamed = {} if self.shape is model else _text_paths(model, self.shape)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, tied ones once, and the persistent buffers, which are part of the model too."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        buffers = {name: tensor for name, tensor in state_of(self.model).items() if name not in parameters}
        return self.of_text(master_weights(self.model) | buffers)

    def of_text(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the tensors that vLLM is given."""
        return {name: weight for name, weight in weights.items() if self._name(name)}

    def as_saved(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The tensors by the names and in the shapes of a checkpoint, one layer at a time: some of them are copies."""
        from transformers.core_model_loading import revert_weight_conversion  # what save_pretrained calls

        for _, names in groupby(weights, layer_of):
            group = {self._name(name): weights[name].detach() for name in names}
            yield from revert_weight_conversion(self.shape, group).items()

    def _name(self, name: str) -> str:
        """The name in the model of text alone; empty where it has no such tensor."""
        for path, other in self._renamed.items():
            if name.startswith(f"{path}."):
                return other + name.removeprefix(path)
        return "" if self._renamed else name


def _text_model(model: CausalModel) -> CausalModel:
    """The model; for a multimodal one that of text alone, without storage, where transformers has one."""
    from transformers import AutoModelForCausalLM

    config: Any = model.config.get_text_config(decoder=True)
    if config is model.config or type(config) not in AutoModelForCausalLM._model_mapping:
        return model
    config = copy.deepcopy(config)
    head = head_of(model)
    config.tie_word_embeddings = head is not None and head.weight is model.get_input_embeddings().weight
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _text_paths(model: CausalModel, other: CausalModel) -> dict[str, str]:
    """The paths of the decoder and of the head in a multimodal model, and those in the model of text alone."""
    return {
        _path(model, decoder_of(model)): _path(other, decoder_of(other)),
        _path(model, head_of(model)): _path(other, head_of(other)),
    }


def _path(model: CausalModel, module: nn.Module | None) -> str:
    return next(path for path, found in model.named_modules() if found is module)


def layer_of(name: str) -> str:
    """The layer of a tensor, by the first number in its name."""
    found = re.match(r".*?\.\d+\.", name)
    return found[0] if found else ""


def reload(model: CausalModel, config: Any, weights: Iterable[tuple[str, Tensor]], biased: bool = False) -> None:  # noqa: ANN401
    """Load weights into the engine's tensors by vLLM's layerwise reload, under its config. A head that is `biased` has
    a bias.

    A layer is loaded as it was first, with what is derived from its weights: packed copies on a CPU, the orders of
    experts' kernels, the matrices with which latent attention decodes. Then it is copied to where it was, so that
    captured graphs stay valid.

    On a CPU it leaves three things as they were, which are put right here. A tied output head keeps its old packed
    copy. Experts are packed only by a layer that has no kernel yet (`UnquantizedFusedMoEMethod._setup_kernel`): with
    the one of before, plain weights would take the place of packed ones. A bias that is added while loading is taken
    away.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    packed = config.device_config.device_type == "cpu"
    experts = [module for module in model.modules() if _moe_kernel(module) is not None]
    for module in experts if packed else ():
        module.quant_method.moe_kernel = None
    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    for head in heads:
        if biased and head.bias is None:
            head._register_bias()
    for parameter in model.parameters():
        if isinstance(loader := getattr(parameter, "weight_loader", None), partial):
            loader.__name__ = "partial"  # type: ignore[attr-defined]  # layerwise reload asks for it
    with torch.no_grad(), set_current_vllm_config(config):
        initialize_layerwise_reload(model)
        model.load_weights(iter(weights))
        finalize_layerwise_reload(model, config.model_config)
        if any(module.quant_method.moe_kernel is None for module in experts):
            raise RuntimeError(
                "its code for this model loads experts past vLLM's layerwise reload, so they cannot be synced"
            )
        for head in heads:
            head.quant_method.process_weights_after_loading(head)


def _moe_kernel(module: Any) -> Any:  # noqa: ANN401 - a layer of vLLM's
    return getattr(getattr(module, "quant_method", None), "moe_kernel", None)


# The reading


@dataclass(frozen=True)
class EngineTensor:
    """One tensor of the policy in the engine: rows `start` to `end` of a parameter or buffer of one of its modules."""

    name: str
    module: CausalModel
    parameter: str
    start: int
    end: int | None
    transposed: bool = False

    def read(self, expected: Tensor, version: int) -> tuple[Tensor, Tensor]:
        """The engine's tensor and the expected one: whole, or some experts, or some columns where it is packed."""
        weight = _unpacked(self.module, self.parameter)
        expected = expected.T if self.transposed else expected
        generator = torch.Generator().manual_seed(version)
        if self.parameter in EXPERTS:
            some = torch.randperm(len(weight), generator=generator)[:FEW_EXPERTS]
            return weight[some], _packed_experts(self.module, expected[some].to(weight.dtype))
        if not self._packed(weight):
            rows = weight[self.start : self.end] if weight.ndim else weight
            return rows, expected.reshape(rows.shape) if rows.squeeze().shape == expected.squeeze().shape else expected
        width = expected.shape[1]
        if width != getattr(self.module, "input_size_per_partition", width):  # the product would read past its end
            return weight, expected
        columns = torch.randperm(width, generator=generator)[:COLUMNS].to(expected.device)
        units = nn.functional.one_hot(columns, width).to(weight.dtype)
        product = self.module.quant_method.apply(self.module, units, None)  # exact: one term of each sum is not 0
        return product[:, self.start : self.end].T, expected[:, columns]

    def _packed(self, weight: Tensor) -> bool:
        """Whether the engine computes with a packed copy, as vLLM's linear layers and heads do on a CPU."""
        head = type(self.module).__name__ == "ParallelLMHead" and hasattr(self.module, "cpu_linear")
        return self.parameter == "weight" and (weight.numel() == 0 or head)


def find_engine_tensors(
    engine_model: CausalModel, weights: Mapping[str, Tensor], transposed: Collection[str] = ()
) -> list[EngineTensor]:
    """Where each of the policy's tensors is in the engine, by name. Fused layers hold several, one after another.
    The policy has those of GPT-2's kind of layer `transposed`.

    The lookup is independent of the engine's loader, so that a loader that mixes up layers is noticed.
    """
    names: dict[str, str] = {}
    for name in weights:
        names[_place(name)] = name if _place(name) not in names else ""  # whichever is meant, the probe checks it
    fused: dict[str, Sequence[str]] = {**FUSED}
    for module in engine_model.modules():
        fused |= getattr(module, "packed_modules_mapping", {})
    found = []
    for path, module in engine_model.named_modules():
        prefix, _, last = path.rpartition(".")
        for parameter, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if parameter in EXPERTS:
                name = names.get(_place(f"{path}.{EXPERTS[parameter]}"), "")
                if name and f"{name}_bias" not in weights and _packs_experts(module, weights[name]):
                    found.append(EngineTensor(name, module, parameter, 0, None))
                continue
            start = 0
            whole = _place(f"{path}.{parameter}") in names
            for part in [last] if whole else fused.get(last, []):
                name = names.get(_place(f"{prefix}.{part}.{parameter}"), "")
                if name:
                    end = start + weights[name].shape[-1 if name in transposed else 0] if tensor.ndim else None
                    found.append(EngineTensor(name, module, parameter, start, end, name in transposed))
                    start = end or 0
    return found


def has_biased_head(model: CausalModel) -> bool:
    """Whether the policy's output head has a bias."""
    return getattr(model.get_output_embeddings(), "bias", None) is not None


def transposed_names(model: CausalModel) -> set[str]:
    """The policy's weights that have a column, not a row, for each output."""
    paths = {
        path.removesuffix(".base_layer") for path, module in model.named_modules() if type(module).__name__ == "Conv1D"
    }
    return {f"{path}.weight" for path in paths}


def _place(name: str) -> str:
    """A tensor's name without what transformers and vLLM call differently.

    >>> _place("model.layers.0.mlp.gate.weight") == _place("model.layers.0.block_sparse_moe.experts.gate.weight")
    True
    """
    parts = [
        part
        for part in name.replace("block_sparse_moe", "mlp").split(".")
        if part and part not in WRAPPERS | EXPERT_PARTS
    ]
    return ".".join(part for part, _ in groupby(parts))  # a layer's mixer is sometimes wrapped in one of the same name


@torch.no_grad()
def mismatched_tensors(
    held: Sequence[EngineTensor], weights: Mapping[str, Tensor], dtype: torch.dtype, version: int
) -> tuple[list[str], list[str]]:
    """Names of the tensors in which the engine differs from the policy, rounded to `dtype`, and of those of which it
    has the same rows in another order: some loaders change it (Falcon's queries, keys and values, Llama 4's for its
    rotary positions), which is the probe's to judge.
    """
    wrong: list[str] = []
    reordered: list[str] = []
    for tensor in held:
        actual, expected = tensor.read(weights[tensor.name].detach(), version)
        if _differ(actual, expected, dtype):
            (reordered if _only_reordered(actual, expected, dtype) else wrong).append(tensor.name)
    return wrong, reordered


def _differ(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether any element differs. Some tensors stay in float32, rounded or not, where the rest is in `dtype`."""
    if actual.shape != expected.shape:
        return True
    return any(bool(((a != b.to(dtype)) & (a != b.to(a.dtype))).any()) for a, b in _blocks(actual, expected))


def _only_reordered(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether both have the same rows. Experts are not rows: each has its router's."""
    if expected.ndim not in (1, 2) or actual.shape != expected.shape:
        return False
    return not _differ(actual.sort(0).values, expected.sort(0).values, dtype)


def unread(held: Sequence[EngineTensor], weights: Mapping[str, Tensor]) -> list[str]:
    """The policy's tensors that were not found in the engine, by any of their names: only the probe checks them."""
    found = {tensor.name for tensor in held}
    storages = {_storage(weights[name]) for name in found}
    return sorted(n for n in weights if n not in found and _storage(weights[n]) not in storages)


def _storage(weight: Tensor) -> int:
    """Where a weight is, or this process's part of it."""
    return getattr(weight, "to_local", lambda: weight)().untyped_storage().data_ptr()


def _packs_experts(layer: CausalModel, weight: Tensor) -> bool:
    """Whether the layer computes with a packed copy of the experts in `weight`, as it does on a CPU, and packs them as
    they are: not where it adds columns to them, and not on CUDA, where each kernel has its own order.
    """
    experts = getattr(_moe_kernel(layer), "fused_experts", None)
    plain = hasattr(experts, "isa") and not getattr(experts, "_use_zentorch", False)
    return plain and any(weight.shape == tensor.shape for tensor in layer.parameters(recurse=False))


def _packed_experts(layer: CausalModel, weight: Tensor) -> Tensor:
    """Some experts as the layer packs them."""
    from vllm._custom_ops import cpu_prepack_moe_weight

    return cpu_prepack_moe_weight(weight.contiguous(), layer.quant_method.moe_kernel.fused_experts.isa)


def _unpacked(layer: CausalModel, name: str) -> Tensor:
    """A tensor of the layer as it was loaded: a convolution's is packed in place on a CPU, and vLLM keeps a copy."""
    copy = getattr(layer, "_cpu_unpacked_conv_weight", None) if name == "weight" else None
    return getattr(layer, name) if copy is None else copy


def _blocks(actual: Tensor, expected: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of both, at most `BLOCK` elements at a time."""
    if not expected.ndim:
        yield actual, expected
        return
    rows = max(1, BLOCK // max(1, expected[0].numel()))
    for start in range(0, expected.shape[0], rows):
        yield actual[start : start + rows], expected[start : start + rows]


# The probe, and the verdict


def spread_ids(policy: Policy) -> list[int]:
    """The probe before anything is sampled: tokens from all over the vocabulary, more than the model's window takes."""
    size = policy.model.get_input_embeddings().weight.shape[0]
    shape = policy.model.config.get_text_config()
    windows = [getattr(shape, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
    longest = max(window for window in windows if window <= LONGEST_WINDOW)
    count = min(longest + PROBE_TOKENS, policy.context_length - 1)
    return [(index * 7919 + 11) % size for index in range(count)]


def probe_of(prompt: Sequence[int], completion: Sequence[int], context_length: int) -> list[int]:
    """A prompt and what was sampled for it, from its start: without what comes before them tokens are surprising, and
    rounding moves them more. The engine appends a token to it. Empty if there is no token to compare.
    """
    probe = [*prompt, *completion][: min(PROBE_CONTEXT, context_length - 1)]
    return probe if len(probe) > 1 else []


@torch.no_grad()
def policy_logprobs(policy: Policy, ids: Sequence[int]) -> Tensor:
    """The policy's log-probability at temperature 1 of each token after the first, or of the last tokens of many."""
    inputs = torch.tensor([list(ids)], device=policy.device)
    last = {"logits_to_keep": PROBE_TOKENS} if len(ids) > PROBE_TOKENS else {}
    with policy.processes.autocast():
        said = in_one_pass(policy.model, lambda model: model(input_ids=inputs, use_cache=False, **last))
    logits = said.logits[0, :-1]
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(1, inputs[0, -len(logprobs) :, None])[:, 0].cpu()


@dataclass(frozen=True)
class Compared:
    """What a check found: gaps of log-probabilities, how many tensors were compared, which of them are wrong, and
    whether all of the policy's were (`complete`).
    """

    gaps: Tensor
    wrong: Sequence[str]
    tensors: int
    complete: bool = False


def judged_gap(gaps: Tensor, dtype: torch.dtype) -> float:
    """What is held against the tolerance."""
    return float(gaps.max() if dtype == torch.float32 else gaps.mean())


def require_synced(policy: Policy, found: Compared, first: bool, engine: str) -> None:
    """Raise unless an engine has the weights and the log-probabilities of the policy: `UserError` at the first check,
    which is of weights that no update has touched, and `SyncError` after an update.

    After an update a gap in bfloat16 alone is a warning where every tensor was compared and is right: the weights are
    the policy's, and importance weights correct for the engine's rounding.
    """
    dtype = policy.processes.dtype
    tolerance, gap = GAP_TOLERANCE[dtype], judged_gap(found.gaps, dtype)
    if not found.wrong and gap <= tolerance:
        return
    one = f" ({found.wrong[0]}, ...)" if found.wrong else ""
    findings = (
        f"{len(found.wrong)} of {found.tensors} weight tensors differ{one}; log-probabilities differ by "
        f"{'up to' if dtype == torch.float32 else 'a mean of'} {gap:.2g}, tolerance {tolerance:g}"
    )
    if first:  # it is the model, not an update
        raise UserError(
            f"{engine} does not compute {type(policy.model).__name__} as transformers does: {findings}; {ADVICE}"
        )
    if found.complete and not found.wrong and dtype != torch.float32 and bool(found.gaps.isfinite().all()):
        return logger.warning(
            f"after the sync of update {policy.version} {engine} has the policy's weights: {findings}"
        )
    raise SyncError(
        f"after the sync of update {policy.version} {engine} does not have the policy's weights: {findings}; {ADVICE}"
    )
