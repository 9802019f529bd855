"""Experts of mixtures multiply in the precision of products."""

import torch
from transformers import Qwen3MoeForCausalLM

import minrl.models.loading  # noqa: F401 - which names our functions to transformers
from minrl.models.experts import use_cast_experts
from tests.conftest import small_config

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
IDS = torch.arange(3, 40)[None]


def computed(model, cast):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        logprobs = model(input_ids=IDS, use_cache=False).logits.float().log_softmax(-1)[..., 7]
    logprobs.sum().backward()
    return logprobs.detach(), model.model.layers[0].mlp.experts.gate_up_proj.grad


def test_in_float32_nothing_changes_and_under_autocast_experts_multiply_in_bfloat16(monkeypatch):
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(small_config("qwen3_moe", head_dim=8, **EXPERTS)).eval()
    for weight in model.parameters():
        weight.data = (weight.data + 0.1 * torch.randn_like(weight)).bfloat16().float()
    exact = computed(model, cast=False)
    use_cast_experts(model)
    assert all(map(torch.equal, computed(model, cast=False), exact))
    dtypes, grouped = set(), torch.nn.functional.grouped_mm
    monkeypatch.setattr(
        torch.nn.functional, "grouped_mm", lambda x, w, **kw: dtypes.add((x.dtype, w.dtype)) or grouped(x, w, **kw)
    )
    logprobs, gradient = computed(model, cast=True)
    assert dtypes == {(torch.bfloat16, torch.bfloat16)} and gradient.dtype == torch.float32
    assert 0 < (logprobs - exact[0]).abs().mean() < 0.05
    assert (gradient - exact[1]).norm() < 0.3 * exact[1].norm()  # a token near a tie may have another expert
    assert "minrl_experts" not in str(model.config.to_dict())  # it is not saved
