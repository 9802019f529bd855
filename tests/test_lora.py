"""LoRA: what is trained, what the engine samples from, what the reference is, and what a checkpoint holds."""

import copy

import peft
import pytest
import torch
from gradients import fixed_rollouts, settings, tiny_policy
from transformers import AutoModelForCausalLM, GenerationConfig

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch, pack
from minrl.dataflow import SOLO, Request, TrainState, UserError
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.lora import ADAPTER, adapted_layers
from minrl.models.scoring import Method, sampled_rollout, score, set_method
from minrl.optimizer import make_optimizer
from minrl.run.checkpoint import policy_tensors, save_policy
from minrl.run.setup import load_policy
from minrl.update import update_policy
from tests.conftest import CPU, adapt
from tests.parsed import sized
from tests.runs import Run
from tests.test_scoring import plain

IDS = [5, 9, 14, 8, 30, 21, 6]


def untied(policy):
    """The same policy with an output head of its own."""
    model = policy.model
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    return policy


def trained_weights(model):
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def logprobs_of(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits.log_softmax(-1)


def test_before_the_first_update_the_policy_is_its_base_model_to_the_bit(policy):
    base = logprobs_of(policy.model)
    adapt(policy, size=0, lora_target_modules="q_proj, layers.1.mlp.down_proj")
    assert torch.equal(logprobs_of(policy.model), base)
    names = {name.partition(".lora_")[0] for name in trained_weights(policy.model)}
    assert names == {f"model.layers.{one}" for one in ("0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.down_proj")}


@pytest.mark.parametrize(
    ("targets", "decoding", "precision"),
    [("all-linear", "own", torch.bfloat16), ("lm_head, embed_tokens, q_proj", "cached", torch.float32)],
)
def test_the_engine_samples_from_base_and_adapters_together(policy, targets, decoding, precision):
    for weight in policy.model.parameters():
        weight.data = weight.data.to(precision).float()
    policy = adapt(untied(policy) if "lm_head" in targets else policy, lora_target_modules=targets)
    assert policy.model.model.layers[1].self_attn.q_proj.weight.dtype == precision
    set_method(policy.model, Method(True, decoding))
    engine = TorchEngine(policy)
    assert not engine.needs_correction
    requests = [Request(IDS[:3], seed, 8) for seed in range(4)]
    completions = engine.generate(requests, Sampling(1.0, frozenset()))
    rollouts = [sampled_rollout(one.ids, made.ids) for one, made in zip(requests, completions, strict=True)]
    said = torch.tensor([logprob for made in completions for logprob in made.logprobs])
    torch.testing.assert_close(said, plain(policy.model, rollouts, 1.0)[0].detach(), atol=3e-5, rtol=0)
    own = logprobs_of(policy.model)
    with policy.as_reference() as base:
        assert float((logprobs_of(base) - own).abs().max()) > 0.01  # the adapters do matter


@pytest.mark.parametrize("targets", ["all-linear", "lm_head, embed_tokens, k_proj"])
def test_the_gradient_is_that_of_peft_over_whole_logits(processes, targets):
    """Packed, chunked, frozen where frozen: against transformers' and peft's own forward of each rollout, in fp64."""
    policy = untied(tiny_policy(processes))
    theirs = copy.deepcopy(policy.model)
    adapt(policy, lora_target_modules=targets)
    policy.model.double()
    names = targets if targets == "all-linear" else targets.split(", ")
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, lora_alpha=32, target_modules=names)).double().eval()
    theirs.load_state_dict({f"base_model.model.{name}": weight for name, weight in policy.model.state_dict().items()})
    rollouts = [r for r in fixed_rollouts() if r.reward is not None]
    logprobs, entropy = score(policy.model, pack(rollouts, range(len(rollouts))), temperature=0.7)
    (logprobs.sum() + 0.3 * entropy.sum()).backward()
    logprobs, entropy = plain(theirs, rollouts, temperature=0.7)
    (logprobs.sum() + 0.3 * entropy.sum()).backward()
    expected = {name.removeprefix("base_model.model."): w.grad for name, w in theirs.named_parameters()}
    trained = trained_weights(policy.model)
    assert trained and trained.keys() == {name for name, gradient in expected.items() if gradient is not None}
    for name, weight in trained.items():
        assert float(weight.grad.abs().max()) > 1e-4
        torch.testing.assert_close(weight.grad, expected[name], atol=5e-6, rtol=2e-6)


