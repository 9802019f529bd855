"""LoRA: what is trained, what the engine samples from, what the reference is, and what a checkpoint holds."""

import copy
import shutil
from types import SimpleNamespace

import peft
import pytest
import torch
from gradients import fixed_rollouts, settings, tiny_policy
from safetensors.torch import load_file
from test_train_loop import loop, metrics
from transformers import AutoModelForCausalLM, GenerationConfig

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch, pack
from minrl.dataflow import SOLO, Request, TrainState, UserError
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.check import verify
from minrl.models.lora import MergedWeights, adapted_layers, merged_weight
from minrl.models.scoring import Method, score, set_method
from minrl.models.sharding import named_weights
from minrl.optimizer import make_optimizer
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from minrl.update import update_policy
from tests.conftest import CPU, adapt
from tests.decoding import decoded_logprobs
from tests.parsed import sized

assert loop  # a fixture

TARGETS = ["all-linear", "q_proj, layers.1.mlp.down_proj"]
IDS = [5, 9, 14, 8, 30, 21, 6]


def untied(policy):
    """The same policy with an output head of its own."""
    model = policy.model
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    return policy


def trained_weights(policy):
    return {name: weight for name, weight in policy.model.named_parameters() if weight.requires_grad}


def logprobs_of(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits.log_softmax(-1)


@pytest.mark.parametrize("targets", TARGETS)
def test_before_the_first_update_the_policy_is_its_base_model_to_the_bit(policy, targets):
    base = logprobs_of(policy.model)
    adapt(policy, size=0, lora_target_modules=targets)
    assert torch.equal(logprobs_of(policy.model), base)
    trained = trained_weights(policy)
    assert trained and all(".lora_" in name for name in trained)


@pytest.mark.parametrize(
    ("targets", "decoding", "precision"),
    [
        ("all-linear", "own", torch.bfloat16),
        ("lm_head, embed_tokens, q_proj", "own", torch.float32),
        ("all-linear", "cached", torch.float32),
    ],
)
def test_the_engine_samples_from_base_and_adapters_together(policy, targets, decoding, precision):
    for weight in policy.model.parameters():
        weight.data = weight.data.to(precision).float()
    policy = adapt(untied(policy) if "lm_head" in targets else policy, lora_target_modules=targets)
    assert policy.model.model.layers[1].self_attn.q_proj.weight.dtype == precision
    verify(policy.model)
    set_method(policy.model, Method(True, decoding))
    own = logprobs_of(policy.model)[0]
    engine = TorchEngine(policy)
    assert not engine.needs_correction
    expected = own[:-1].gather(1, torch.tensor(IDS)[1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(decoded_logprobs(policy.model, IDS)), expected, atol=3e-5, rtol=0)
    requests = [Request(IDS[:3], seed, 8) for seed in range(4)]
    for request, completion in zip(requests, engine.generate(requests, Sampling(1.0, frozenset())), strict=True):
        with torch.no_grad():
            logits = policy.model(torch.tensor([request.ids + completion.ids])).logits[0]
        said = logits.log_softmax(-1)[2:-1].gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), said, atol=3e-5, rtol=0)
    with policy.as_reference() as base:
        assert float((logprobs_of(base)[0] - own).abs().max()) > 0.01  # the adapters do matter


@pytest.mark.parametrize("targets", ["all-linear", "lm_head, embed_tokens, k_proj"])
def test_the_gradient_is_that_of_peft_over_whole_logits(processes, targets):
    """Packed, chunked, frozen where frozen: against transformers' and peft's own forward of each rollout, in fp64."""
    policy = untied(tiny_policy(processes))
    plain = copy.deepcopy(policy.model)
    adapt(policy, lora_target_modules=targets)
    policy.model.double()
    names = targets if targets == "all-linear" else [name.strip() for name in targets.split(",")]
    plain = peft.get_peft_model(plain, peft.LoraConfig(r=4, lora_alpha=32, target_modules=names)).double().eval()
    state = {f"base_model.model.{name}": weight for name, weight in policy.model.state_dict().items()}
    plain.load_state_dict(state)
    rollouts = [r for r in fixed_rollouts() if r.reward is not None]
    logprobs, entropy = score(policy.model, pack(rollouts, range(len(rollouts))), temperature=0.7)
    (logprobs.sum() + 0.3 * entropy.sum()).backward()
    for rollout in rollouts:
        ids, mask = torch.tensor([rollout.ids]), torch.tensor(rollout.loss_mask[1:])
        own = (plain(input_ids=ids).logits[0, :-1] / 0.7).log_softmax(-1)
        terms = own.gather(1, ids[0, 1:, None])[:, 0] - 0.3 * (own.exp() * own).sum(-1)
        (terms * mask).sum().backward()
    expected = {name.removeprefix("base_model.model."): w.grad for name, w in plain.named_parameters()}
    trained = trained_weights(policy)
    assert trained and trained.keys() == {name for name, gradient in expected.items() if gradient is not None}
    for name, weight in trained.items():
        assert float(weight.grad.abs().max()) > 1e-4
        torch.testing.assert_close(weight.grad, expected[name], atol=5e-6, rtol=2e-6)


