"""Adapters in many architectures: what was trained is what transformers and peft load."""

import copy
import re
from functools import partial

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from minrl.dataflow import UserError
from minrl.models.lora import Adapters, MergedWeights, adapted_layers
from minrl.optimizer import make_optimizer
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from tests.conftest import CPU
from tests.parsed import sized

IDS = torch.tensor([[5, 9, 14, 8, 30, 21, 6, 17, 11, 40, 3, 8]])
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERTS = {**MOE, "num_experts": 4}

MODELS = {
    "Qwen3": {"head_dim": 8},
    "Qwen3 biased": {"head_dim": 8, "attention_bias": True},
    "Qwen3Moe": {**EXPERTS, "head_dim": 8},
    "Qwen3Moe with a dense layer": {**EXPERTS, "head_dim": 8, "mlp_only_layers": [1]},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "Mamba": {"state_size": 8},
}


def made(name, tokenizer, tied):
    """A model of the architecture. Its weights are large enough for its tokens to differ by more than half a nat."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": len(tokenizer)}
    shape |= {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = getattr(transformers, f"{name.split()[0]}Config")(**(shape | MODELS[name]))
    config.tie_word_embeddings = config.tie_word_embeddings if tied is None else tied
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

    def make(name, targets="all-linear", dtype=torch.float32, move=True, rank=2, tied=None):
        if not (tmp_path / "base").exists():
            made(name, tokenizer, tied).to(dtype).save_pretrained(tmp_path / "base")
            tokenizer.save_pretrained(tmp_path / "base")
        policy = as_policy(load(tmp_path / "base"), tokenizer, CPU, processes)
        config = sized(lora_rank=rank, lora_target_modules=targets)
        policy.adapters = Adapters(policy.model, config, str(tmp_path / "base"), seed=0)
        generator = torch.Generator().manual_seed(1)
        for weight in (w for w in policy.model.parameters() if w.requires_grad and move):
            weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
        return policy

    return make


load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32, attn_implementation="eager")


@pytest.mark.parametrize("name", ["Qwen3Moe", "GPT2"])
def test_adapters_on_frozen_weights_in_bfloat16_compute_and_learn_as_pefts_own(name, adapted, tmp_path):
    policy = adapted(name, dtype=torch.bfloat16)
    base, expected = load(tmp_path / "base"), logprobs_of(policy.model)
    assert float(expected.std(-1).mean()) > 0.5
    with policy.adapters.off():
        torch.testing.assert_close(logprobs_of(policy.model), logprobs_of(base), atol=1e-4, rtol=0)
    names = dict(base.named_parameters()).keys()
    merged = MergedWeights(policy.model, dict(policy.model.named_parameters()))
    assert set(merged) == set(names) and set(merged.adapted) <= set(names)
    frozen = [weight for weight in policy.model.parameters() if weight.ndim >= 2 and not weight.requires_grad]
    short = sum(weight.numel() for weight in frozen if weight.dtype == torch.bfloat16)
    share = short / sum(weight.numel() for weight in frozen)
    assert share >= 0.7 if name == "Qwen3Moe" else share == 0  # GPT-2's Conv1D, embeddings and norms stay as they are
    policy.adapters.save(tmp_path / "adapter", policy.model.state_dict())
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    torch.testing.assert_close(logprobs_of(theirs), expected, atol=1e-4, rtol=0)
    for model in (policy.model, theirs):
        model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)[0, :, 3].sum().backward()
    gradients = {
        name.removeprefix("base_model.model."): weight.grad
        for name, weight in theirs.named_parameters()
        if weight.requires_grad
    }
    trained = {name: weight for name, weight in policy.model.named_parameters() if weight.requires_grad}
    assert trained.keys() == gradients.keys()
    for key, weight in trained.items():
        scale = float(gradients[key].norm())
        assert scale > 0 and weight.dtype == torch.float32, key  # an adapter with an effect
        assert float((weight.grad - gradients[key]).norm()) <= 1e-4 * scale, key
    save_policy(policy, tmp_path / "saved")
    torch.testing.assert_close(logprobs_of(load(tmp_path / "saved")), expected, atol=1e-4, rtol=0)


KINDS = {
    "held in bfloat16": ("Qwen3", "all-linear", None, {"dtype": torch.bfloat16}),
    "Conv1D": ("GPT2", "c_attn", {"attn.c_attn.weight"}, {}),
    "embedding and head": (
        "Qwen3",
        "embed_tokens,lm_head",
        {"model.embed_tokens.weight", "lm_head.weight"},
        {},
    ),
}
"""Each kind of layer that trains: architecture, --lora-target-modules, and the weights that they name."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_trains_is_what_evaluate_peft_and_transformers_load(kind, adapted, tmp_path, processes):
    name, targets, found, changes = KINDS[kind]
    policy = adapted(name, targets, move=False, **changes)
    merged = MergedWeights(policy.model, dict(policy.model.named_parameters()))
    assert found is None or {re.split(r"\.[01]\.", weight)[-1] for weight in merged.adapted} == found
    before = logprobs_of(policy.model)
    torch.testing.assert_close(before, logprobs_of(load(tmp_path / "base")), atol=1e-5, rtol=0)
    optimizer = make_optimizer(policy, sized(learning_rate=1e-2))
    for _ in range(2):  # the first moves B alone
        learn(policy, optimizer)
    expected = logprobs_of(policy.model)
    assert float((expected - before).abs().max()) > 0.01
    save_policy(policy, tmp_path / "saved")
    adapters = tmp_path / "saved" / "adapter"
    for folder in (tmp_path / "saved", adapters):
        loaded = load_policy(str(folder), CPU, processes)
        torch.testing.assert_close(logprobs_of(loaded.model), expected, atol=1e-5, rtol=0)
        assert not adapted_layers(loaded.model) and all(weight.requires_grad for weight in loaded.model.parameters())
    theirs = peft.PeftModel.from_pretrained(load(tmp_path / "base"), adapters)
    torch.testing.assert_close(logprobs_of(theirs), expected, atol=1e-5, rtol=0)
    for folder in (tmp_path / "saved", adapters):  # transformers, with peft where there are adapters alone
        torch.testing.assert_close(logprobs_of(load(folder)), expected, atol=1e-5, rtol=0)


