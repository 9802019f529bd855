"""Moves the policy's weights into vLLM, here or in a server, and verifies that they are there.

What is moved is what a checkpoint on disk holds, by vLLM's own `reload_weights`. Two checks follow, each of which sees
what the other cannot. The reading (`mismatched_tensors`) compares the weights that the engine computes with, tensor by
tensor and bit by bit after rounding to its precision: it sees the smallest step, but only weights that it finds. The
probe compares log-probabilities: it sees any change of the model's output, but rounding hides a small one.
"""

import re
import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from torch import Tensor, nn

from minrl.dataflow import CausalModel, Completion, Request, UserError, require
from minrl.models.lora import ADAPTER, Adapters, adapted_layers
from minrl.models.sharding import full_tensor, in_one_pass, named_weights, state_of
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

COLUMNS = 64
"""Columns of each packed weight that are read at a time; the next check reads others."""

EXPERTS = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}
"""vLLM's and transformers' names of the tensors that hold all experts of a layer."""

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What vLLM's fused layers hold where a model does not say it (`packed_modules_mapping`)."""

MEMORY = Path("/dev/shm")
"""A folder in memory, on Linux."""

BLOCK = 2**24
"""Elements that are compared at once."""

ADVICE = (
    "try --engine torch, which samples with the policy's own weights; with --sync-check-every 0 the run continues "
    "unverified"
)


class SyncError(RuntimeError):
    """The engine does not hold the policy's weights: what it samples would not be on-policy."""


def require_current(version: int | None, policy: Policy, asked: int | None = None) -> None:
    """Raise unless the weights of this update, which an engine has, are those that are `asked` for (None: the
    policy's), however small an update was.
    """
    current = policy.version if asked is None else asked
    if version != current:
        raise SyncError(
            f"the engine has the weights of update {version} and the policy is at {current}: call wake() and "
            "sync(policy) after each update"
        )


def tensors_of(model: CausalModel) -> dict[str, Tensor]:
    """The weights by name, tied ones once, and the persistent buffers, which are part of the model too."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return named_weights(model) | {n: tensor for n, tensor in state_of(model).items() if n not in parameters}


def as_saved(
    model: CausalModel, weights: Mapping[str, Tensor], without: Container[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """The tensors by the names and in the shapes of a checkpoint, one layer at a time: some of them are copies. In
    memory transformers joins the experts of a layer.
    """
    from transformers.core_model_loading import revert_weight_conversion  # what save_pretrained calls

    for _, names in groupby((name for name in weights if name not in without), layer_of):
        yield from revert_weight_conversion(model, {name: weights[name].detach() for name in names}).items()


def layer_of(name: str) -> str:
    """The layer of a tensor, by the first number in its name."""
    found = re.match(r".*?\.\d+\.", name)
    return found[0] if found else ""


@torch.no_grad()
def copy_experts(held: Sequence["EngineTensor"], weights: Mapping[str, Tensor]) -> set[str]:
    """Copy experts that the engine keeps as they are loaded, all of a layer at once; their names. vLLM's loaders take
    them one by one: 18,432 in Qwen3-30B-A3B. What a reload is not sent it leaves as it was.
    """
    whole = [one for one in held if one.expert is None and dict(one.module.named_parameters()).keys() == EXPERTS.keys()]
    for one in whole:
        getattr(one.module, one.parameter).copy_(weights[one.name])
    return {one.name for one in whole}


def reload(worker: Any, weights: Iterable[tuple[str, Tensor]]) -> None:  # noqa: ANN401 - of vLLM
    """Load weights into a worker's model by vLLM's layerwise reload: a layer is loaded as it was first, with what is
    derived from its weights, and copied to where it was, so that captured graphs stay valid. On a CPU it leaves the
    packed copy of a tied output head as it was, which is made again here.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    with torch.no_grad():
        worker.reload_weights(weights_iterator=iter(weights))
    for module in worker.model_runner.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def load_adapters(llm: Any, model: CausalModel, adapters: Adapters) -> Any:  # noqa: ANN401 - of vLLM
    """Put the adapters, as peft saves them, in the place of those that vLLM has. vLLM reads them from a folder, which
    is in memory where that has room. Returns the request with which vLLM samples with them.
    """
    from vllm.lora.request import LoRARequest

    state = {name: full_tensor(weight) for name, weight in state_of(model).items() if ADAPTER in name}
    size = 2 * sum(weight.nbytes for weight in state.values())
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > size
    with tempfile.TemporaryDirectory(prefix="minrl-", dir=MEMORY if roomy else None) as folder:
        adapters.save(Path(folder), state)
        llm.llm_engine.add_lora(LoRARequest("policy", 1, folder, load_inplace=True))
    return LoRARequest("policy", 1, folder)


# The reading


