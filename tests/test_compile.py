"""Compiled layers compute what the others do, with inductor on a CPU."""

import shutil

import pytest
import torch
from transformers import Qwen3ForCausalLM

import minrl.models.loading  # noqa: F401 - which names our functions to transformers
from minrl.batch import pack
from minrl.models.compiled import compile_layers, is_compiled
from minrl.models.scoring import sampled_rollout, score
from minrl.models.structure import decoder_of
from tests.conftest import small_config

WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
LENGTHS = ((3, 20, 31), (5, 17), (9, 40, 7))
"""Of completions, in streams of different sizes."""


def scored(compiled):
    """Log-probabilities, entropies and gradients of each stream."""
    torch.manual_seed(0)
    model, found = Qwen3ForCausalLM(small_config("qwen3", num_hidden_layers=3, head_dim=16, **WINDOWS)).eval(), []
    if compiled:
        compile_layers(model)
    assert is_compiled(decoder_of(model)) == compiled
    for lengths in LENGTHS:
        rollouts = [sampled_rollout(list(range(5, 25)), [7 + length % 30] * length) for length in lengths]
        logprobs, entropy = score(model, pack(rollouts, range(len(rollouts))), 0.8, recompute=True)
        model.zero_grad()
        (logprobs.sum() + 0.1 * entropy.sum()).backward()
        found += [logprobs.detach(), entropy.detach(), *(weight.grad.clone() for weight in model.parameters())]
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_loss_and_gradients_are_those_of_layers_that_are_not_compiled():
    for new, old in zip(scored(True), scored(False), strict=True):
        assert (new - old).norm() <= 1e-5 * old.norm()
