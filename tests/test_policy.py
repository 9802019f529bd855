"""From prompts to token ids and back, and what a policy knows of its model."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from minrl.batch import pack
from minrl.config import ModelConfig
from minrl.models.cpu import product
from minrl.models.loading import ASSISTANT, END, USER, save_model, word_tokenizer
from minrl.models.modules import Float32Linear
from minrl.models.scoring import Method
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from minrl.run.verify import Verified
from minrl.types import UserError
from tests.conftest import CPU


def ids_of(policy, text):
    return policy.tokenizer(text)["input_ids"]


def user(text):
    return [{"role": "user", "content": text}]


SEVENS = ("7 7 7", user("7"))
"""Three tokens each: the message stands between the user's and the assistant's."""


@pytest.mark.parametrize("prompt", SEVENS, ids=["text", "messages"])
def test_a_prompt_fits_that_is_shorter_than_the_length(prompt, policy, monkeypatch):
    assert [policy.fits(prompt, length) for length in (1, 3, 4, 1000)] == [False, False, True, True]
    # What is short in bytes is not encoded.
    length = len((prompt if isinstance(prompt, str) else f"{USER} 7 {ASSISTANT}").encode()) + 2
    monkeypatch.setattr(policy, "encode_first_turn", lambda prompt: [0] * 10**6)
    monkeypatch.setattr(policy.tokenizer, "num_special_tokens_to_add", lambda: 2)
    assert [policy.fits(prompt, more) for more in (length, length + 1)] == [False, True]


def test_what_has_no_token_or_is_no_text_does_not_fit(policy):
    assert not any(policy.fits(prompt, 20) for prompt in ("", "   ", " " * 50, [], "7 \ud800"))


def test_a_stop_string_that_is_one_token_stops_by_its_id(policy):
    (end,), (seven,) = ids_of(policy, END), ids_of(policy, "7")
    assert policy.stop_tokens([END, "7", "7 7", "unheard of"]) == {end, seven}
    policy.tokenizer.unk_token = None  # what the tokenizer does not know has no id then
    assert policy.stop_tokens([END, "unheard of"]) == {end}


def test_without_adapters_the_reference_is_the_frozen_copy(policy, make_policy):
    with pytest.raises(AssertionError, match="needs the reference"), policy.as_reference():
        pass
    policy.reference = make_policy(1).model
    with policy.as_reference() as reference:
        assert reference is policy.reference


def test_template_options_reach_the_template_and_without_one_messages_are_refused(policy, processes):
    config = ModelConfig(device="cpu", threads=1, chat_template_options='{"enable_thinking": true}')
    thinking = as_policy(policy.model, policy.tokenizer, config, processes)
    thinking.tokenizer.chat_template = "{% if enable_thinking %}yes{% else %}no{% endif %} {{ messages[0].content }}"
    assert thinking.encode_prompt(user("numbers")) == ids_of(policy, "yes numbers")
    assert policy.encode_prompt(user("numbers")) == ids_of(policy, "no numbers")
    policy.tokenizer.chat_template = None
    assert policy.encode_prompt("numbers")
    with pytest.raises(UserError, match="no chat template"):
        policy.encode_prompt(user("7"))


def test_a_model_may_have_several_end_tokens(policy):
    end = policy.tokenizer.eos_token_id
    for named, expected in ((end, {end}), ([7, 9], {7, 9, end}), (None, {end})):
        policy.model.generation_config.eos_token_id = named
        assert policy.stop_ids == expected
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace(END, USER)
    assert policy.stop_ids == {end, *ids_of(policy, USER)}  # what its answers end with


def refusal(folder, processes):
    with pytest.raises(UserError) as refused:
        load_policy(str(folder), CPU, processes)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)
    return str(refused.value)


def test_a_folder_with_a_part_of_the_weights_is_refused(tmp_path, policy, processes):
    save_policy(policy, tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    save_file({name: weight for name, weight in weights.items() if "mlp" not in name}, file, {"format": "pt"})
    expected = "lacks 6 weights of its own shape, model.layers.0.mlp.down_proj.weight among"
    assert expected in refusal(tmp_path, processes)
    save_file({**weights, "model.norm.weight": weights["model.norm.weight"].repeat(2)}, file, {"format": "pt"})
    assert "model.norm.weight" in refusal(tmp_path, processes)
    file.write_bytes(file.read_bytes()[:1000])
    assert "is not a model folder that transformers can load" in refusal(tmp_path, processes)


@pytest.mark.parametrize(("added", "count"), [("a word", 1), ("a special token", 1), ("another model's", 2)])
def test_a_tokenizer_with_tokens_that_the_embedding_lacks_is_refused(tmp_path, policy, processes, added, count):
    rows = len(policy.tokenizer)
    if added == "another model's":
        known = sorted(policy.tokenizer.get_vocab().keys() - word_tokenizer([]).get_vocab().keys())
        policy.tokenizer = word_tokenizer([*known, "further", "<tool>"])
    elif added == "a special token":
        policy.tokenizer.add_special_tokens({"extra_special_tokens": ["<tool>"]})
    else:
        policy.tokenizer.add_tokens(["<tool>"])
    save_model(policy.model, policy.tokenizer, tmp_path)
    last = rows + count - 1
    expected = f"has {count} tokens that the model's embedding of {rows} rows lacks, '<tool>' with id {last} among them"
    assert expected in refusal(tmp_path, processes)


def test_weights_that_are_not_finite_are_not_saved(policy, tmp_path):
    with torch.no_grad():
        policy.model.model.norm.weight[3] = torch.inf
    with pytest.raises(UserError, match=r"model.norm.weight is not finite and is not saved"):
        save_policy(policy, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_policy_runs_without_dropout_by_the_fast_products_from_version_0(policy, processes, monkeypatch):
    sped_up = []
    monkeypatch.setattr("minrl.policy.speed_up", sped_up.append)
    made = as_policy(policy.model.train(), policy.tokenizer, CPU, processes)
    assert not made.model.training and sped_up == [made.model]
    assert (made.version, made.skipped_steps, made.reference, made.adapters) == (0, 0, None, None)


@pytest.mark.parametrize("bias", [True, False])
def test_the_fast_product_is_a_linear_layer_gradients_too(bias):
    torch.manual_seed(0)
    plain, fast = (torch.nn.Linear(33, 17, bias=bias) for _ in range(2))
    fast.load_state_dict(plain.state_dict())
    fast.__class__ = Float32Linear
    grad, results = torch.randn(2, 5, 17), []
    for layer in (plain, fast):
        x = torch.randn(2, 5, 33, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = layer(x)
        y.backward(grad)
        results.append([y, x.grad, *(weight.grad for weight in layer.parameters())])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
    double = torch.randn(3, 33, dtype=torch.float64)
    torch.testing.assert_close(product(double, plain.weight.double()), double @ plain.weight.double().T)


def test_a_model_that_is_loaded_is_verified_and_packed_where_it_shares_prompts(policy, processes, monkeypatch):
    verified, found = [], Verified(Method())
    monkeypatch.setattr("minrl.run.setup.load_model", lambda path: (policy.model, policy.tokenizer))
    monkeypatch.setattr("minrl.run.setup.verify", lambda model: verified.append(model) or found)
    assert load_policy("owner/name", CPU, processes).model is policy.model
    assert verified == [policy.model] and policy.packed is True
    monkeypatch.setattr(policy.model, "_supports_attention_backend", False)
    assert policy.packed is False


def test_only_score_computes_in_the_lower_precision_while_casts_are_kept(policy, make_rollout, monkeypatch):
    stream = pack([make_rollout([5, 6], [7, 8])], [0])
    exact = policy.score(stream, 1.0)[0]
    monkeypatch.setattr(policy.processes, "autocast", lambda: torch.autocast("cpu", torch.bfloat16))
    with policy.passes(2):
        assert not torch.is_autocast_enabled("cpu")
        inside = policy.score(stream, 1.0)[0]
    assert 0 < (inside - exact).abs().max() < 0.1


def test_free_memory_and_kept_activations_on_a_card_by_hand(policy, make_rollout, monkeypatch):
    # A card of 80 bytes, of which 50 are free; torch holds 25 and uses 20 of them.
    card = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, count=4)
    monkeypatch.setattr(policy, "processes", card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (50, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 25)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert policy.free_memory() == 50 + (25 - 20)
    # Two completions of three tokens on a prompt of four: 4 + 2 * 2 tokens of a stream. Each token keeps 2 bytes, each
    # pair 0.5.
    stream = pack([make_rollout([5, 6, 7, 8], [9, 9, 2])] * 2, [0, 1])
    policy._activation_growth = (2.0, 0.5)
    assert policy.activation_bytes(stream) == 2 * 8 + 0.5 * 8**2


def test_a_model_without_layers_is_not_computed_again(policy, make_rollout, monkeypatch):
    stream = pack([make_rollout([5, 6], [7, 8])], [0])
    monkeypatch.setattr(policy, "free_memory", lambda: 0)
    assert policy._recomputes(stream)
    monkeypatch.setattr("minrl.policy.layers_of", lambda decoder: [])
    assert not policy._recomputes(stream)