@dataclass(frozen=True)
class EngineTensor:
    """One tensor of the policy in the engine: rows `start` to `end` of a parameter or buffer of one of its modules, or
    of one expert in it.
    """

    name: str
    module: CausalModel
    parameter: str
    start: int
    end: int | None
    expert: int | None = None

    def read(self, expected: Tensor, version: int) -> tuple[Tensor, Tensor]:
        """The engine's tensor and the expected one on its device: whole, or some columns where it is packed."""
        weight = getattr(self.module, self.parameter)
        weight = weight if self.expert is None else weight[self.expert]
        expected = expected.to(weight.device)  # a server's comes from a file
        if not self._packed(weight):
            rows = weight[self.start : self.end] if weight.ndim else weight
            return rows, expected.reshape(rows.shape) if rows.squeeze().shape == expected.squeeze().shape else expected
        width = expected.shape[1]
        if width != getattr(self.module, "input_size_per_partition", width):  # the product would read past its end
            return weight, expected
        generator = torch.Generator().manual_seed(version)
        columns = torch.randperm(width, generator=generator)[:COLUMNS].to(expected.device)
        units = nn.functional.one_hot(columns, width).to(weight.dtype)
        product = self.module.quant_method.apply(self.module, units, None)  # exact: one term of each sum is not 0
        return product[:, self.start : self.end].T, expected[:, columns]

    def _packed(self, weight: Tensor) -> bool:
        """Whether the engine computes with a packed copy, as vLLM's linear layers and heads do on a CPU."""
        head = type(self.module).__name__ == "ParallelLMHead" and hasattr(self.module, "cpu_linear")
        return self.parameter == "weight" and (weight.numel() == 0 or head)


def find_engine_tensors(engine_model: CausalModel, weights: Mapping[str, Tensor]) -> list[EngineTensor]:
    """Where each of the policy's tensors is in the engine, by name. Fused layers hold several, one after another.

    The lookup is independent of the engine's loader, so that a loader that mixes up layers is noticed.
    """
    fused, found = _fused(engine_model), []
    for wrapped, module in engine_model.named_modules():
        path = wrapped.removesuffix(".base_layer")  # of a layer with an adapter
        prefix, _, last = path.rpartition(".")
        for parameter, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if parameter in EXPERTS:
                found += _experts_in(path, module, parameter, tensor, weights) if _keeps_experts(module) else []
                continue
            start = 0
            for part in [last] if f"{path}.{parameter}" in weights else fused.get(last, []):
                name = f"{prefix}.{part}.{parameter}".removeprefix(".")
                if name in weights:
                    end = start + weights[name].shape[0] if tensor.ndim else None
                    found.append(EngineTensor(name, module, parameter, start, end))
                    start = end or 0
    return found


def _experts_in(
    path: str, module: CausalModel, parameter: str, tensor: Tensor, weights: Mapping[str, Tensor]
) -> list[EngineTensor]:
    """The policy's tensors in one of all experts (E, ...): the same tensor, or in a file a matrix or two of each."""
    base, own, found = path.removesuffix(".routed_experts"), EXPERTS[parameter], list[EngineTensor]()
    if f"{base}.{own}" in weights and weights[f"{base}.{own}"].shape == tensor.shape:
        return [EngineTensor(f"{base}.{own}", module, parameter, 0, None)]
    for expert in range(len(tensor)):
        start = 0
        for name in (f"{base}.{expert}.{part}.weight" for part in FUSED.get(own, [own])):
            if name in weights:
                found.append(EngineTensor(name, module, parameter, start, start + len(weights[name]), expert))
                start += len(weights[name])
    return found


def _fused(engine_model: CausalModel) -> dict[str, Sequence[str]]:
    """The names of the parts of fused layers, by the ends of their names."""
    fused: dict[str, Sequence[str]] = {**FUSED}
    for module in engine_model.modules():
        fused |= getattr(module, "packed_modules_mapping", {})
    return fused


def _keeps_experts(layer: CausalModel) -> bool:
    """Whether the layer's kernel computes with experts as they are loaded; others reorder or pack them."""
    backend = getattr(getattr(layer, "quant_method", None), "unquantized_backend", None)
    return getattr(backend, "name", "") == "TRITON"


@torch.no_grad()
def mismatched_tensors(
    held: Sequence[EngineTensor], weights: Mapping[str, Tensor], dtype: torch.dtype, version: int
) -> list[str]:
    """Names of the tensors in which the engine differs from the policy, rounded to `dtype`."""
    read = ((tensor.name, *tensor.read(weights[tensor.name].detach(), version)) for tensor in held)
    return [name for name, actual, expected in read if _differ(actual, expected, dtype)]