def step(policy, optimizer, name="grpo", **changes):
    """One update from the fixed rollouts."""
    config, rollouts = settings(name, passes_per_step=1, **changes), fixed_rollouts()
    algorithm = choose_algorithm(config)
    batch = make_batch(
        rollouts, compute_advantages(rollouts, algorithm, config, TrainState(baselines={SOLO: 0.3})).values
    )
    return update_policy(
        policy, optimizer, batch, algorithm, config, TrainState(step=1), needs_correction=False
    ).metrics


def test_the_reference_is_the_model_without_adapters(processes):
    policy, again, copied = adapt(tiny_policy(processes)), adapt(tiny_policy(processes)), tiny_policy(processes)
    with policy.as_reference() as reference:
        assert reference is policy.model
        assert torch.equal(logprobs_of(reference), logprobs_of(copied.model))
        assert not trained_weights(policy)
    assert trained_weights(policy)
    # The KL of an update is the one to a frozen copy of the base model.
    config = {"kl_coef": 0.5, "kl_estimator": "k2"}
    own = step(policy, make_optimizer(policy, sized()), **config)
    again.adapters, again.reference = None, copied.model
    other = step(again, make_optimizer(again, sized()), **config)
    assert own["policy/ref_kl"] == other["policy/ref_kl"] > 0
    assert own["policy/grad_norm"] == other["policy/grad_norm"]
    # Nor has it the adapter of a head that is scored in chunks.
    policy, plain = adapt(untied(tiny_policy(processes)), lora_target_modules="lm_head"), untied(tiny_policy(processes))
    rollouts = fixed_rollouts()
    stream = pack(rollouts, range(len(rollouts)))
    with policy.as_reference() as reference:
        assert torch.equal(score(reference, stream, 1.0)[0], score(plain.model, stream, 1.0)[0])


def test_merged_weights_have_the_names_and_the_places_of_a_plain_model(policy):
    plain = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    names, layers = sorted(named_weights(policy.model)), 7 * 2
    adapt(policy)
    merged = MergedWeights(policy.model, named_weights(policy.model))
    assert sorted(merged) == names and len(merged) == len(names)
    assert len(merged.adapted) == layers
    layer = policy.model.model.layers[1].mlp.down_proj
    by_hand = plain["model.layers.1.mlp.down_proj.weight"] + 32 / 4 * (
        layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    )
    torch.testing.assert_close(merged["model.layers.1.mlp.down_proj.weight"], by_hand)
    assert torch.equal(merged["model.norm.weight"], plain["model.norm.weight"])
    exact = merged_weight(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(merged_weight(layer), exact)


@pytest.fixture
def base(policy, tmp_path):
    """A folder with the base model."""
    save_policy(policy, tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.parametrize("kind", ["merged", "adapter"])
def test_a_checkpoint_keeps_the_template_and_the_end_tokens(base, tmp_path, processes, kind):
    policy = adapt(load_policy(str(base), CPU, processes), str(base), lora_checkpoint=kind)
    template = policy.tokenizer.chat_template + "{# of a file #}"  # not that of the base model
    policy.tokenizer.chat_template = template
    policy.model.generation_config.eos_token_id = 5  # any other than its own
    for _ in range(2):  # a second time over the first
        save_policy(policy, tmp_path / "deep" / "saved")
    (tmp_path / "deep" / "saved").rename(tmp_path / "saved")
    assert (tmp_path / "saved" / "config.json").exists() == (kind == "merged")
    adapters = tmp_path / "saved" / "adapter" if kind == "merged" else tmp_path / "saved"
    assert (adapters / "chat_template.jinja").read_text() == template
    assert load_policy(str(adapters), CPU, processes).tokenizer.chat_template == template
    assert GenerationConfig.from_pretrained(adapters).eos_token_id == 5
    loaded = load_policy(str(tmp_path / "saved"), CPU, processes)  # a plain model, whose weights all train
    assert not adapted_layers(loaded.model) and loaded.adapters is None
    assert list(trained_weights(loaded)) == list(trained_weights(load_policy(str(base), CPU, processes)))
    save_policy(loaded, tmp_path / "again")
    assert "lm_head.weight" not in load_file(tmp_path / "again" / "model.safetensors")
    again = load_policy(str(tmp_path / "again"), CPU, processes)
    assert torch.equal(logprobs_of(again.model), logprobs_of(loaded.model))
    assert loaded.encode_prompt("numbers 1 2") == policy.encode_prompt("numbers 1 2")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("q_proj,typo", "'typo' matches no layer: there are q_proj, k_proj"),
        ("q_proj,lm_head", "embed_tokens and lm_head share one weight .* leave them out"),
    ],
)
def test_layers_that_cannot_have_adapters_are_refused_in_one_line(policy, targets, message):
    with pytest.raises(UserError, match=message) as refused:
        adapt(policy, lora_target_modules=targets)
    assert "\n" not in str(refused.value)


