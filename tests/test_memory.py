"""What a process holds, part by part: by hand for a model of 1,888 weights, and what the preflight advises.

Three layers of 600 weights: queries and the output 8 x 8 each, keys and values 8 x 4 each, three times 8 x 16, norms of
8 + 8 + 4 + 4. Outside them an embedding of 10 x 8, which is also the head, and a norm of 8: 88.
"""

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from minrl.config import AlgorithmConfig, LoraConfig, ModelConfig, OptimizerConfig, RolloutConfig, TrainerConfig
from minrl.models.launch import Launch
from minrl.models.memory import BUCKET, Setup, Weights, needed, weights_of, with_adapters
from minrl.models.text import decoder_of, layers_of
from minrl.run.preflight import _ways, memory_findings, setup_of
from tests.three_layers import SHAPE, WEIGHTS

CONFIG = Qwen3Config(**SHAPE, pad_token_id=0, eos_token_id=1)
KEPT = 10 * (40 * 8 + 16 * 4 + 4 * 4 * 16)
"""Bytes that a layer keeps of 10 tokens in float32."""
ALONE = Setup(tokens=10)
PARTS = {
    "none": {"weights": 4 * 1888, "gradients": 4 * 1888, "moments": 8 * 1888, "buffers": 4 * 1888},
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
    assert held["activations"] == 3 * 10 * 8 * 4 + 2 * KEPT  # the layers' inputs, and one layer twice
    assert (held["gathered"] > 0) == (sharding != "none")


def test_one_process_holds_everything_and_tells_nobody():
    alone = parts()
    assert (alone["weights"], alone["gathered"], alone["buffers"]) == (4 * 1888, 0, 0)
    assert parts(sharding="full") == alone


def test_gradients_are_sent_in_buckets_and_a_large_one_alone():
    many = replace(WEIGHTS, total=10**9, trained=10**9)
    assert parts(many, processes=2)["buffers"] == BUCKET
    assert needed(replace(many, outer=2**27), wide(2**24), replace(ALONE, processes=2)).buffers == 4 * 8 * 2**24
    adapted = replace(many, trained=10**7, outer=2**27)
    assert needed(adapted, wide(2**24), replace(ALONE, processes=2)).buffers == 4 * 10**7  # no gradient for the rest


def wide(vocabulary):
    return Qwen3Config(**{**CONFIG.to_dict(), "vocab_size": vocabulary})


def test_without_computing_again_every_layer_keeps_its_part():
    assert parts(recompute=False)["activations"] == 3 * KEPT


def test_large_outer_weights_are_the_peak_at_the_end_of_the_backward_pass():
    weights = replace(WEIGHTS, total=1888 + 10_000, trained=11_888, outer=10_088)
    assert parts(weights, processes=2, sharding="full")["buffers"] == 2 * 4 * 10_088


def test_casts_are_of_all_weights_or_of_those_that_are_gathered():
    assert parts(bfloat16=True)["casts"] == 2 * 1888
    assert parts(bfloat16=True, processes=2, sharding="full")["casts"] == 2 * 688
    assert parts()["casts"] == 0


def test_frozen_weights_take_two_bytes_and_adapters_twelve_more_than_none():
    # Rank 2 on each of seven matrices: 2 x (2 x (8 + 8) + 2 x (8 + 4) + 3 x (8 + 16)) in a layer.
    adapted = with_adapters(WEIGHTS, CONFIG, 2, bfloat16=True)
    assert adapted == Weights(total=1888 + 768, trained=768, held=1888, layer=856, outer=88)
    held = parts(adapted)
    assert held["weights"] == 2 * 1888 + 4 * 768
    assert (held["gradients"], held["moments"]) == (4 * 768, 8 * 768)
    assert held["casts"] == 4 * 8 * 10  # the head, for its product
    assert with_adapters(adapted, CONFIG, 2, bfloat16=True).trained == 768  # not on top of each other
    assert with_adapters(WEIGHTS, CONFIG, 2, bfloat16=False).held == 0


def test_each_engine_has_its_place():
    """Two bytes for each weight in vLLM, without adapters; nothing here for a server; all weights for our own."""
    adapted = with_adapters(WEIGHTS, CONFIG, 2, bfloat16=True)
    vllm = needed(adapted, CONFIG, replace(ALONE, engine="vllm", tensor_parallel=2, bfloat16=True, cache=5000))
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


def test_a_reference_is_divided_as_the_weights_are():
    assert parts()["reference"] == 0
    assert parts(reference=True)["reference"] == 4 * 1888
    assert parts(reference=True, processes=4, sharding="full")["reference"] == 1888


def test_a_teacher_has_a_size_of_its_own_and_is_scored_before_the_first_gradient():
    # Ten times the weights, of which 8,800 are outside the layers and 6,000 in each.
    teacher = Weights(total=10 * 1888, trained=0, layer=6000, outer=880)
    assert (parts()["teacher"], parts()["teacher_pass"]) == (0, 0)
    plain = needed(WEIGHTS, CONFIG, replace(ALONE, teacher=teacher))
    assert (plain.teacher, plain.teacher_pass) == (4 * 18_880, 0)
    assert plain.update == needed(WEIGHTS, CONFIG, ALONE).update + 4 * 18_880
    cast = needed(WEIGHTS, CONFIG, replace(ALONE, teacher=teacher, bfloat16=True))
    assert cast.teacher_pass == 2 * 18_880 and cast.total == max(cast.update, cast.held + 2 * 18_880)
    divided = needed(WEIGHTS, CONFIG, replace(ALONE, teacher=teacher, processes=4, sharding="full", bfloat16=True))
    assert (divided.teacher, divided.teacher_pass) == (18_880, (2 + 4) * 6880)


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


def test_what_would_make_a_run_fit_is_named(policy, free):
    config = TrainerConfig(algorithm=AlgorithmConfig(kl_coef=0.1))
    short = missing(policy, config)
    free(short + 1)
    assert [*memory_findings(policy, config)] == []
    free(short)
    (finding,) = memory_findings(policy, config)
    fit = "it fits with --micro-batch-tokens 1024 or --optimizer adamw8bit or --lora-rank 16 or --sharding full in 2 pr"
    assert fit in finding
    # With 8 bits only: the update of one micro-batch of 1 token, whose moments take 6 bytes less for each weight.
    small = replace(config, optimizer=OptimizerConfig(micro_batch_tokens=1))
    few = replace(small, optimizer=OptimizerConfig(micro_batch_tokens=1, optimizer="adamw8bit"))
    free(missing(policy, few) + 1)
    (finding,) = memory_findings(policy, small)
    assert "it fits with --optimizer adamw8bit" in finding and "--micro-batch-tokens" not in finding
    free(1)
    (finding,) = memory_findings(policy, few)
    assert "choose a smaller model" in finding and "none of these is enough alone: --lora-rank 16, --shard" in finding
    assert "--optimizer" not in finding and "in 64 processes" in finding


def test_an_engine_that_takes_the_room_is_moved(policy, monkeypatch, free):
    """The embedded engine gathers all weights of shards; a server takes nothing here."""
    few = OptimizerConfig(micro_batch_tokens=1)  # the cache of 192 rows is more than what the update holds
    config = TrainerConfig(model=ModelConfig(sharding="full"), optimizer=few)
    monkeypatch.setattr(type(policy.processes), "count", 2)
    free(missing(policy, config))
    (finding,) = memory_findings(policy, config)
    assert "--engine vllm-server" in finding.partition("it fits with")[2]
    weights = weights_of(policy.model, layers_of(decoder_of(policy.model)))
    setup = replace(setup_of(policy, config), engine="vllm", nodes=1, cache=0)
    named = dict(_ways(weights, policy.model.config, setup, 2**60))
    assert named["--engine-tensor-parallel 2"] and named["--engine vllm-server"]
    assert not any(dict(_ways(weights, policy.model.config, setup, 0)).values())


def test_the_setup_of_a_run_is_that_of_its_flags(policy):
    setup = setup_of(policy, TrainerConfig(model=ModelConfig(activation_checkpointing="never")))
    assert not setup.recompute and not setup.reference and setup.own_decoder and setup.engine == "torch"
    adapted = TrainerConfig(algorithm=AlgorithmConfig(kl_coef=0.1), lora=LoraConfig(lora_rank=4))
    assert not setup_of(policy, adapted).reference  # the policy without its adapters
    assert setup.teacher is None
    policy.teacher = Qwen3ForCausalLM(CONFIG)
    assert setup_of(policy, TrainerConfig()).teacher == WEIGHTS
    policy.teacher = None
    # 48 x 8 rows of 192 tokens: two layers' keys and values of 32 numbers, 4 numbers for each of the vocabulary.
    vocabulary = policy.model.config.vocab_size
    assert setup.cache == 384 * 4 * (192 * 2 * 2 * 32 + 4 * vocabulary)
    assert setup.tokens == 8192
    assert torch.float32 == policy.processes.dtype and not setup.bfloat16


def test_a_sharded_run_is_divided_as_its_processes_are(policy, monkeypatch):
    config = TrainerConfig(model=ModelConfig(sharding="hybrid"))
    monkeypatch.setattr(type(policy.processes), "count", 4)
    monkeypatch.setattr(policy.processes, "launch", Launch(count=4, local_count=2))
    setup = setup_of(policy, config)
    assert (setup.processes, setup.nodes, setup.shards) == (4, 2, 2)
    monkeypatch.setattr(policy.processes, "launch", Launch(count=4, local_count=4))
    assert setup_of(policy, config).shards == 4


def test_processes_of_a_run_are_divided_before_there_are_more(policy, monkeypatch, free):
    config = TrainerConfig(optimizer=OptimizerConfig(micro_batch_tokens=1), rollout=RolloutConfig(max_tokens=1))
    monkeypatch.setattr(type(policy.processes), "count", 3)
    free(missing(policy, config))
    (finding,) = memory_findings(policy, config)
    assert " GiB in each of 3 processes" in finding
    assert "--sharding full in 3 processes with as much memory each" in finding
