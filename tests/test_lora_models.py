"""Adapters in many architectures: what was trained is what transformers and peft load."""

import re
from dataclasses import replace
from functools import partial

import peft
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from minrl.config import LoraConfig, OptimizerConfig
from minrl.engines.decoder import has_own_decoder
from minrl.engines.torch_engine import TorchEngine
from minrl.models.lora import Adapters, MergedWeights, adapted_layers, fold_in
from minrl.optimizer import make_optimizer
from minrl.policy import as_policy
from minrl.run.checkpoint import restore_optimizer, save_checkpoint, save_policy, weights_sha256
from minrl.run.setup import load_policy
from minrl.types import TrainState, UserError
from tests.conftest import CPU

IDS = torch.tensor([[5, 9, 14, 8, 30, 21, 6, 17, 11, 40, 3, 8]])
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERTS, LOCAL = {**MOE, "num_experts": 4}, {"num_experts_per_tok": 2, "num_local_experts": 4}
ROUTED = {**MOE, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "topk_group": 1}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
DELTA = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
SSM = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
OTHER_NAMES = {"n_embd": 32, "n_layer": 2, "n_head": 4}

MODELS = {
    "Qwen3": {"head_dim": 8},
    "Qwen2": {},
    "Llama": {},
    "Mistral": {},
    "Gemma": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "Gemma3Text": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "Phi3": {},
    "Phi": {},
    "Qwen3Moe": {**EXPERTS, "head_dim": 8, "mlp_only_layers": [1]},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 24},
    "Mixtral": LOCAL,
    "DeepseekV3": {**ROUTED, **LATENT, "n_group": 2, "num_key_value_heads": 4},
    "Glm4Moe": {**ROUTED, "head_dim": 8, "n_group": 1},
    "GptOss": {**LOCAL, "head_dim": 8},
    "Olmo2": {},
    "Olmo3": {},
    "Olmoe": EXPERTS,
    "GPT2": OTHER_NAMES,
    "GPTNeoX": {},
    "Bloom": {**OTHER_NAMES, "hidden_size": 32},
    "Falcon": {},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "FalconH1": {**SSM, "mamba_d_ssm": 64, "mamba_chunk_size": 4},
    "Mamba": {"state_size": 8},
    "Jamba": {**LOCAL, "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    "Qwen3Next": {**EXPERTS, **DELTA, "head_dim": 8, "shared_expert_intermediate_size": 24},
    "Qwen3_5Text": {**DELTA, "head_dim": 8},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "GraniteMoe": LOCAL,
    "GraniteMoeHybrid": {**LOCAL, **SSM, "shared_intermediate_size": 24, "layer_types": ["mamba", "attention"]},
    "Phimoe": LOCAL,
    "MiniMaxM2": {**LOCAL, "head_dim": 8},
    "Llama4Text": {**LOCAL, "num_experts_per_tok": 1, "head_dim": 8, "intermediate_size_mlp": 48},
    "Cohere2": {"head_dim": 8, "logit_scale": 1.0},
    "SmolLM3": {},
}
IN_FLOAT32 = ("Mamba",)
"""Those that round hidden states to the precision of a weight, so that all weights stay in float32."""

FAST = ("Qwen3Moe", "DeepseekV3", "GptOss", "GPT2", "FalconH1")
"""Experts that peft adapts, with a dense layer; some with shared experts; transposed ones; (in, out) weights; layers
that peft refuses.
"""


