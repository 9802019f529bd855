"""From prompts to token ids and back, and what a policy knows of its model."""

from types import SimpleNamespace

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from minrl.batch import pack
from minrl.dataflow import UserError
from minrl.models.loading import END, USER
from minrl.policy import as_policy
from tests.conftest import CPU
from tests.parsed import sized


def ids_of(policy, text):
    return policy.tokenizer(text)["input_ids"]


def user(text):
    return [{"role": "user", "content": text}]


def test_a_prompt_fits_that_has_text_and_is_shorter_than_the_length(policy):
    for prompt in ("7 7 7", user("7")):  # three tokens each
        assert [policy.fits(prompt, length) for length in (1, 3, 4, 1000)] == [False, False, True, True]
    assert not any(policy.fits(prompt, 20) for prompt in ("", "   ", [], "7 \ud800"))


def test_a_stop_string_that_is_one_token_stops_by_its_id(policy):
    (end,), (seven,) = ids_of(policy, END), ids_of(policy, "7")
    assert policy.stop_tokens([END, "7", "7 7", "unheard of"]) == {end, seven}
    policy.tokenizer.unk_token = None  # what the tokenizer does not know has no id then
    assert policy.stop_tokens([END, "unheard of"]) == {end}


def test_template_options_reach_the_template_and_without_one_messages_are_refused(policy, processes):
    config = sized(device="cpu", threads=1, chat_template_options='{"enable_thinking": true}')
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


def test_only_score_computes_in_the_lower_precision_while_casts_are_kept(policy, make_rollout, monkeypatch):
    stream = pack([make_rollout([5, 6], [7, 8])], [0])
    exact = policy.score(stream, 1.0)[0]
    monkeypatch.setattr(policy.processes, "autocast", lambda: torch.autocast("cpu", torch.bfloat16))
    with policy.passes(2):
        assert not torch.is_autocast_enabled("cpu")
        inside = policy.score(stream, 1.0)[0]
    assert 0 < (inside - exact).abs().max() < 0.1


def test_free_memory_of_a_gpu_is_also_what_torch_holds_and_does_not_use(policy, monkeypatch):
    # A card of 80 bytes, of which 50 are free; torch holds 25 and uses 20 of them.
    card = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, count=4)
    monkeypatch.setattr(policy, "processes", card)
    for name, found in (("mem_get_info", (50, 80)), ("memory_reserved", 25), ("memory_allocated", 20)):
        monkeypatch.setattr(torch.cuda, name, lambda device, found=found: found)
    assert policy.free_memory() == 50 + (25 - 20)


def test_activations_are_of_tokens_pairs_and_copies_of_the_prompts_keys(policy, make_rollout, monkeypatch):
    # Two completions of three tokens on a prompt of four: 4 + 2 * 2 tokens of a stream. Each token keeps 2 bytes, each
    # pair 0.5; the copies of the prompt's keys and values are 3 numbers of 4 bytes for each token and completion.
    stream = pack([make_rollout([5, 6, 7, 8], [9, 9, 2])] * 2, [0, 1])
    policy._activation_growth = (2.0, 0.5)
    monkeypatch.setattr("minrl.policy.cached_numbers", lambda config: 3)
    assert policy.activation_bytes(stream) == 2 * 8 + 0.5 * 8 * 6 + 4 * 3 * 8


def test_the_scale_of_gemmas_embeddings_is_rounded_where_products_are(processes, monkeypatch):
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    for dtype, expected in ((torch.float32, 1152**0.5), (torch.bfloat16, 34.0)):
        monkeypatch.setattr(processes, "dtype", dtype)
        config = Gemma3TextConfig(vocab_size=20, hidden_size=1152, intermediate_size=8, **sizes)
        embedding = as_policy(Gemma3ForCausalLM(config), None, CPU, processes).model.get_input_embeddings()
        expected = expected * embedding.weight[3:4]
        torch.testing.assert_close(embedding(torch.tensor([3])), expected, rtol=1e-6, atol=0)
