"""From prompts to token ids and back, and what a policy knows of its model."""

import pytest
import torch

from minrl import cpu
from minrl.config import ModelConfig
from minrl.cpu import OneDnnLinear, few_rows_product, product
from minrl.models import ASSISTANT, END, USER
from minrl.policy import as_policy, load_policy, master_weights
from minrl.types import UserError
from tests.conftest import CPU


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


def test_a_prompt_is_encoded_once_for_its_group_and_nobody_can_change_it(policy, monkeypatch):
    asked = []
    tokenizer = policy.tokenizer
    monkeypatch.setattr(policy, "tokenizer", lambda text: asked.append(text) or tokenizer(text))
    monkeypatch.setattr(policy, "_encoded", {})
    first = policy.encode_prompt("numbers 1 2")
    first.append(0)
    assert policy.encode_prompt("numbers 1 2") == first[:-1]
    assert asked == ["numbers 1 2"]
    monkeypatch.setattr("minrl.policy.KEPT_PROMPTS", 2)
    for prompt in ("1", "2", "1"):
        policy.encode_prompt(prompt)
    assert asked == ["numbers 1 2", "1", "2", "1"]  # the third prompt made room for itself


def test_the_next_turn_closes_the_completion_once(policy):
    message = [{"role": "user", "content": "no"}]
    shown = ids_of(policy, f"{USER} no {ASSISTANT}")
    end = ids_of(policy, END)
    assert policy.encode_next_turn(message, ids_of(policy, f"2 {END}")) == shown
    assert policy.encode_next_turn(message, ids_of(policy, "2")) == end + shown  # it was cut off
    assert policy.encode_next_turn(message, []) == end + shown
    assert policy.encode_next_turn("no", ids_of(policy, "2")) == ids_of(policy, "no")


def test_turns_that_are_appended_make_the_conversation_that_the_template_makes(policy):
    first = [{"role": "user", "content": "numbers 1"}]
    said = ids_of(policy, f"2 {END}")
    second = [{"role": "user", "content": "no"}]
    whole = policy.encode_prompt([*first, {"role": "assistant", "content": "2"}, *second])
    assert policy.encode_prompt(first) + said + policy.encode_next_turn(second, said) == whole


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


@pytest.mark.parametrize("bias", [True, False])
def test_the_fast_product_is_a_linear_layer_gradients_too(bias):
    torch.manual_seed(0)
    plain = torch.nn.Linear(33, 17, bias=bias)
    fast = torch.nn.Linear(33, 17, bias=bias)
    fast.load_state_dict(plain.state_dict())
    fast.__class__ = OneDnnLinear
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
    monkeypatch.setattr(cpu, "_onednn_available", lambda: False)  # as on a CPU where MKL multiplies
    x, weight, offset = torch.randn(shape), torch.randn(7, 5), torch.randn(7) if bias else None
    made = few_rows_product(x, weight, offset)
    assert made.shape == (*shape[:-1], 7)
    assert made.is_contiguous() == (len(x) > cpu.FEW_ROWS or len(x) == 1)
    torch.testing.assert_close(made, torch.nn.functional.linear(x, weight, offset))


def test_a_policy_runs_without_dropout(policy):
    assert not policy.model.training