def made(name, tokenizer):
    """A model of the architecture. Its weights are large enough for its tokens to differ by more than half a nat."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": len(tokenizer)}
    shape |= {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = getattr(transformers, f"{name}Config")(**(shape | MODELS[name]))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.ndim >= 2 and weight.shape[-1] >= 8:
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * 1.2 * weight.shape[-1] ** -0.5)
    return model


def logprobs_of(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits.float().log_softmax(-1)


@pytest.fixture
def tokenizer(policy):
    return policy.tokenizer


@pytest.fixture
def adapted(tokenizer, processes, tmp_path):
    """A function that makes the adapted policy of an architecture; its base model lies in tmp_path / base."""

    def make(name, targets="all-linear", dtype=torch.float32, move=True, rank=2):
        if not (tmp_path / "base").exists():
            made(name, tokenizer).to(dtype).save_pretrained(tmp_path / "base")
        policy = as_policy(load(tmp_path / "base"), tokenizer, CPU, processes)
        config = LoraConfig(lora_rank=rank, lora_target_modules=targets)
        policy.adapters = Adapters(policy.model, config, str(tmp_path / "base"), seed=0)
        generator = torch.Generator().manual_seed(1)
        for weight in (w for w in policy.model.parameters() if w.requires_grad and move):
            weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
        return policy

    return make


load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32, attn_implementation="eager")


ALL = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]


@pytest.mark.parametrize("name", ALL)
def test_the_trained_model_is_the_one_that_transformers_and_peft_load(name, adapted, tmp_path):
    policy = adapted(name)
    expected = logprobs_of(policy.model)
    assert float(expected.std(-1).mean()) > 0.5
    base = logprobs_of(load(tmp_path / "base"))
    assert float((base - expected).abs().max()) > 0.1  # the adapters matter
    with policy.adapters.off():
        torch.testing.assert_close(logprobs_of(policy.model), base, atol=1e-5, rtol=0)
    names = dict(load(tmp_path / "base").named_parameters())
    merged = MergedWeights(policy.model, dict(policy.model.named_parameters()))
    assert set(merged) == set(names) and set(merged.adapted) <= set(names)
    save_policy(policy, tmp_path / "saved")
    close = partial(torch.testing.assert_close, atol=1e-4, rtol=0)
    close(logprobs_of(load(tmp_path / "saved")), expected)
    close(logprobs_of(peft.PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / "saved/adapter")), expected)
    folded = load(tmp_path / "base")
    fold_in(folded, tmp_path / "saved" / "adapter", "base")
    close(logprobs_of(folded), expected)
    assert not adapted_layers(folded) and set(dict(folded.named_parameters())) == set(names)


@pytest.mark.parametrize("name", ALL)
def test_adapters_learn_as_in_pefts_own_model(name, adapted, tmp_path):
    policy = adapted(name)
    policy.adapters.save(tmp_path / "adapter", policy.model.state_dict())
    theirs = peft.PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / "adapter", is_trainable=True).eval()
    for model in (policy.model, theirs):
        model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)[0, :, 3].sum().backward()
    expected = {
        name.removeprefix("base_model.model."): weight.grad
        for name, weight in theirs.named_parameters()
        if weight.requires_grad
    }
    trained = {name: weight.grad for name, weight in policy.model.named_parameters() if weight.requires_grad}
    assert trained.keys() == expected.keys()
    for key, gradient in trained.items():
        scale = float(expected[key].norm())
        assert scale > 0, key  # an adapter without effect
        assert float((gradient - expected[key]).norm()) <= 1e-4 * scale, key


def test_adapters_of_experts_go_on_bit_for_bit_and_on_their_base_alone(adapted, tmp_path):
    policy, rate = adapted("Qwen3Moe"), OptimizerConfig(learning_rate=1e-2)
    optimizer = make_optimizer(policy, rate)
    learn(policy, optimizer)
    saved = save_checkpoint(tmp_path / "c", policy, optimizer, TrainState(step=1), keep=0)
    other = adapted("Qwen3Moe", move=False)
    other.adapters.load(saved)
    fresh = make_optimizer(other, rate)
    restore_optimizer(saved, other, fresh)
    for _ in range(2):
        learn(policy, optimizer)
        learn(other, fresh)
    assert weights_sha256(policy) == weights_sha256(other)
    assert torch.equal(logprobs_of(policy.model), logprobs_of(other.model))
    other.model.model.layers[0].mlp.experts.get_base_layer().down_proj.data[0, 0] += 1e-6
    with pytest.raises(UserError, match=r"were trained on other weights than those of .*/base"):
        other.adapters.load(saved)


def learn(policy, optimizer):
    policy.model(input_ids=IDS, use_cache=False).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "targets", "found"),
    [
        ("GptOss", "gate_up_proj,q_proj", {"mlp.experts.gate_up_proj", "self_attn.q_proj.weight"}),
        ("GptOss", "experts.down_proj", {"mlp.experts.down_proj"}),
        ("Qwen2Moe", r".*\.(gate|experts\.down_proj)", {"mlp.gate.weight", "mlp.experts.down_proj"}),
        ("GPT2", "c_attn", {"attn.c_attn.weight"}),
    ],
)
def test_experts_and_routers_are_named_like_layers(name, targets, found, adapted, tmp_path):
    policy = adapted(name, targets)
    merged = MergedWeights(policy.model, dict(policy.model.named_parameters()))
    assert {re.split(r"\.[01]\.", weight)[1] for weight in merged.adapted} == found
    policy.adapters.save(tmp_path / "adapter", policy.model.state_dict())
    theirs = peft.PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logprobs_of(theirs), logprobs_of(policy.model), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_frozen_weights_stay_in_bfloat16_and_compute_as_in_float32(name, adapted, tmp_path, tokenizer):
    if not (tmp_path / "base").exists():
        made(name, tokenizer).bfloat16().save_pretrained(tmp_path / "base")
    policy = adapted(name)
    theirs = load(tmp_path / "base")
    policy.adapters.save(tmp_path / "adapter", policy.model.state_dict())
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter", is_trainable=True).eval()
    held = {weight.dtype for weight in policy.model.parameters() if not weight.requires_grad}
    assert held <= {torch.bfloat16, torch.float32}
    assert all(weight.dtype == torch.float32 for weight in policy.model.parameters() if weight.requires_grad)
    frozen = [weight for weight in policy.model.parameters() if weight.ndim >= 2 and not weight.requires_grad]
    short = sum(weight.numel() for weight in frozen if weight.dtype == torch.bfloat16)
    least = 0 if name in IN_FLOAT32 else 0.85  # the rest are convolutions and positions
    assert short >= least * sum(weight.numel() for weight in frozen)
    assert (short == 0) == (name in IN_FLOAT32)
    torch.testing.assert_close(logprobs_of(policy.model), logprobs_of(theirs), atol=1e-4, rtol=0)
    for model in (policy.model, theirs):
        model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)[0, :, 3].sum().backward()
    expected = {name.removeprefix("base_model.model."): weight.grad for name, weight in theirs.named_parameters()}
    for key, weight in policy.model.named_parameters():
        if weight.requires_grad:
            assert float((weight.grad - expected[key]).norm()) <= 1e-4 * float(expected[key].norm()), key
    save_policy(policy, tmp_path / "saved")
    torch.testing.assert_close(logprobs_of(load(tmp_path / "saved")), logprobs_of(policy.model), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Qwen3Moe", pytest.param("Mixtral", marks=pytest.mark.slow), "Gemma2"])
def test_the_engine_samples_from_adapted_experts_and_scaled_embeddings(name, dtype, adapted):
    policy = adapted(name, dtype=dtype)
    assert has_own_decoder(policy.model)
    own = logprobs_of(policy.model)[0, :-1].gather(1, IDS[0, 1:, None])[:, 0]
    said = TorchEngine(policy).score(IDS[0].tolist())
    torch.testing.assert_close(torch.tensor(said), own, atol=1e-4, rtol=0)


@pytest.mark.optim8bit
def test_moments_in_eight_bits_train_adapters_on_held_weights_and_go_on(adapted, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: make setup EXTRA=optim8bit")
    policy = adapted("Qwen3", dtype=torch.bfloat16, rank=128)  # 4096 elements: fewer keep moments in float32
    config = OptimizerConfig(optimizer="adamw8bit", learning_rate=1e-2)
    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    optimizer = make_optimizer(policy, config)
    learn(policy, optimizer)
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, before[name]) != weight.requires_grad, name
        if weight.requires_grad and weight.numel() >= 4096:
            assert optimizer.state[weight]["state1"].dtype == torch.uint8
    saved = save_checkpoint(tmp_path / "c", policy, optimizer, TrainState(step=1), keep=0)
    other = adapted("Qwen3", move=False, rank=128)
    other.adapters.load(saved)
    fresh = make_optimizer(other, config)
    restore_optimizer(saved, other, fresh)
    for one in ((policy, optimizer), (other, fresh)):
        learn(*one)
    assert weights_sha256(policy) == weights_sha256(other)


@pytest.mark.parametrize("kind", ["merged", "adapter"])
def test_a_checkpoint_of_adapted_experts_is_loaded_as_a_policy(kind, adapted, tmp_path, processes, tokenizer):
    policy = adapted("Qwen3Moe")
    tokenizer.save_pretrained(tmp_path / "base")
    policy.adapters.config = replace(policy.adapters.config, lora_checkpoint=kind)
    save_policy(policy, tmp_path / "saved")
    loaded = load_policy(str(tmp_path / "saved"), CPU, processes)
    torch.testing.assert_close(logprobs_of(loaded.model), logprobs_of(policy.model), atol=1e-4, rtol=0)
