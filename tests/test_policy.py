"""From prompts to token ids and back, and what a policy knows of its model."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from loguru import logger
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import Phi3Config

from minrl.batch import pack
from minrl.config import ModelConfig
from minrl.models import cpu
from minrl.models.cpu import few_rows_product, product
from minrl.models.loading import ASSISTANT, END, USER, save_model, word_tokenizer
from minrl.models.method import Method
from minrl.models.modules import Float32Linear
from minrl.models.sharding import master_weights
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from minrl.run.verify import Verified
from minrl.types import UserError
from tests.conftest import CPU
from tests.test_scoring import SMALL, make_model


def ids_of(policy, text):
    return policy.tokenizer(text)["input_ids"]


def test_a_string_is_fed_as_it_is_and_messages_through_the_template(policy):
    assert policy.encode_prompt("numbers 1 2") == ids_of(policy, "numbers 1 2")
    messages = [
        {"role": "user", "content": "numbers 1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    expected = f"{USER} numbers 1 {ASSISTANT} 2 {END} {USER} 3 {ASSISTANT}"
    assert policy.encode_prompt(messages) == ids_of(policy, expected)


@pytest.fixture
def asked(policy, monkeypatch):
    """The prompts that are encoded, in order."""
    prompts, encode = [], policy.encode_first_turn
    monkeypatch.setattr(policy, "encode_first_turn", lambda prompt: prompts.append(prompt) or encode(prompt))
    return prompts


def test_a_prompt_is_encoded_once_for_its_group_and_nobody_can_change_it(policy, monkeypatch, asked):
    first = policy.encode_prompt("numbers 1 2")
    first.append(0)
    assert policy.encode_prompt("numbers 1 2") == first[:-1]
    assert asked == ["numbers 1 2"]
    monkeypatch.setattr("minrl.models.chat.KEPT_PROMPTS", 2)
    for prompt in ("1", "2", "1"):
        policy.encode_prompt(prompt)
    assert asked == ["numbers 1 2", "1", "2", "1"]  # the third prompt made room for itself


def test_the_next_turn_closes_the_completion_once(policy):
    message = [{"role": "user", "content": "no"}]
    shown = ids_of(policy, f"{USER} no {ASSISTANT}")
    end = ids_of(policy, END)
    assert policy.encode_next_turn(message, ids_of(policy, f"2 3 {END}")) == shown
    assert policy.encode_next_turn(message, ids_of(policy, "2")) == end + shown  # it was cut off
    assert policy.encode_next_turn(message, []) == end + shown
    assert policy.encode_next_turn("no", ids_of(policy, "2")) == ids_of(policy, "no")


def test_turns_that_are_appended_make_the_conversation_that_the_template_makes(policy):
    first = [{"role": "user", "content": "numbers 1"}]
    said = ids_of(policy, f"2 {END}")
    second = [{"role": "user", "content": "no"}]
    whole = policy.encode_prompt([*first, {"role": "assistant", "content": "2"}, *second])
    assert policy.encode_prompt(first) + said + policy.encode_next_turn(second, said) == whole


def test_what_the_tokenizer_puts_in_front_stands_before_a_prompt_of_plain_text_alone(policy):
    # A template writes it itself; before the next turn there is a text already.
    seven, message = ids_of(policy, "7"), [{"role": "user", "content": "7"}]
    templated, next_turn = policy.encode_prompt(message), policy.encode_next_turn(message, [])
    policy.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="4 $A", special_tokens=[("4", 4)])
    policy._encoded.clear()
    assert policy.encode_prompt("7") == [4, *seven]
    assert policy.encode_prompt(message) == templated
    assert policy.encode_next_turn("7", []) == seven
    assert policy.encode_next_turn(message, []) == next_turn


SEVENS = ("7 7 7", [{"role": "user", "content": "7"}])
"""Three tokens each: the message stands between the user's and the assistant's."""


@pytest.mark.parametrize("prompt", SEVENS, ids=["text", "messages"])
def test_a_prompt_fits_that_is_shorter_than_the_length(prompt, policy):
    assert [policy.fits(prompt, length) for length in (1, 3, 4, 1000)] == [False, False, True, True]


@pytest.mark.parametrize("prompt", ["", "   ", " " * 50, [], "7 \ud800"])
def test_what_has_no_token_or_is_no_text_does_not_fit(prompt, policy):
    assert policy.fits(prompt, 20) is False


@pytest.mark.parametrize("prompt", SEVENS, ids=["text", "messages"])
def test_what_is_short_in_bytes_fits_without_being_encoded(prompt, policy, monkeypatch):
    bytes_of = len((prompt if isinstance(prompt, str) else f"{USER} 7 {ASSISTANT}").encode())
    encoded = []
    monkeypatch.setattr(policy, "encode_first_turn", lambda prompt: encoded.append(prompt) or [0] * 10**6)
    monkeypatch.setattr(policy.tokenizer, "num_special_tokens_to_add", lambda: 2)
    assert policy.fits(prompt, bytes_of + 2 + 1) and encoded == []
    assert not policy.fits(prompt, bytes_of + 2) and encoded == [prompt]


def test_a_stop_string_that_is_one_token_stops_by_its_id(policy):
    (end,) = ids_of(policy, END)
    (seven,) = ids_of(policy, "7")
    assert policy.stop_tokens([END, "7", "7 7", "unheard of"]) == {end, seven}
    policy.tokenizer.unk_token = None  # what the tokenizer does not know has no id then
    assert policy.stop_tokens([END, "unheard of"]) == {end}


def test_without_adapters_the_reference_is_the_frozen_copy(policy, make_policy):
    with pytest.raises(AssertionError, match="needs the reference"), policy.as_reference():
        pass
    policy.reference = make_policy(1).model
    with policy.as_reference() as reference:
        assert reference is policy.reference


def test_a_policy_is_packed_where_its_model_shares_prompts(policy, monkeypatch):
    assert policy.packed is True
    monkeypatch.setattr(policy.model, "_supports_attention_backend", False)
    assert policy.packed is False


def test_a_tokenizer_without_a_template_is_refused_where_it_needs_one(policy):
    policy.tokenizer.chat_template = None
    assert policy.encode_prompt("numbers")
    with pytest.raises(UserError, match="no chat template"):
        policy.encode_prompt([{"role": "user", "content": "numbers"}])


def test_template_options_reach_the_template(policy, processes):
    config = ModelConfig(device="cpu", threads=1, chat_template_options='{"enable_thinking": true}')
    thinking = as_policy(policy.model, policy.tokenizer, config, processes)
    thinking.tokenizer.chat_template = "{% if enable_thinking %}yes{% else %}no{% endif %}"
    assert thinking.encode_prompt([{"role": "user", "content": "numbers"}]) == ids_of(policy, "yes")
    assert policy.encode_prompt([{"role": "user", "content": "numbers"}]) == ids_of(policy, "no")


def test_a_model_may_have_several_end_tokens(policy):
    assert policy.stop_ids == {policy.tokenizer.eos_token_id}
    policy.model.generation_config.eos_token_id = [7, 9]
    assert policy.stop_ids == {7, 9, policy.tokenizer.eos_token_id}
    policy.model.generation_config.eos_token_id = None
    assert policy.stop_ids == {policy.tokenizer.eos_token_id}
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace(END, USER)
    assert policy.stop_ids == {policy.tokenizer.eos_token_id, *ids_of(policy, USER)}  # what its answers end with


def test_rewards_do_not_read_an_end_token_that_is_not_special(policy):
    policy.tokenizer.add_tokens(["<over>"])
    (over,) = ids_of(policy, "<over>")
    policy.model.generation_config.eos_token_id = [over]
    assert policy.tokenizer.decode([over], skip_special_tokens=True) == "<over>"
    assert policy.decode([*ids_of(policy, "7 + 5"), over]) == "7 + 5"
    (seven,) = policy.model.generation_config.eos_token_id = ids_of(policy, "7")
    assert policy.decode([over, seven]) == "<over> 7"  # a word may end a completion too


def test_rewards_read_text_without_special_tokens_and_people_with(policy):
    ids = ids_of(policy, f"7 + 5 {END}")
    assert policy.decode(ids) == "7 + 5"
    assert policy.decode_all(ids) == f"7 + 5 {END}"


def test_tied_weights_count_once_and_names_are_sorted(policy):
    weights = master_weights(policy.model)
    assert list(weights) == sorted(weights)
    assert len({weight.data_ptr() for weight in weights.values()}) == len(weights)
    assert not any("lm_head" in name for name in weights)


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path, processes, content):
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
        (folder / "config.json").write_text(content)
    with pytest.raises(UserError) as refused:
        load_policy(str(folder), CPU, processes)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


def test_a_folder_with_a_part_of_the_weights_is_refused(tmp_path, policy, processes):
    save_policy(policy, tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    save_file({name: weight for name, weight in weights.items() if "mlp" not in name}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 6 weights of its own shape, model.layers.0.mlp.down_proj.weight among"):
        load_policy(str(tmp_path), CPU, processes)
    wide = weights["model.norm.weight"].repeat(2)
    save_file({**weights, "model.norm.weight": wide}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"model.norm.weight"):
        load_policy(str(tmp_path), CPU, processes)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="is not a model folder that transformers can load"):
        load_policy(str(tmp_path), CPU, processes)


@pytest.mark.parametrize("added", ["a word", "a special token", "an id far above"])
def test_a_tokenizer_with_tokens_that_the_embedding_lacks_is_refused_as_it_is_loaded(
    tmp_path, policy, processes, added
):
    rows = len(policy.tokenizer)
    if added == "an id far above":  # the tokenizer of another model
        known = sorted(policy.tokenizer.get_vocab().keys() - word_tokenizer([]).get_vocab().keys())
        policy.tokenizer = word_tokenizer([*known, "further", "last"])
        expected = f"has 2 tokens that the model's embedding of {rows} rows lacks, 'last' with id {rows + 1} among them"
    else:
        kind = "extra_special_tokens" if added == "a special token" else None
        policy.tokenizer.add_special_tokens({kind: ["<tool>"]}) if kind else policy.tokenizer.add_tokens(["<tool>"])
        expected = f"has 1 tokens that the model's embedding of {rows} rows lacks, '<tool>' with id {rows} among them"
    save_model(policy.model, policy.tokenizer, tmp_path)
    with pytest.raises(UserError, match=re.escape(expected)) as refused:
        load_policy(str(tmp_path), CPU, processes)
    assert "resize_token_embeddings" in str(refused.value) and "\n" not in str(refused.value)


def test_a_placeholder_for_images_needs_no_row(tmp_path, policy, processes):
    save_model(policy.model, policy.tokenizer, tmp_path)
    stored = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**stored, "image_token": "<image>"}))
    loaded = load_policy(str(tmp_path), CPU, processes)
    assert loaded.tokenizer.convert_tokens_to_ids("<image>") == len(policy.tokenizer)


def test_weights_that_are_not_finite_are_not_saved(policy, tmp_path):
    with torch.no_grad():
        policy.model.model.norm.weight[3] = torch.inf
    with pytest.raises(UserError, match=r"model.norm.weight is not finite and is not saved"):
        save_policy(policy, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("bias", [True, False])
def test_the_fast_product_is_a_linear_layer_gradients_too(bias):
    torch.manual_seed(0)
    plain = torch.nn.Linear(33, 17, bias=bias)
    fast = torch.nn.Linear(33, 17, bias=bias)
    fast.load_state_dict(plain.state_dict())
    fast.__class__ = Float32Linear
    grad = torch.randn(2, 5, 17)
    results = []
    for layer in (plain, fast):
        x = torch.randn(2, 5, 33, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = layer(x)
        y.backward(grad)
        results.append([y, x.grad, *(weight.grad for weight in layer.parameters())])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
    double = torch.randn(3, 33, dtype=torch.float64)
    torch.testing.assert_close(product(double, plain.weight.double()), double @ plain.weight.double().T)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 5), (3, 4, 5), (cpu.FEW_ROWS + 1, 5)])
def test_few_rows_are_multiplied_as_many_are(shape, bias, monkeypatch):
    monkeypatch.setattr(cpu, "onednn_available", lambda: False)  # as on a CPU where MKL multiplies
    x, weight, offset = torch.randn(shape), torch.randn(7, 5), torch.randn(7) if bias else None
    made = few_rows_product(x, weight, offset)
    assert made.shape == (*shape[:-1], 7)
    assert made.is_contiguous() == (len(x) > cpu.FEW_ROWS or len(x) == 1)
    torch.testing.assert_close(made, torch.nn.functional.linear(x, weight, offset))


def long_rope(original):
    """A model whose frequencies change beyond so many tokens of its 64."""
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 4.0, 8.0, 16.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original, **factors}
    return Phi3Config(**SMALL, eos_token_id=2, original_max_position_embeddings=original, rope_parameters=rope)


@pytest.mark.parametrize(("original", "limit"), [(24, 24), (64, 64)])
def test_a_model_with_long_rope_is_kept_to_its_original_context_and_that_is_said(tmp_path, processes, original, limit):
    save_model(make_model(long_rope(original), torch.float32), word_tokenizer([]), tmp_path)
    said = []
    sink = logger.add(said.append, format="{message}")
    policy = load_policy(str(tmp_path), CPU, processes)
    logger.remove(sink)
    assert policy.context_length == limit
    assert [f"the original {limit} tokens of its context of 64" in line for line in said] == [True] * (limit < 64)


def test_a_policy_runs_without_dropout_by_the_fast_products_from_version_0(policy, processes, monkeypatch):
    sped_up = []
    monkeypatch.setattr("minrl.policy.speed_up", sped_up.append)
    made = as_policy(policy.model.train(), policy.tokenizer, CPU, processes)
    assert not made.model.training
    assert sped_up == [made.model]
    assert (made.version, made.reference, made.adapters) == (0, None, None)


def test_a_model_that_is_loaded_is_verified(policy, processes, monkeypatch):
    verified, found = [], Verified(Method())
    monkeypatch.setattr("minrl.run.setup.load_model", lambda path: (policy.model, policy.tokenizer))
    monkeypatch.setattr("minrl.run.setup.verify", lambda model: verified.append(model) or found)
    assert load_policy("owner/name", CPU, processes).model is policy.model
    assert verified == [policy.model]


def test_only_score_computes_in_the_lower_precision_while_casts_are_kept(policy, make_rollout, monkeypatch):
    monkeypatch.setattr(policy.processes, "autocast", lambda: torch.autocast("cpu", torch.bfloat16))
    with policy.passes(2):
        assert not torch.is_autocast_enabled("cpu")
        inside = policy.score(pack([make_rollout([5, 6], [7, 8])], [0]), 1.0)[0]
    monkeypatch.undo()
    exact = policy.score(pack([make_rollout([5, 6], [7, 8])], [0]), 1.0)[0]
    assert 0 < (inside - exact).abs().max() < 0.1


@pytest.fixture
def on_a_card(policy, monkeypatch):
    """The policy as if its weights were on a card of 80 bytes, of which 50 are free and 20 of torch's 25 in use."""
    monkeypatch.setattr(policy, "processes", SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, count=4))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (50, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 25)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    return policy


