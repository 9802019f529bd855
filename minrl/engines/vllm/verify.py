"""Does the engine hold the policy's weights? Two checks, each of which sees what the other cannot.

The probe compares log-probabilities: it sees any change of the model's output, but in bfloat16 rounding hides a small
step. The reading compares the weights that the engine computes with, tensor by tensor and bit by bit after rounding to
its precision: it sees the smallest step, but only weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minrl.policy import Policy
from minrl.types import CausalModel

GAP_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.5}
"""Largest |difference| of log-probabilities (nats) between engine and policy on the probe, at temperature 1."""

PROBE_TOKENS = 32
"""Tokens of the probe: cheap beside a step, and each depends on every layer."""

COLUMNS = 64
"""Columns of each packed weight that are read at a time; the next check reads others."""

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
    """One tensor of the policy in the engine: rows `start` to `end` of a parameter of one of its modules."""

    name: str
    module: CausalModel
    parameter: str
    start: int
    end: int

    def read(self, expected: Tensor, version: int) -> tuple[Tensor, Tensor]:
        """The engine's tensor and the expected one: whole, or some columns where the weight is packed."""
        weight = getattr(self.module, self.parameter)
        if not self._packed(weight):
            return weight[self.start : self.end], expected
        width = expected.shape[1]
        order = torch.randperm(width, generator=torch.Generator().manual_seed(version))
        columns = order[:COLUMNS].to(expected.device)
        units = nn.functional.one_hot(columns, width).to(weight.dtype)
        product = self.module.quant_method.apply(self.module, units, None)  # exact: one term of each sum is not 0
        return product[:, self.start : self.end].T, expected[:, columns]

    def _packed(self, weight: Tensor) -> bool:
        """Whether the engine computes with a packed copy, as vLLM's linear layers and heads do on a CPU."""
        head = type(self.module).__name__ == "ParallelLMHead" and hasattr(self.module, "cpu_linear")
        return self.parameter == "weight" and (weight.numel() == 0 or head)


def find_held(engine_model: CausalModel, weights: Mapping[str, Tensor]) -> list[Held]:
    """Where each of the policy's tensors is in the engine, by name. Fused layers hold several, one after another.

    The lookup is independent of the engine's loader, so that a loader that mixes up layers is noticed.
    """
    fused: Mapping[str, Sequence[str]] = getattr(engine_model, "packed_modules_mapping", {})
    found = []
    for path, module in engine_model.named_modules():
        prefix, _, last = path.rpartition(".")
        for parameter in ("weight", "bias"):
            if getattr(module, parameter, None) is None:
                continue
            start = 0
            for part in fused.get(last, [last]):
                name = ".".join(filter(None, (prefix, part, parameter)))
                if name in weights:
                    end = start + weights[name].shape[0]
                    found.append(Held(name, module, parameter, start, end))
                    start = end
    return found


@torch.no_grad()
def differing(held: Sequence[Held], weights: Mapping[str, Tensor], dtype: torch.dtype, version: int) -> list[str]:
    """Names of the tensors in which the engine differs from the policy, rounded to `dtype`."""
    flags = []
    for tensor in held:
        actual, expected = tensor.read(weights[tensor.name].detach(), version)
        if actual.shape != expected.shape:
            flags.append(torch.ones((), dtype=torch.bool, device=expected.device))
            continue
        flags.append(torch.stack([(a != b.to(dtype)).any() for a, b in _blocks(actual, expected)]).any())
    differs = torch.stack(flags).tolist() if flags else []
    return [tensor.name for tensor, different in zip(held, differs, strict=True) if different]


def unread(held: Sequence[Held], weights: Mapping[str, Tensor]) -> list[str]:
    """The policy's tensors that were not found in the engine: only the probe checks them."""
    return sorted(set(weights) - {tensor.name for tensor in held})


@torch.no_grad()
def policy_logprobs(policy: Policy, ids: Sequence[int]) -> Tensor:
    """The policy's log-probability at temperature 1 of each token after the first."""
    inputs = torch.tensor([list(ids)], device=policy.device)
    with policy.processes.autocast():
        logits = policy.model(input_ids=inputs, use_cache=False).logits[0, :-1]
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(1, inputs[0, 1:, None])[:, 0].cpu()


def spread_ids(policy: Policy) -> list[int]:
    """The probe before anything is sampled: tokens from all over the vocabulary."""
    size = policy.model.get_input_embeddings().weight.shape[0]
    count = min(PROBE_TOKENS, policy.context_length - 1)
    return [(index * 7919 + 11) % size for index in range(count)]


def _blocks(actual: Tensor, expected: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of both, at most `BLOCK` elements at a time."""
    rows = max(1, BLOCK // max(1, expected[0].numel()))
    for start in range(0, expected.shape[0], rows):
        yield actual[start : start + rows], expected[start : start + rows]
