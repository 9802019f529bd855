"""The sizes that memory is planned by, of every config that transformers has."""

from types import SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minrl.engines.torch_engine import footprint
from minrl.models.shape import UNLIMITED, context_length, keeps_states, shape_of

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0, "eos_token_id": 1}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "bos_token_id": None}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}


def config_of(kind, **changes):
    return CONFIG_MAPPING[kind](**SMALL | HEADS | changes)


@pytest.mark.parametrize(
    ("kind", "changes", "numbers"),
    [
        ("llama", {}, 2 * 2 * 2 * 8),  # layers, keys and values, groups, head size
        ("deepseek_v3", LATENT | {"num_key_value_heads": 4, "first_k_dense_replace": 2}, 2 * (16 + 8)),
        ("qwen3_5_text", LINEAR | {"head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}, 2 * 2 * 8),
        ("gpt2", {"num_key_value_heads": 4}, 2 * 2 * 4 * 8),
    ],
)
def test_a_cache_holds_what_its_footprint_says(kind, changes, numbers):
    config = config_of(kind, **changes)
    model = AutoModelForCausalLM.from_config(config).eval()
    cache = model(torch.ones(1, 5, dtype=torch.long), use_cache=True).past_key_values
    held = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    assert sum(t.numel() for t in held if t is not None) == 5 * numbers
    shape = shape_of(config)
    assert shape.cached == numbers + (4 * (24 + 12) if kind == "deepseek_v3" else 0)  # of one layer at a time
    assert footprint(model, 2).slot == 2 * shape.cached


def test_a_recurrent_state_counts_for_each_row_and_not_for_each_token():
    config = config_of("qwen3_5_text", **LINEAR, head_dim=8, layer_types=["linear_attention"] * 2)
    shape = shape_of(config)
    assert (shape.cached, shape.state) == (0, 2 * 4 * 8 * 8)
    of = footprint(SimpleNamespace(config=config), 4)
    assert of.row == 4 * (4 * 64 + 512) and of.slot == 0
    mamba = CONFIG_MAPPING["mamba"](**SMALL, state_size=16)
    assert (shape_of(mamba).cached, shape_of(mamba).state) == (0, 2 * 64 * 16)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (config_of("llama"), False),
        (config_of("gemma3_text", layer_types=["sliding_attention", "full_attention"]), False),
        (config_of("qwen3_5_text", **LINEAR, layer_types=["linear_attention", "full_attention"]), True),
        (config_of("lfm2", layer_types=["full_attention", "conv"]), True),
        (CONFIG_MAPPING["mamba"](**SMALL), True),
    ],
)
def test_recurrent_layers_and_convolutions_keep_states(config, expected):
    assert keeps_states(config) is expected


def test_experts_count_as_many_as_a_token_is_sent_to():
    moe = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 24}
    assert shape_of(config_of("qwen3_moe", **moe)).inner == 4 * 24
    assert shape_of(config_of("mixtral", num_local_experts=8, num_experts_per_tok=2)).inner == 2 * 48


def test_the_context_is_that_of_the_text_part_and_unlimited_without_positions():
    def context(kind, **values):
        return context_length(SimpleNamespace(config=CONFIG_MAPPING[kind](**values)))

    assert context("gemma3", text_config={"max_position_embeddings": 77}) == 77
    assert context("mpt", max_seq_len=79) == 79
    assert context("mamba") == UNLIMITED
