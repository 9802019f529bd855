"""Adapters in many architectures: what was trained is what transformers and peft load."""

import copy
from functools import partial

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from minrl.dataflow import UserError
from minrl.models.lora import MergedWeights, adapted_layers
from minrl.optimizer import make_optimizer
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from tests.conftest import CPU, adapt, random_model, small_config
from tests.parsed import sized

IDS = torch.tensor([[5, 9, 14, 8, 30, 21, 6, 17, 11, 40, 3, 8]])
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4}
MODELS = {
    "qwen3": {"head_dim": 8, "attention_bias": True},
    "qwen3_moe": {**EXPERTS, "head_dim": 8, "mlp_only_layers": [1]},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": True},
}
"""Settings of each architecture; of the mixture one layer is dense."""


def logprobs_of(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits.float().log_softmax(-1)


@pytest.fixture
def tokenizer(policy):
    return policy.tokenizer


@pytest.fixture
def adapted(tokenizer, processes, tmp_path):
    """A function that makes the adapted policy of an architecture; its base model lies in tmp_path / base."""

    def make(name, targets="all-linear", dtype=torch.float32, size=0.1, tied=False):
        config = small_config(name, vocab_size=len(tokenizer), **{"tie_word_embeddings": tied, **MODELS[name]})
        random_model(config).to(dtype).save_pretrained(tmp_path / "base")
        tokenizer.save_pretrained(tmp_path / "base")
        policy = as_policy(load(tmp_path / "base"), tokenizer, CPU, processes)
        return adapt(policy, str(tmp_path / "base"), size, lora_rank=2, lora_target_modules=targets)

    return make


load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32, attn_implementation="eager")


KINDS = {
    "a mixture": ("qwen3_moe", "all-linear", "self_attn", 0.7, torch.bfloat16),
    "Conv1D": ("gpt2", "c_attn", "attn.c_attn", 0, torch.bfloat16),  # it, embeddings and norms stay as they are
    "embedding and head": ("qwen3", "embed_tokens,lm_head", "", 0, torch.float32),
}
"""Architecture, --lora-target-modules, what the names of all adapted weights have in them, the least share of frozen
weights that is held in two bytes, and the precision of the base model.
"""


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_compute_learn_and_are_saved_as_pefts_own(kind, adapted, tmp_path, processes):
    name, targets, part, least, dtype = KINDS[kind]
    policy = adapted(name, targets, dtype)
    base, expected = load(tmp_path / "base"), logprobs_of(policy.model)
    assert float((expected - logprobs_of(base)).abs().max()) > 0.01 and float(expected.std(-1).mean()) > 0.5
    merged = MergedWeights(policy.model, dict(policy.model.named_parameters()))
    assert set(merged) == {name for name, _ in base.named_parameters()} >= set(merged.adapted)
    assert merged.adapted and all(part in name for name in merged.adapted)
    exact = {name: merged[name] for name in merged.adapted}
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(merged[name], weight) for name, weight in exact.items())
    frozen = [weight for weight in policy.model.parameters() if weight.ndim >= 2 and not weight.requires_grad]
    short = sum(weight.numel() for weight in frozen if weight.dtype == torch.bfloat16)
    assert short >= least * sum(weight.numel() for weight in frozen) and (least or not short)
    policy.adapters.save(tmp_path / "adapter", policy.model.state_dict())
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    torch.testing.assert_close(logprobs_of(theirs), expected, atol=1e-4, rtol=0)
    for model in (policy.model, theirs):
        model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)[0, :, 3].sum().backward()
    trained, gradients = (
        {n.removeprefix("base_model.model."): weight for n, weight in model.named_parameters() if weight.requires_grad}
        for model in (policy.model, theirs)
    )
    assert trained.keys() == gradients.keys()
    for key, weight in trained.items():
        scale = float(gradients[key].grad.norm())
        assert scale > 0 and weight.dtype == torch.float32, key  # an adapter with an effect
        assert float((weight.grad - gradients[key].grad).norm()) <= 1e-4 * scale, key
    make_optimizer(policy, sized(learning_rate=1e-2)).step()
    learned = logprobs_of(policy.model)
    assert float((learned - expected).abs().max()) > 0.01
    save_policy(policy, tmp_path / "saved")
    adapters = tmp_path / "saved" / "adapter"
    for folder in (tmp_path / "saved", adapters):  # transformers, with peft where there are adapters alone
        loaded = load_policy(str(folder), CPU, processes).model
        assert not adapted_layers(loaded) and all(weight.requires_grad for weight in loaded.parameters())
        for model in (loaded, load(folder)):
            torch.testing.assert_close(logprobs_of(model), learned, atol=1e-4, rtol=0)


