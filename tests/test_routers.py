"""Routers of mixtures of experts compute in float32, in bfloat16 too."""

import pytest
import torch
import torch.nn.functional as F
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minrl.models.modules import exact_routers

SHAPE = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
MANY = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
GROUPS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0}
KINDS = {
    "mixtral": LOCAL,
    "qwen3_moe": MANY,
    "deepseek_v3": LATENT | GROUPS | {"moe_intermediate_size": 24, "n_shared_experts": 1},
    "gpt_oss": LOCAL | {"head_dim": 16},
}
IDS = torch.arange(40, 72)[None]


def make(kind):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**SHAPE | KINDS[kind])).eval()
    for weight in model.parameters():
        weight.data = torch.randn_like(weight) / 4 if weight.ndim > 1 else weight.data
    return model


def seen(model, paths, ids=IDS):
    """The input and the first output of each router in a forward pass in bfloat16."""
    calls = []
    hooks = [
        model.get_submodule(path).register_forward_hook(
            lambda module, inputs, output: calls.append((module, inputs[0], output))
        )
        for path in paths
    ]
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return calls


@pytest.mark.parametrize("kind", KINDS)
def test_every_router_multiplies_in_float32_under_autocast(kind):
    model = make(kind)
    plain = model(input_ids=IDS, use_cache=False).logits
    paths = exact_routers(model, model.config)
    assert len(paths) == SHAPE["num_hidden_layers"]
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits, plain)  # nothing changes in float32
    for module, inputs, output in seen(model, paths):
        outputs = output if isinstance(output, tuple) else (output,)
        expected = F.linear(inputs.float().flatten(0, -2), module.weight, getattr(module, "bias", None))
        logits = [one for one in outputs if one.shape[-1] == len(module.weight) and one.dtype == torch.float32]
        assert any(torch.allclose(one.flatten(0, -2), expected, atol=1e-6, rtol=0) for one in logits)


def test_the_gradient_of_a_router_is_that_of_float32():
    model = make("qwen3_moe")
    (path, *_) = exact_routers(model, model.config)
    router = model.get_submodule(path)
    hidden = torch.randn(24, 32, requires_grad=True)
    exact = hidden.detach().clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = router(hidden)[1].square().sum()
    loss.backward()  # outside of autocast, as in an update
    found = router.weight.grad.clone()
    router.weight.grad = None
    router(exact)[1].square().sum().backward()
    assert torch.equal(found, router.weight.grad) and torch.equal(hidden.grad, exact.grad)
    assert float(found.abs().max()) > 1e-3
