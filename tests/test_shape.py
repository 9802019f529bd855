"""Sizes that are read from configs."""

from types import SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minrl.models.shape import UNLIMITED, cached_numbers, context_length
from tests.conftest import small_config


@pytest.mark.parametrize(("kind", "groups"), [("llama", 2), ("qwen3", 4), ("gpt2", 4)])
def test_a_cache_holds_as_many_numbers_as_are_counted(kind, groups):
    config = small_config(kind, num_key_value_heads=groups)
    model = AutoModelForCausalLM.from_config(config).eval()
    cache = model(torch.ones(1, 5, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert held == 5 * cached_numbers(config)


def test_the_context_is_that_of_the_text_part_and_unlimited_without_positions():
    def context(kind, **values):
        return context_length(SimpleNamespace(config=CONFIG_MAPPING[kind](**values)))

    assert context("gemma3", text_config={"max_position_embeddings": 77}) == 77
    assert context("mpt", max_seq_len=79) == 79
    assert context("mamba") == UNLIMITED
