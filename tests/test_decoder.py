"""The decoder of our own: every shape that it takes is computed as transformers does, and no other is taken."""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minrl.engines.decoder import LlamaDecoder, make_decoder

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 6
TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
HEADS = {"head_dim": 16}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
LONG = {
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 28,
}
CONFIGS = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True, **rope("llama3", **LLAMA3)},
    "llama with dynamic rope": {"max_position_embeddings": 28, **rope("dynamic", factor=4.0)},
    "llama with yarn": YARN,
    "qwen2": {},
    "qwen2 sliding": {"use_sliding_window": True, **TYPES},
    "qwen3": HEADS,
    "qwen3 sliding": {**HEADS, "use_sliding_window": True, **TYPES},
    "mistral": {"sliding_window": WINDOW},
    "ministral": {**HEADS, **TYPES},
    "ministral3": {
        "sliding_window": None,
        **HEADS,
        **rope("yarn", factor=4.0, original_max_position_embeddings=8, llama_4_scaling_beta=0.3),
    },
    "mixtral": {"num_local_experts": 6, "sliding_window": WINDOW},
    "qwen3_moe": {**MOE, **HEADS, "use_sliding_window": True, "sliding_window": WINDOW, "norm_topk_prob": True},
    "qwen3_moe with dense layers": {**MOE, **HEADS, "mlp_only_layers": [0]},
    "qwen2_moe": {**MOE, "use_sliding_window": True, "shared_expert_intermediate_size": 40, **TYPES},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": 6, "num_experts_per_tok": 2},
    "phi3": {"sliding_window": WINDOW},
    "phi3 in part": {**rope("default", partial_rotary_factor=0.5), "sliding_window": None},
    "phi3 longrope": {**rope("longrope", **LONG), "original_max_position_embeddings": 28, "sliding_window": None},
    "smollm3": {"no_rope_layers": [1, 0]},
    "smollm3 sliding": {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": WINDOW},
    "starcoder2": {"sliding_window": WINDOW},
    "olmo": {},
    "olmo2": {},
    "olmo3": TYPES,
    "exaone4": TYPES,
    "exaone4 without windows": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    "gemma": HEADS,
    "gemma2": {**HEADS, **TYPES, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 20},
    "gemma3_text": {**HEADS, **TYPES, "query_pre_attn_scalar": 20},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "glm": {"head_dim": 8, "attention_bias": True},
    "glm4": {"head_dim": 8, "attention_bias": True},
    "helium": {"head_dim": 8},
    "ernie4_5": {"head_dim": 8},
    "cohere": {"use_qk_norm": True},
    "cohere2": TYPES,
    "seed_oss": HEADS,
    "arcee": {},
    "hunyuan_v1_dense": HEADS,
    "nanochat": {},
}


def make_model(name, **more):
    kind, _, _ = name.partition(" ")
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**SMALL, **CONFIGS[name], **more})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():  # every weight counts, and tokens differ in probability
        for path, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight), alpha=0.3)
            else:
                size = 2.0 if path.endswith("embed_tokens.weight") else 1.5 * weight.shape[-1] ** -0.5
                weight.copy_(torch.randn_like(weight) * size)
    return model


def logprobs_of(hidden, model):
    return (hidden.float() @ model.get_output_embeddings().weight.T.float()).log_softmax(-1)


@torch.no_grad()
def alone(model, ids):
    """Log-probabilities of every token after each position of a sequence, by transformers' plain forward pass."""
    return logprobs_of(model.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0], model)


@torch.no_grad()
def decoded(model, made):
    """Rows as they are decoded: the sequence, the length of its prompt, and log-probabilities of every token after each
    position from the prompt's end on. Rows are repeated, reordered and dropped on the way.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 60, (count,), generator=generator).tolist() for count in (1, 5, 14)]
    rows = [(prompt, len(prompt), [one]) for prompt, one in zip(prompts, made.prefill(prompts, 13), strict=True)]
    done = []
    for chosen, steps in (([2, 0, 0, 1, 2], 4), ([3, 1, 4], 6), ([1], 3)):
        done += [row for index, row in enumerate(rows) if index not in chosen]
        rows = [rows[index] for index in chosen]
        made.select(torch.tensor(chosen))
        for _ in range(steps):
            tokens = torch.randint(3, 60, (len(rows),), generator=generator)
            hidden = made.step(tokens)
            rows = [
                ([*ids, token], start, [*states, state])
                for (ids, start, states), token, state in zip(rows, tokens.tolist(), hidden, strict=True)
            ]
    return [(ids, start, logprobs_of(torch.stack(states), model)) for ids, start, states in done + rows]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shape_is_computed_as_transformers_does(name):
    model = make_model(name)
    made = make_decoder(model)
    assert isinstance(made, LlamaDecoder)
    for ids, start, logprobs in decoded(model, made):
        expected = alone(model, ids)[start - 1 :]
        assert expected.std() > 0.5  # otherwise any two numbers would agree
        torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)