LAYERS = {"target_modules": ["q_proj", "v_proj", "down_proj"]}
LORA = {**LAYERS, "r": 2}
FOREIGN = {
    "DoRA": (peft.LoraConfig(**LORA, use_dora=True), {}),
    "lora_bias": (peft.LoraConfig(r=2, target_modules=["q_proj"], lora_bias=True), {}),
    "biases": (peft.LoraConfig(**LORA, bias="lora_only"), {}),
    "OFT": (peft.OFTConfig(**LAYERS, oft_block_size=4), {}),
    "IA3": (peft.IA3Config(**LAYERS, feedforward_modules=["down_proj"]), {}),
    "a head that was tied": (peft.LoraConfig(**LORA, modules_to_save=["lm_head"]), {"tied": True}),
    "trained tokens": (peft.LoraConfig(**LORA, trainable_token_indices=[3, 9]), {}),
}
"""Adapters that are not trained here, by peft's config, and changes of their base model."""


def foreign(adapted, tmp_path, config, **changes):
    """The log-probabilities of peft's own model with adapters that have moved, which are saved."""
    adapted("Qwen3 biased", **changes)
    theirs = peft.get_peft_model(load(tmp_path / "base"), copy.deepcopy(config)).eval()
    generator = torch.Generator().manual_seed(1)
    for weight in (weight for weight in theirs.parameters() if weight.requires_grad):
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    theirs.save_pretrained(tmp_path / "theirs")
    return logprobs_of(theirs)


@pytest.mark.parametrize("kind", FOREIGN)
def test_adapters_of_other_kinds_are_merged_as_peft_computes_them(kind, adapted, tmp_path, processes):
    config, changes = FOREIGN[kind]
    expected = foreign(adapted, tmp_path, config, **changes)
    assert float((expected - logprobs_of(load(tmp_path / "base"))).abs().max()) > 0.01
    policy = load_policy(str(tmp_path / "theirs"), CPU, processes)
    torch.testing.assert_close(logprobs_of(policy.model), expected, atol=2e-5, rtol=0)
    assert not adapted_layers(policy.model) and policy.model.lm_head.weight.requires_grad
    save_policy(policy, tmp_path / "saved")
    torch.testing.assert_close(logprobs_of(load(tmp_path / "saved")), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            peft.LoraConfig(r=2, target_modules=["down_proj"], lora_bias=True),
            "cannot be merged into .* the base layer has no bias",
        ),
        (
            peft.LoraConfig(r=2, target_modules=["embed_tokens"]),
            "cannot be merged: log-probabilities move by",
        ),
        (
            peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
            "hold prompt_embeddings, unlike the model",
        ),
    ],
)
def test_adapters_that_cannot_be_merged_are_refused_in_one_line(config, message, adapted, tmp_path, processes):
    foreign(adapted, tmp_path, config, tied=True)
    with pytest.raises(UserError, match=message) as refused:
        load_policy(str(tmp_path / "theirs"), CPU, processes)
    assert "\n" not in str(refused.value)


def test_adapters_of_another_model_are_refused(adapted, tmp_path, processes):
    foreign(adapted, tmp_path, peft.LoraConfig(**LORA))
    weights = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    for number, verb in (("0", "lack"), ("7", "hold")):
        changed = {name.replace("layers.1.", f"layers.{number}."): weight for name, weight in weights.items()}
        save_file(changed, tmp_path / "theirs" / "adapter_model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=rf"adapters in .* {verb} .*lora_A.*, unlike the model: give its own"):
            load_policy(str(tmp_path / "theirs"), CPU, processes)


def test_adapters_are_refused_on_another_base_than_their_own(adapted, tmp_path):
    policy = adapted("Qwen3")
    save_policy(policy, tmp_path / "saved")
    policy.adapters.load(tmp_path / "saved")
    policy.model.model.layers[0].mlp.down_proj.base_layer.weight.data[0, 0] += 1e-6
    with pytest.raises(UserError, match=r"were trained on other weights than those of .*/base"):
        policy.adapters.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("name", "targets", "reason"),
    [
        (
            "Qwen3Moe with a dense layer",
            "gate_proj,up_proj",
            r"peft would adapt experts or routers \(model.layers.0.mlp",
        ),
        ("Mamba", "all-linear", r"peft cannot adapt this model \(.*'out_proj' is incompatible with Mamba"),
        ("Mamba", "dt_proj", "the model reads the weight of dt_proj without calling it"),
    ],
)
def test_layers_that_peft_does_not_adapt_as_linear_ones_are_refused_in_one_line(name, targets, reason, adapted):
    with pytest.raises(UserError, match=reason) as refused:
        adapted(name, targets)
    assert "\n" not in str(refused.value)


def test_of_a_mixture_the_attention_has_adapters(adapted):
    layers = adapted_layers(adapted("Qwen3Moe with a dense layer").model)
    assert {path.rpartition(".")[2] for path in layers} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def learn(policy, optimizer):
    policy.model(input_ids=IDS, use_cache=False).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
