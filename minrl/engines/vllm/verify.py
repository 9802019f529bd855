"""Does the engine hold the policy's weights? Two checks, each of which sees what the other cannot.

The probe compares log-probabilities: it sees any change of the model's output, but in bfloat16 rounding hides a small
step. The reading compares the weights that the engine computes with, tensor by tensor and bit by bit after rounding to
its precision: it sees the smallest step, but only weights.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from minrl.engines.vllm import versions as vllm_versions
from minrl.models.sharding import in_one_pass
from minrl.policy import Policy
from minrl.types import CausalModel, UserError

GAP_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.5}
"""Largest |difference| of log-probabilities (nats) between engine and policy on the probe, at temperature 1."""

PROBE_TOKENS = 32
"""Tokens of the probe: cheap beside a step, and each depends on every layer."""

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


@dataclass(frozen=True)
class Held:
    """One tensor of the policy in the engine: rows `start` to `end` of a parameter or buffer of one of its modules."""

    name: str
    module: CausalModel
    parameter: str
    start: int
    end: int | None
    transposed: bool = False

    def read(self, expected: Tensor, version: int) -> tuple[Tensor, Tensor]:
        """The engine's tensor and the expected one: whole, or some experts, or some columns where it is packed."""
        weight = vllm_versions.unpacked(self.module, self.parameter)
        expected = expected.T if self.transposed else expected
        generator = torch.Generator().manual_seed(version)
        if self.parameter in EXPERTS:
            some = torch.randperm(len(weight), generator=generator)[:FEW_EXPERTS]
            return weight[some], vllm_versions.packed_experts(self.module, expected[some].to(weight.dtype))
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


def find_held(engine_model: CausalModel, weights: Mapping[str, Tensor], transposed: Collection[str] = ()) -> list[Held]:
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
                if name and f"{name}_bias" not in weights and vllm_versions.packs_experts(module, weights[name]):
                    found.append(Held(name, module, parameter, 0, None))
                continue
            start = 0
            whole = _place(f"{path}.{parameter}") in names
            for part in [last] if whole else fused.get(last, []):
                name = names.get(_place(f"{prefix}.{part}.{parameter}"), "")
                if name:
                    end = start + weights[name].shape[-1 if name in transposed else 0] if tensor.ndim else None
                    found.append(Held(name, module, parameter, start, end, name in transposed))
                    start = end or 0
    return found


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
def differing(
    held: Sequence[Held],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
    version: int,
    in_any: Callable[[list[bool]], list[bool]] = list,
) -> list[str]:
    """Names of the tensors in which the engine differs from the policy, rounded to `dtype`. `in_any` tells which differ
    in some process: all of them look at the same ones again, because weights may be gathered for it.

    Some loaders change the order of rows (Falcon's queries, keys and values, Llama 4's for its rotary positions): in
    another order they are the same, which is the probe's to judge.
    """
    pairs = (tensor.read(weights[tensor.name].detach(), version) for tensor in held)
    flags = [_differ(actual, expected, dtype) for actual, expected in pairs]
    found = torch.stack(flags).tolist() if flags else []  # one wait for the device
    again = [tensor for tensor, differs in zip(held, in_any(found), strict=True) if differs]
    own = {tensor.name for tensor, differs in zip(held, found, strict=True) if differs}
    reordered = {t.name for t in again if _only_reordered(t, weights[t.name].detach(), dtype, version)}
    return [tensor.name for tensor in held if tensor.name in own - reordered]


def _differ(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether any element differs. Some tensors stay in float32, rounded or not, where the rest is in `dtype`."""
    if actual.shape != expected.shape:
        return torch.ones((), dtype=torch.bool, device=expected.device)
    blocks = _blocks(actual, expected)
    return torch.stack([((a != b.to(dtype)) & (a != b.to(a.dtype))).any() for a, b in blocks]).any()


def _only_reordered(tensor: Held, expected: Tensor, dtype: torch.dtype, version: int) -> bool:
    """Whether the engine has the expected rows in another order."""
    actual, expected = tensor.read(expected, version)
    if not expected.ndim or actual.shape != expected.shape:
        return False
    return not _differ(actual.sort(0).values, expected.sort(0).values, dtype)


def unread(held: Sequence[Held], weights: Mapping[str, Tensor]) -> list[str]:
    """The policy's tensors that were not found in the engine, by any of their names: only the probe checks them."""
    found = {tensor.name for tensor in held}
    storages = {_storage(weights[name]) for name in found}
    return sorted(n for n in weights if n not in found and _storage(weights[n]) not in storages)


def _storage(weight: Tensor) -> int:
    """Where a weight is, or this process's part of it."""
    return getattr(weight, "to_local", lambda: weight)().untyped_storage().data_ptr()


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


def judged_gap(gaps: Tensor, names: Iterable[str], dtype: torch.dtype) -> float:
    """What is held against the tolerance: the largest gap of the probe.

    Where experts are chosen in bfloat16 it is the mean: a token near a tie goes to another expert after any rounding,
    and its gap alone says nothing.
    """
    routed = dtype != torch.float32 and any(".experts." in name for name in names)
    return float(gaps.mean() if routed else gaps.max())


@dataclass(frozen=True)
class Compared:
    """What a check found: gaps of log-probabilities, wrong tensors, and how many tensors were compared."""

    gaps: Tensor
    wrong: Sequence[str]
    tensors: int


def require_synced(policy: Policy, found: Compared, names: Iterable[str], first: bool, engine: str) -> None:
    """Raise unless an engine has the weights, of these names, and the log-probabilities of the policy: `UserError` at
    the first check, which is of weights that no update has touched, and `SyncError` after an update.
    """
    dtype = policy.processes.dtype
    tolerance = GAP_TOLERANCE[dtype]
    if not found.wrong and judged_gap(found.gaps, names, dtype) <= tolerance:
        return
    one = f" ({found.wrong[0]}, ...)" if found.wrong else ""
    findings = (
        f"{len(found.wrong)} of {found.tensors} weight tensors differ{one}; log-probabilities differ by up to "
        f"{float(found.gaps.max()):.2g}, tolerance {tolerance:g}; {ADVICE}"
    )
    if first:  # it is the model, not an update
        raise UserError(f"{engine} does not compute {type(policy.model).__name__} as transformers does: {findings}")
    raise SyncError(
        f"after the sync of update {policy.version} {engine} does not have the policy's weights: {findings}"
    )


def spread_ids(policy: Policy) -> list[int]:
    """The probe before anything is sampled: tokens from all over the vocabulary, more than the model's window takes."""
    size = policy.model.get_input_embeddings().weight.shape[0]
    shape = policy.model.config.get_text_config()
    windows = [getattr(shape, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
    longest = max(window for window in windows if window <= LONGEST_WINDOW)
    count = min(longest + PROBE_TOKENS, policy.context_length - 1)
    return [(index * 7919 + 11) % size for index in range(count)]


def _blocks(actual: Tensor, expected: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of both, at most `BLOCK` elements at a time."""
    if not expected.ndim:
        yield actual, expected
        return
    rows = max(1, BLOCK // max(1, expected[0].numel()))
    for start in range(0, expected.shape[0], rows):
        yield actual[start : start + rows], expected[start : start + rows]