def test_a_run_that_starts_from_adapters_is_what_its_checkpoint_holds_and_no_adapter_names_half_a_base(
    loop, policy, tmp_path, processes
):
    save_policy(policy, tmp_path / "model")
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "model"), peft.LoraConfig(r=2)).eval()
    for weight in trained_weights(SimpleNamespace(model=theirs)).values():
        weight.data += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    theirs.save_pretrained(tmp_path / "first")
    more = ["--model-id", str(tmp_path / "first"), "--lora-rank", "2", "--steps", "1", "--no-preflight"]
    with pytest.raises(UserError, match=r"--lora-checkpoint adapter: .*first, which is a GGUF file or holds adapters"):
        loop(*more, "--lora-checkpoint", "adapter", "--run-name", "other")
    assert loop(*more, "--run-name", "second")[0] == 0
    saved = tmp_path / "ckpt" / "second" / "step_000001"
    trained, start = load_policy(str(saved), CPU, processes), logprobs_of(theirs)
    assert 0 < float((logprobs_of(trained.model) - start).abs().max()) < 0.1  # near the first adapters, not the base
    plain = AutoModelForCausalLM.from_pretrained(saved)
    torch.testing.assert_close(logprobs_of(plain), logprobs_of(trained.model), atol=1e-6, rtol=0)
    with pytest.raises(UserError, match=r"adapter_config.json names no base model: write it there"):
        load_policy(str(saved / "adapter"), CPU, processes)
    with pytest.raises((OSError, ValueError)):
        peft.AutoPeftModelForCausalLM.from_pretrained(saved / "adapter")


def test_adapters_whose_base_is_not_there_or_holds_adapters_are_refused_with_the_place(base, tmp_path, processes):
    save_policy(adapt(load_policy(str(base), CPU, processes), str(base), lora_checkpoint="adapter"), tmp_path / "saved")
    base.rename(tmp_path / "moved")
    with pytest.raises(
        UserError, match=r"saved holds adapters of .*base \(`base_model_name_or_path` in their adapter_c"
    ):
        load_policy(str(tmp_path / "saved"), CPU, processes)
    shutil.copytree(tmp_path / "saved", base)
    with pytest.raises(UserError, match=r"saved holds adapters of .*base, which are adapters too: use a merged"):
        load_policy(str(tmp_path / "saved"), CPU, processes)


@pytest.mark.slow
@pytest.mark.learns
def test_a_run_with_adapters_learns(loop, policy, tmp_path):
    # The head stays as it is: one of random weights as small as these cannot say anything with much probability.
    policy.model.get_output_embeddings().weight.data *= 5
    save_policy(policy, tmp_path / "model")
    flags = ["--lora-rank", "8", "--steps", "12", "--kl-coef", "0.001", "--learning-rate", "2e-2"]
    _, run = loop(*flags)
    lines = metrics(run)[1:]
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    assert rewards[0] < 0.2 and sum(rewards[-5:]) / 5 > 0.5, rewards
    assert lines[0]["policy/ref_kl"] == 0 < lines[-1]["policy/ref_kl"]
    assert max(line["engine/logprob_gap_max"] for line in lines) < 1e-4