@torch.no_grad()
def mismatched_adapters(engine_model: CausalModel, model: CausalModel, dtype: torch.dtype) -> dict[str, bool]:
    """Whether vLLM's matrices of adapters differ from the policy's, by name. Its one slot has room for a larger rank,
    which must be empty, and B is scaled there. A layer without a slot is refused: it would compute without its adapter.
    """
    layers, fused, held = adapted_layers(model), _fused(engine_model), dict[str, tuple[Tensor, Tensor]]()
    for path, module in engine_model.named_modules():
        if isinstance(getattr(module, "lora_a_stacked", None), tuple):
            prefix, _, last = path.rpartition(".")
            parts = [last] if path in layers else fused.get(last, [])
            for part, *slots in zip(parts, module.lora_a_stacked, module.lora_b_stacked, strict=True):
                held[f"{prefix}.{part}"] = slots[0][0, 0], slots[1][0, 0]
    lacking = next((path for path in layers if path not in held), None)
    require(
        lacking is None,
        f"--lora-serve adapter: vLLM takes no adapter of {lacking}: name other --lora-target-modules, or leave out "
        "--lora-serve adapter",
    )
    differing = {}
    for path, layer in layers.items():
        own = (layer.lora_A, 1.0), (layer.lora_B, layer.scaling["default"])
        for letter, (adapter, scale), actual in zip("AB", own, held[path], strict=True):
            expected = full_tensor(adapter["default"].weight).to(actual.device, dtype) * scale
            room = [actual.shape[1] - expected.shape[1], actual.shape[0] - expected.shape[0]]
            padded = nn.functional.pad(expected, (0, room[0], 0, room[1]))
            differing[f"{path}.lora_{letter}"] = not torch.equal(actual, padded)
    return differing


def _differ(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether any element differs. Some tensors stay in float32, rounded or not, where the rest is in `dtype`."""
    if actual.shape != expected.shape:
        return True
    blocks = zip(actual.reshape(-1).split(BLOCK), expected.reshape(-1).split(BLOCK), strict=True)
    return any(bool(((a != b.to(dtype)) & (a != b.to(a.dtype))).any()) for a, b in blocks)


def unread(held: Sequence[EngineTensor], weights: Mapping[str, Tensor]) -> list[str]:
    """The policy's tensors that were not found in the engine, by any of their names: only the probe checks them."""
    found = {tensor.name for tensor in held}
    storages = {_storage(weights[name]) for name in found}
    return sorted(n for n in weights if n not in found and _storage(weights[n]) not in storages)


def _storage(weight: Tensor) -> int:
    """Where a weight is, or this process's part of it."""
    return getattr(weight, "to_local", lambda: weight)().untyped_storage().data_ptr()


# The probe, and the verdict


def first_probes(policy: Policy) -> list[list[int]]:
    """The texts that are probed before anything is sampled: tokens from all over the vocabulary."""
    size, count = policy.model.get_input_embeddings().weight.shape[0], min(PROBE_TOKENS, policy.context_length - 1)
    return [[(index * 7919 + first) % size for index in range(count)] for first in (11, 23)]


def probes_of(requests: Sequence[Request], completions: Sequence[Completion], context_length: int) -> list[list[int]]:
    """The first and the last prompt with what was sampled for them, from their start: without what comes before them
    tokens are surprising, and rounding moves them more. The engine appends a token. Those with a token to compare.
    """
    ends = zip((requests[0], requests[-1]), (completions[0], completions[-1]), strict=True)
    found = [[*asked.ids, *said.ids][: min(PROBE_CONTEXT, context_length - 1)] for asked, said in ends]
    return [ids for ids in found if len(ids) > 1]


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
class SyncCheck:
    """What a check found: gaps of log-probabilities, how many tensors were compared, which of them are wrong, and
    whether all of the policy's were (`complete`).
    """

    gaps: Tensor
    wrong: Sequence[str]
    tensors: int
    complete: bool = False

    def gap(self, dtype: torch.dtype) -> float:
        """What is held against the tolerance of engines in this precision."""
        return float(self.gaps.max() if dtype == torch.float32 else self.gaps.mean())

    def decides(self, dtype: torch.dtype) -> bool:
        """Whether no second text is probed: a weight is wrong, or the log-probabilities are right. Near a tie a router
        may send the tokens of one text to other experts.
        """
        return bool(self.wrong) or self.gap(dtype) <= GAP_TOLERANCE[dtype]


def require_synced(policy: Policy, found: SyncCheck, first: bool, engine: str) -> None:
    """Raise unless an engine has the weights and the log-probabilities of the policy: `UserError` at the first check,
    which is of weights that no update has touched, and `SyncError` after an update.

    After an update a gap in bfloat16 alone is a warning where every tensor was compared and is right: the weights are
    the policy's, and importance weights correct for the engine's rounding.
    """
    exact = policy.processes.dtype == torch.float32
    tolerance, gap = GAP_TOLERANCE[policy.processes.dtype], found.gap(policy.processes.dtype)
    if not found.wrong and gap <= tolerance:
        return
    one = f" ({found.wrong[0]}, ...)" if found.wrong else ""
    findings = (
        f"{len(found.wrong)} of {found.tensors} weight tensors differ{one}; log-probabilities differ by "
        f"{'up to' if exact else 'a mean of'} {gap:.2g}, tolerance {tolerance:g}"
    )
    if first:  # it is the model, not an update
        raise UserError(
            f"{engine} does not compute {type(policy.model).__name__} as transformers does: {findings}; {ADVICE}"
        )
    if found.complete and not found.wrong and not exact and bool(found.gaps.isfinite().all()):
        return logger.warning(
            f"after the sync of update {policy.version} {engine} has the policy's weights: {findings}"
        )
    raise SyncError(
        f"after the sync of update {policy.version} {engine} does not have the policy's weights: {findings}; {ADVICE}"
    )
