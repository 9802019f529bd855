"""Decoders: each is computed as transformers does, whatever happens to its rows."""

import pytest
import torch

from minrl.engines.decoders import CachedDecoder, LlamaDecoder, RecomputingDecoder, has_own_decoder, make_decoder
from tests.conftest import random_model, small_config

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
CONFIGS = {
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama with yarn": {"rope_parameters": YARN},
    "llama with dynamic rope": {"max_position_embeddings": 28, "rope_parameters": {**YARN, "rope_type": "dynamic"}},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": None},
}


def make_model(name, **more):
    return random_model(small_config(name.split()[0], **{**CONFIGS.get(name, {}), **more}))


def logprobs_of(hidden, model):
    return (hidden.float() @ model.get_output_embeddings().weight.float().T).log_softmax(-1)


@torch.no_grad()
def alone(model, ids):
    """Log-probabilities of every token after each position of a sequence, by transformers' plain forward pass."""
    return logprobs_of(model.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0], model)


@torch.no_grad()
def decoded(model, made):
    """Rows as they are decoded: the sequence, the length of its prompt, and log-probabilities of every token after each
    position from the prompt's end on. Rows are repeated, reordered and dropped on the way.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 40, (count,), generator=generator).tolist() for count in (1, 5, 14)]
    rows = [(prompt, len(prompt), [one]) for prompt, one in zip(prompts, made.prefill(prompts, 13), strict=True)]
    done = []
    for chosen, steps in (([2, 0, 0, 1, 2], 4), ([3, 1, 4], 6), ([1], 3)):
        done += [row for index, row in enumerate(rows) if index not in chosen]
        rows = [rows[index] for index in chosen]
        made.select(torch.tensor(chosen))
        for _ in range(steps):
            tokens = torch.randint(3, 40, (len(rows),), generator=generator)
            hidden = made.step(tokens)
            rows = [
                ([*ids, token], start, [*states, state])
                for (ids, start, states), token, state in zip(rows, tokens.tolist(), hidden, strict=True)
            ]
    return [(ids, start, logprobs_of(torch.stack(states), model)) for ids, start, states in done + rows]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_of_our_own_decoder_is_computed_as_transformers_does(name):
    model = make_model(name)
    made = make_decoder(model)
    assert isinstance(made, LlamaDecoder)
    for ids, start, logprobs in decoded(model, made):
        expected = alone(model, ids)[start - 1 :]
        assert expected.std() > 0.5  # otherwise any two numbers would agree
        torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)


def test_in_bfloat16_the_gap_is_small():
    model = make_model("qwen3")
    with torch.autocast("cpu", torch.bfloat16):
        for ids, start, logprobs in decoded(model, make_decoder(model)):
            expected = alone(model, ids)[start - 1 :]
            assert (logprobs - expected).abs().mean() < 0.05 * expected.std()


@pytest.mark.parametrize("kind", ["mistral", "granite"])
def test_another_model_is_left_to_transformers_and_its_cache(kind):
    model = make_model(kind, **({"sliding_window": 6} if kind == "mistral" else {"residual_multiplier": 0.5}))
    made = make_decoder(model)
    assert isinstance(made, CachedDecoder) and not has_own_decoder(model)
    for ids, start, logprobs in decoded(model, made):
        torch.testing.assert_close(logprobs, alone(model, ids)[start - 1 :], atol=1e-4, rtol=0)


def test_without_a_cache_a_row_that_has_ended_stays_inside_the_context():
    model = make_model("gpt2", n_positions=8)
    recomputing = RecomputingDecoder(model)
    prompts, tokens = [[1] * 7, [2, 3]], [4, 5, 6, 7]  # the first has ended after one token
    recomputing.prefill(prompts, 5)
    with torch.no_grad():
        for token in tokens:
            hidden = recomputing.step(torch.tensor([token, token]))
        expected = model.transformer(torch.tensor([[2, 3, *tokens]])).last_hidden_state[0, -1]
    torch.testing.assert_close(hidden[1], expected, atol=1e-5, rtol=0)