LORA = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 2}
FOREIGN = {
    "DoRA": (peft.LoraConfig(**LORA, use_dora=True), False),
    "a head that was tied": (peft.LoraConfig(**LORA, modules_to_save=["lm_head"]), True),
    "trained tokens": (peft.LoraConfig(**LORA, trainable_token_indices=[3, 9]), False),
}
"""Adapters that are not trained here, by peft's config, and whether their base model has a tied head."""


def foreign(adapted, tmp_path, config, tied):
    """The log-probabilities of peft's own model with adapters that have moved, which are saved."""
    adapted("qwen3", tied=tied)
    theirs = peft.get_peft_model(load(tmp_path / "base"), copy.deepcopy(config)).eval()
    generator = torch.Generator().manual_seed(1)
    for weight in (weight for weight in theirs.parameters() if weight.requires_grad):
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    theirs.save_pretrained(tmp_path / "theirs")
    return logprobs_of(theirs)


@pytest.mark.parametrize("kind", FOREIGN)
def test_adapters_of_other_kinds_are_merged_as_peft_computes_them(kind, adapted, tmp_path, processes):
    expected = foreign(adapted, tmp_path, *FOREIGN[kind])
    assert float((expected - logprobs_of(load(tmp_path / "base"))).abs().max()) > 0.01
    policy = load_policy(str(tmp_path / "theirs"), CPU, processes)
    torch.testing.assert_close(logprobs_of(policy.model), expected, atol=2e-5, rtol=0)
    assert not adapted_layers(policy.model) and policy.model.lm_head.weight.requires_grad
    save_policy(policy, tmp_path / "saved")
    torch.testing.assert_close(logprobs_of(load(tmp_path / "saved")), expected, atol=2e-5, rtol=0)


def test_adapters_that_cannot_be_merged_are_refused_in_one_line(adapted, tmp_path, processes):
    foreign(adapted, tmp_path, peft.LoraConfig(r=2, target_modules=["embed_tokens"]), tied=True)
    with pytest.raises(UserError, match=r"^[^\n]* cannot be merged: log-probabilities move by [^\n]*\Z"):
        load_policy(str(tmp_path / "theirs"), CPU, processes)


def test_adapters_of_another_model_are_refused(adapted, tmp_path, processes):
    foreign(adapted, tmp_path, *FOREIGN["DoRA"])
    file = tmp_path / "theirs" / "adapter_model.safetensors"
    save_file({name.replace("layers.1.", "layers.7."): weight for name, weight in load_file(file).items()}, file)
    with pytest.raises(UserError, match=r"adapters in .* hold .*lora_A.*, unlike the model: give its own"):
        load_policy(str(tmp_path / "theirs"), CPU, processes)


def test_adapters_are_refused_on_another_base_than_their_own(adapted, tmp_path):
    policy = adapted("qwen3")
    save_policy(policy, tmp_path / "saved")
    policy.adapters.load(tmp_path / "saved")
    policy.model.model.layers[0].mlp.down_proj.base_layer.weight.data[0, 0] += 1e-6
    with pytest.raises(UserError, match=r"were trained on other weights than those of .*/base"):
        policy.adapters.load(tmp_path / "saved")


def test_of_a_mixture_the_attention_has_adapters_and_experts_are_refused(adapted):
    layers = adapted_layers(adapted("qwen3_moe").model)
    assert {path.rpartition(".")[2] for path in layers} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    with pytest.raises(UserError, match=r"peft would adapt experts or routers \(model.layers.0.mlp"):
        adapted("qwen3_moe", "gate_proj,up_proj")
