"""Sizes that are read from configs."""

from types import SimpleNamespace

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minrl.models.shape import UNLIMITED, cached_numbers, context_length
from tests.conftest import small_config


def test_a_cache_holds_as_many_numbers_as_are_counted():
    config = small_config("llama", num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config).eval()
    cache = model(torch.ones(1, 5, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert held == 5 * cached_numbers(config)


def test_the_context_is_that_of_the_text_part_and_unlimited_without_positions():
    def context(kind, **values):
        return context_length(SimpleNamespace(config=CONFIG_MAPPING[kind](**values)))

    assert context("gemma3", text_config={"max_position_embeddings": 77}) == 77
    assert context("mamba") == UNLIMITED