def test_what_torch_holds_and_does_not_use_is_free_on_a_card(on_a_card):
    assert on_a_card.free_memory() == 50 + (25 - 20)


def test_padded_tokens_keep_activations_on_a_card_in_float32(on_a_card, make_rollout):
    # Two completions of three tokens on a prompt of four: 4 + 2 * 2 tokens of a stream, and of padded rows
    # 4 + 2 * (4 + 2). Each token keeps 2 bytes, each pair 0.5.
    stream = pack([make_rollout([5, 6, 7, 8], [9, 9, 2])] * 2, [0, 1])
    on_a_card._activation_growth = (2.0, 0.5)
    assert on_a_card.activation_bytes(stream) == 2 * 16 + 0.5 * 16**2
    on_a_card.processes.dtype = torch.bfloat16
    assert on_a_card.activation_bytes(stream) == 2 * 8 + 0.5 * 8**2
    on_a_card.processes.dtype, on_a_card.processes.device = torch.float32, torch.device("cpu")
    assert on_a_card.activation_bytes(stream) == 2 * 8 + 0.5 * 8**2


def test_a_model_without_layers_is_not_computed_again(policy, make_rollout, monkeypatch):
    stream = pack([make_rollout([5, 6], [7, 8])], [0])
    monkeypatch.setattr(policy, "free_memory", lambda: 0)
    assert policy._recomputes(stream)
    monkeypatch.setattr("minrl.policy.layers_of", lambda decoder: [])
    assert not policy._recomputes(stream)