def step(policy):
    """The metrics of one update from the fixed rollouts, with a KL term."""
    config, rollouts = settings("grpo", passes_per_step=1, kl_coef=0.5, kl_estimator="k2"), fixed_rollouts()
    algorithm, state = choose_algorithm(config), TrainState(step=1, baselines={SOLO: 0.3})
    batch = make_batch(rollouts, compute_advantages(rollouts, algorithm, config, state).values)
    optimizer = make_optimizer(policy, sized())
    return update_policy(policy, optimizer, batch, algorithm, config, state, needs_correction=False).metrics


def test_the_reference_is_the_model_without_adapters(processes):
    policy, again, copied = adapt(tiny_policy(processes)), adapt(tiny_policy(processes)), tiny_policy(processes)
    with policy.as_reference() as reference:
        assert torch.equal(logprobs_of(reference), logprobs_of(copied.model))
        assert not trained_weights(reference)
    assert trained_weights(policy.model)
    # The KL of an update is the one to a frozen copy of the base model.
    again.adapters, again.reference = None, copied.model
    own, other = step(policy), step(again)
    assert own["policy/ref_kl"] == other["policy/ref_kl"] > 0
    assert own["policy/grad_norm"] == other["policy/grad_norm"]
    # Nor has it the adapter of a head that is scored in chunks.
    policy, base = adapt(untied(tiny_policy(processes)), lora_target_modules="lm_head"), untied(tiny_policy(processes))
    stream = pack(fixed_rollouts(), range(16))
    with policy.as_reference() as reference:
        assert torch.equal(score(reference, stream, 1.0)[0], score(base.model, stream, 1.0)[0])


def test_a_checkpoint_of_adapters_keeps_template_and_end_tokens_and_needs_its_base(policy, tmp_path, processes):
    base, saved = tmp_path / "base", tmp_path / "saved"
    save_policy(policy, base)
    policy = adapt(load_policy(str(base), CPU, processes), str(base), lora_checkpoint="adapter")
    policy.tokenizer.chat_template += "{# of a file #}"  # not that of the base model
    policy.model.generation_config.eos_token_id = 5  # any other than its own
    for _ in range(2):  # a second time over the first
        save_policy(policy, saved)
    assert not (saved / "config.json").exists()
    loaded = load_policy(str(saved), CPU, processes)  # a plain model
    assert loaded.tokenizer.chat_template == policy.tokenizer.chat_template and not adapted_layers(loaded.model)
    assert GenerationConfig.from_pretrained(saved).eos_token_id == 5
    base.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"saved holds adapters of .*base \(`base_model_name_or_path` in their adapter"):
        load_policy(str(saved), CPU, processes)


def test_a_checkpoint_has_the_merged_weights_under_the_names_of_the_base(policy):
    names = {*dict(policy_tensors(policy))}
    saved = {*dict(policy_tensors(adapt(policy)))}
    adapters = {name for name in saved if ADAPTER in name}
    assert adapters and saved - adapters == names


def test_layers_that_cannot_have_adapters_are_refused_in_one_line(policy):
    with pytest.raises(UserError, match=r"^[^\n]*'typo' matches no layer: there are q_proj, k_proj[^\n]*\Z"):
        adapt(policy, lora_target_modules="q_proj,typo")
    with pytest.raises(UserError, match=r"embed_tokens and lm_head share one weight .* leave them out"):
        adapt(policy, lora_target_modules="q_proj,lm_head")


def test_a_run_that_starts_from_adapters_is_what_its_checkpoint_holds_and_no_adapter_names_half_a_base(
    sevens_model, tmp_path, processes
):
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(sevens_model), peft.LoraConfig(r=2)).eval()
    for weight in trained_weights(theirs).values():
        weight.data += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    theirs.save_pretrained(tmp_path / "first")
    flags = """--task sevens --prompts-per-step 4 --group-size 4 --max-tokens 4 --warmup-steps 0 --eval-every 0
        --steps 1 --eval-examples 2 --rollouts-every 0 --threads 1 --device cpu --quiet --no-preflight"""
    run = Run(tmp_path, [*flags.split(), "--lora-rank", "2", "--model-id", str(tmp_path / "first")])
    with pytest.raises(UserError, match=r"--lora-checkpoint adapter: .*first, which is a GGUF file or holds adapters"):
        run.here("--lora-checkpoint", "adapter")
    assert run.here() == 0
    saved = run.checkpoints / "step_000001"
    trained, start = load_policy(str(saved), CPU, processes), logprobs_of(theirs)
    assert 0 < float((logprobs_of(trained.model) - start).abs().max()) < 0.1  # near the first adapters, not the base
    plain = AutoModelForCausalLM.from_pretrained(saved)
    torch.testing.assert_close(logprobs_of(plain), logprobs_of(trained.model), atol=1e-6, rtol=0)
    with pytest.raises(UserError, match=r"adapter_config.json names no base model: write it there"):
        load_policy(str(saved / "adapter"), CPU, processes)
