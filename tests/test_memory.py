"""What a process holds, part by part: by hand for a model of 1,888 weights, and what the preflight advises.

Three layers of 600 weights: queries and the output 8 x 8 each, keys and values 8 x 4 each, three times 8 x 16, norms of
8 + 8 + 4 + 4. Outside them an embedding of 10 x 8, which is also the head, and a norm of 8: 88.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from minrl.batch import pack
from minrl.config import AlgorithmConfig, TrainerConfig
from minrl.models.memory import Setup, Weights, least_activations, needed, weights_of
from minrl.models.scoring import kept_bytes, sampled_rollout, score
from minrl.models.text import decoder_of, layers_of
from minrl.run.preflight import memory_findings, setup_of
from tests.three_layers import SHAPE, WEIGHTS

CONFIG = Qwen3Config(**SHAPE, pad_token_id=0, eos_token_id=1)
KEPT = 10 * (40 * 8 + 16 * 4 + 4 * 4 * 16)
"""Bytes that a layer keeps of 10 tokens in float32."""
ADAPTED = Weights(total=1888 + 768, trained=768, held=1888, layer=856, outer=88)
"""With adapters of rank 2 on each of seven matrices: 2 x (2 x (8 + 8) + 2 x (8 + 4) + 3 x (8 + 16)) in a layer."""
ALONE = Setup(tokens=10)
PARTS = {
    "none": {"weights": 4 * 1888, "gradients": 4 * 1888, "moments": 8 * 1888, "buffers": 4 * 1888, "casts": 0},
    # A layer and what is outside are whole; the next layer is on its way, and a layer's gradients are whole twice.
    "full": {
        "weights": 1888,
        "gradients": 1888,
        "moments": 2 * 1888,
        "gathered": 4 * 688,
        "buffers": 4 * 88 + 4 * 600 + 2 * 4 * 600,
    },
    "hybrid": {"weights": 2 * 1888, "gradients": 2 * 1888, "moments": 4 * 1888, "gathered": 4 * 688},
}


def parts(weights=WEIGHTS, **changes):
    return vars(needed(weights, CONFIG, replace(ALONE, **changes)))


def test_the_weights_are_those_of_the_model():
    model = Qwen3ForCausalLM(CONFIG)
    assert weights_of(model, layers_of(decoder_of(model))) == WEIGHTS


@pytest.mark.parametrize("sharding", PARTS)
def test_four_processes_on_two_nodes(sharding):
    held = parts(processes=4, nodes=2, sharding=sharding)
    assert {name: held[name] for name in PARTS[sharding]} == PARTS[sharding]
    half = parts(processes=4, nodes=2, sharding=sharding, bfloat16=True, recompute=False, reference=True)
    assert half["casts"] == 2 * (1888 if sharding == "none" else 688)
    assert half["reference"] == {"none": 4, "full": 1, "hybrid": 2}[sharding] * 1888
    assert half["activations"] == 3 * 10 * (40 * 8 + 16 * 4 + 4 * 2 * 16)  # what all layers keep
    assert held["activations"] == 3 * 10 * 8 * 4 + 2 * KEPT  # the layers' inputs, and one layer twice
    assert (held["gathered"] > 0) == (sharding != "none")


def test_frozen_weights_take_two_bytes_and_adapters_twelve_more_than_none():
    held = parts(ADAPTED)
    assert held["weights"] == 2 * 1888 + 4 * 768
    assert (held["gradients"], held["moments"]) == (4 * 768, 8 * 768)
    assert held["casts"] == 4 * 8 * 10  # the head, for its product


def test_each_engine_has_its_place():
    """Two bytes for each weight in vLLM, without adapters; nothing here for a server; all weights for our own."""
    vllm = needed(ADAPTED, CONFIG, replace(ALONE, engine="vllm", tensor_parallel=2, bfloat16=True, cache=5000))
    assert (vllm.engine, vllm.copies, vllm.cache) == (1888, 0, 5000)
    assert vllm.sampling == vllm.weights + vllm.moments + 1888 + 5000
    assert vllm.update == vllm.weights + vllm.gradients + vllm.moments + vllm.casts + vllm.activations + vllm.engine
    server = needed(WEIGHTS, CONFIG, replace(ALONE, engine="vllm-server", cache=5000))
    assert (server.engine, server.copies, server.cache) == (0, 0, 0)
    # Queries, keys and values, and gate and up, side by side in each layer.
    beside = 4 * 3 * (8 * (8 + 4 + 4) + 2 * 8 * 16)
    own = parts(cache=5000)
    assert (own["copies"], own["cache"]) == (beside, 5000)
    assert parts(own_decoder=False)["copies"] == 0
    assert parts(processes=2, sharding="full")["copies"] == beside + 4 * 1888
    assert needed(WEIGHTS, CONFIG, replace(ALONE, cache=2**40)).total == 4 * 1888 + 8 * 1888 + beside + 2**40


@pytest.fixture
def free(policy, monkeypatch):
    """Sets how much memory is free."""

    def set_free(count):
        monkeypatch.setattr(type(policy), "free_memory", lambda self: count)

    return set_free


def missing(policy, config):
    """Free bytes with which a run does not fit any more."""
    weights = weights_of(policy.model, layers_of(decoder_of(policy.model)))
    need = needed(weights, policy.model.config, setup_of(policy, config))
    return need.total - need.weights - need.reference


def test_a_run_that_does_not_fit_is_a_finding(policy, free):
    config = TrainerConfig(algorithm=AlgorithmConfig(kl_coef=0.1))
    short = missing(policy, config)
    free(short + 1)
    assert [*memory_findings(policy, config)] == []
    free(short)
    (finding,) = memory_findings(policy, config)
    assert "--micro-batch-tokens 1024" in finding and "choose a smaller model" in finding


@pytest.mark.parametrize(("dtype", "itemsize"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_layer_keeps_what_is_estimated(dtype, itemsize):
    sizes = {"vocab_size": 50, "hidden_size": 128, "intermediate_size": 384, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    stream, kept, least = pack([sampled_rollout([0], [0] * 255)], [0]), [], []
    for layers in (1, 2):
        config = AutoConfig.for_model("qwen3", **sizes, **heads, num_hidden_layers=layers)
        model = AutoModelForCausalLM.from_config(config)
        with torch.autocast("cpu", dtype=dtype, enabled=itemsize == 2):
            kept.append(kept_bytes(partial(score, model, stream, 1.0)))
        least.append(least_activations(config, 256, itemsize))
    weights = itemsize * sum(weight.numel() for weight in model.model.layers[0].parameters())
    one_layer = (least[0] - (least[1] - least[0])) / 2  # what is left without the inputs, twice
    assert kept[1] - kept[0] - weights == pytest.approx(one_layer, rel=0.06)
