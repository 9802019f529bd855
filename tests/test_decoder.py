"""Decoders: each is computed as transformers does, whatever happens to its rows."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from minrl.engines.decoders import (
    CachedDecoder,
    LlamaDecoder,
    RecomputingDecoder,
    has_own_decoder,
    make_decoder,
)
from minrl.models.lora import Adapters
from tests.conftest import small_config
from tests.parsed import sized

HEADS = {"head_dim": 16}
TYPES = {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **more}}


LLAMA3 = rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8)
CONFIGS = {
    "llama with biases": {"attention_bias": True, "mlp_bias": True, **LLAMA3},
    "llama with dynamic rope": {"max_position_embeddings": 28, **rope("dynamic")},
    "llama with yarn": rope("yarn", original_max_position_embeddings=16),
    "qwen2": {},
    "qwen3": HEADS,
    "mistral": {"sliding_window": None},
}


def make_model(name, **more):
    kind, _, _ = name.partition(" ")
    torch.manual_seed(0)
    config = small_config(kind, **{**CONFIGS.get(name, {}), **more})
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
    return (hidden.float() @ model.get_output_embeddings().weight.float().T).log_softmax(-1)


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
    prompts = [torch.randint(3, 40, (count,), generator=generator).tolist() for count in (1, 5, 14)]
    rows = [(prompt, len(prompt), [one]) for prompt, one in zip(prompts, made.prefill(prompts, 13), strict=True)]
    done = []
    for chosen, steps in (([2, 0, 0, 1, 2], 4), ([3, 1, 4], 6), ([1], 3)):
        done += [row for index, row in enumerate(rows) if index not in chosen]
        rows = [rows[index] for index in chosen]
        made.select(torch.tensor(chosen))
        for _ in range(steps):
            tokens = torch.randint(3, 40, (len(rows),), generator=generator)
            hidden = made.step(tokens)
            rows = [
                ([*ids, token], start, [*states, state])
                for (ids, start, states), token, state in zip(rows, tokens.tolist(), hidden, strict=True)
            ]
    return [(ids, start, logprobs_of(torch.stack(states), model)) for ids, start, states in done + rows]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_of_our_own_decoder_is_computed_as_transformers_does(name):
    model = make_model(name)
    made = make_decoder(model)
    assert isinstance(made, LlamaDecoder)
    for ids, start, logprobs in decoded(model, made):
        expected = alone(model, ids)[start - 1 :]
        assert expected.std() > 0.5  # otherwise any two numbers would agree
        torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)


def test_adapters_are_merged_and_in_bfloat16_the_gap_is_small():
    plain, model = make_model("qwen3"), make_model("qwen3")
    for each in (plain, model):
        for weight in each.parameters():
            weight.data = weight.data.bfloat16().float()
    Adapters(model, sized(lora_rank=2, lora_alpha=4), "base", seed=0)
    assert model.model.layers[0].mlp.up_proj.base_layer.weight.dtype == torch.bfloat16  # frozen weights are held so
    for path, weight in model.named_parameters():
        if "lora_B" in path:
            weight.data.normal_(std=0.2)
    for ids, start, logprobs in decoded(model, make_decoder(model)):
        torch.testing.assert_close(logprobs, alone(model, ids)[start - 1 :], atol=1e-4, rtol=0)
        assert (logprobs - alone(plain, ids)[start - 1 :]).abs().max() > 0.1
    with torch.autocast("cpu", torch.bfloat16):
        for ids, start, logprobs in decoded(model, make_decoder(model)):
            expected = alone(model, ids)[start - 1 :]
            assert (logprobs - expected).abs().mean() < 0.05 * expected.std()


LEFT = {
    "qwen2 sliding": ("qwen2", TYPES),
    "mistral sliding": ("mistral", {"sliding_window": 6}),
    "another type": ("gemma3_text", {**HEADS, "layer_types": TYPES["layer_types"], "sliding_window": 6}),
    "granite": ("granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.5}),
}


@pytest.mark.parametrize("name", LEFT)
def test_another_model_is_left_to_transformers_and_its_cache(name):
    kind, fields = LEFT[name]
    model = make_model(kind, **fields)
    assert not has_own_decoder(model)
    made = make_decoder(model)
    assert isinstance(made, CachedDecoder)
    for ids, start, logprobs in decoded(model, made):
        torch.testing.assert_close(logprobs, alone(model, ids)[start - 1 :], atol=1e-4, rtol=0)


def test_without_a_cache_a_row_that_has_ended_stays_inside_the_context():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config("gpt2", n_positions=8)).eval()
    recomputing = RecomputingDecoder(model)
    prompts, tokens = [[1] * 7, [2, 3]], [4, 5, 6, 7]  # the first has ended after one token
    recomputing.prefill(prompts, 5)
    with torch.no_grad():
        for token in tokens:
            hidden = recomputing.step(torch.tensor([token, token]))
        expected = model.transformer(torch.tensor([[2, 3, *tokens]])).last_hidden_state[0, -1]
    torch.testing.assert_close(hidden[1], expected, atol=1e-5, rtol=0)
