"""The packed, chunked forward pass equals a plain one, rollout by rollout, gradients too."""

import pytest
import torch
from torch.autograd import gradcheck

from minrl.batch import pack
from minrl.dataflow import UserError
from minrl.models import (
    loading,  # noqa: F401 - registers packed attention with transformers
    scoring,
)
from minrl.models import logprobs as output_head
from minrl.models.attention import StreamAttention
from minrl.models.check import verify
from minrl.models.logprobs import Head, chunked_logprobs
from minrl.models.scoring import Method, padded_rows, row_tokens, score, set_method
from tests.conftest import random_model, small_config

SHAPES = {
    "qwen3": small_config("qwen3", head_dim=16, tie_word_embeddings=True),
    "mistral": small_config("mistral", sliding_window=3),
    "qwen2-sliding": small_config("qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "gpt-neox": small_config("gpt_neox", num_key_value_heads=4),
}


def make_model(config, dtype=torch.float64):
    return random_model(config, "sdpa").to(dtype)


@pytest.fixture
def rollouts(make_rollout):
    """Two groups of ragged completions, a single token among them, and a rollout of two turns."""
    mask = [False] * 5 + [True, True, False, False, True, True]
    return [
        make_rollout([1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 2]),
        make_rollout([6, 7], [11, 2], group=1),
        make_rollout([1, 2, 3, 4, 5], [30]),
        make_rollout([6, 7], [12, 13, 14, 15], group=1),
        make_rollout([1, 2, 3, 4, 5], [21, 2, 15, 16, 31, 2], loss_mask=mask, turns=[(5, 7), (9, 11)]),
    ]


def plain(model, rollouts, temperature):
    """Log-probabilities and entropies of sampled tokens by transformers' own forward pass, one rollout at a time."""
    logprobs, entropies = [], []
    for rollout in rollouts:
        z = model(torch.tensor([rollout.ids]), use_cache=False).logits[0, :-1] / temperature
        logp = z.log_softmax(-1)
        chosen = torch.tensor(rollout.loss_mask[1:])
        logprobs.append(logp.gather(1, torch.tensor(rollout.ids[1:])[:, None])[:, 0][chosen])
        entropies.append(-(logp.exp() * logp).sum(-1)[chosen])
    return torch.cat(logprobs), torch.cat(entropies)


def test_what_fills_a_pass_up_changes_nothing(rollouts, monkeypatch):
    """Also where memory that is not written holds NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    seen, found = [], []
    for sizes in (10**6, 1):  # every number of tokens, and powers of two only
        monkeypatch.setattr(scoring, "TOKEN_SIZES", sizes)
        model = make_model(SHAPES["qwen3"])
        model.get_decoder().register_forward_pre_hook(
            lambda module, args, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True
        )
        torch.use_deterministic_algorithms(True)
        try:
            logprobs, entropies = score(model, pack(rollouts, range(len(rollouts))), 0.8)
            (logprobs.sum() + entropies.square().sum()).backward()
        finally:
            torch.use_deterministic_algorithms(False)
        found.append([logprobs, entropies, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    assert seen == [21, 32]  # prompts of 5 and 2, and 5, 1, 0, 3 and 5 tokens behind them
    torch.testing.assert_close(found[1], found[0], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("shape", "packed"), [*((shape, True) for shape in SHAPES), ("qwen2-sliding", False)])
def test_scores_and_gradients_are_those_of_a_plain_forward_pass_in_streams_and_in_rows(shape, packed, rollouts):
    model, stream = make_model(SHAPES[shape]), pack(rollouts, range(len(rollouts)))
    set_method(model, Method(packed=packed))
    weights, gradients = torch.randn(sum(r.num_sampled for r in rollouts), dtype=torch.float64), []
    expected = plain(model, rollouts, 0.7)
    found = tuple(value[stream.token_index.argsort()] for value in score(model, stream, 0.7))
    assert expected[0].std() > 0.5  # otherwise any two numbers would agree
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for logprobs, entropy in (expected, found):
        model.zero_grad()
        (logprobs @ weights + 0.3 * entropy @ weights).backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    for name, expected in gradients[0].items():
        # transformers' norms compute in float32 whatever the weights are, so float64 agrees to float32's precision.
        largest = float(expected.abs().max())
        torch.testing.assert_close(gradients[1][name] / largest, expected / largest, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kept_logits", "chunk_logits", "scale", "cap", "biased"),
    [  # kept, or computed again in the backward pass; 3 and all 7 rows of 11 logits
        (2**24, 33, 1.0, 0.0, False),
        (0, 33, 0.3, 2.0, True),
        (2**24, 2**24, 0.3, 2.0, True),
    ],
)
def test_chunked_logprobs_and_their_gradients(monkeypatch, kept_logits, chunk_logits, scale, cap, biased):
    monkeypatch.setitem(output_head.CHUNK_LOGITS, "cpu", chunk_logits)
    for name, value in (("CHUNK_ROWS", 1), ("KEPT_LOGITS", kept_logits), ("BLOCK_ROWS", 2)):
        monkeypatch.setattr(output_head, name, value)
    generator, labels = torch.Generator().manual_seed(0), torch.tensor([0, 3, 10, 3, 5, 6, 1])
    shapes = [(7, 5), (11, 5), (11,)][: 3 if biased else 2]
    leaves = [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]

    def chunked(hidden, weight, bias=None):
        return chunked_logprobs(hidden, Head(weight, bias, scale, cap), labels, 0.6)

    logits = torch.nn.functional.linear(*leaves) * scale
    logits = cap * torch.tanh(logits / cap) if cap else logits
    logp = (logits / 0.6).log_softmax(-1)
    expected = logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(chunked(*leaves), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(Head(*leaves[1:], scale=scale, cap=cap).logits(leaves[0]), logits, atol=1e-12, rtol=0)
    assert gradcheck(chunked, leaves)


def test_a_model_is_refused_from_a_thousandth_of_a_nat_on(monkeypatch):
    # A bias of b on one of two halves of the vocabulary moves log-probabilities by at most b, by about half of it.
    model = random_model(small_config("phi", num_key_value_heads=4), "sdpa")
    for module in ("scoring", "check"):
        monkeypatch.setattr(f"minrl.models.{module}.output_head", lambda model: Head(model.lm_head.weight))
    model.lm_head.bias.data.zero_()[:20] = 0.0004
    verify(model)
    model.lm_head.bias.data[:20] = 0.1
    with pytest.raises(UserError, match=r"PhiForCausalLM cannot be trained: its last hidden states .* by 0\.0"):
        verify(model)


def test_a_gradient_that_is_not_that_of_plain_transformers_refuses(monkeypatch):
    model = make_model(SHAPES["qwen3"], torch.float32)
    halved = lambda *args, **named: tuple((x + x.detach()) / 2 for x in score(*args, **named))  # noqa: E731
    monkeypatch.setattr("minrl.models.check.score", halved)
    with pytest.raises(UserError, match=r"the gradient of .*q_proj.weight differs by 0.5 of"):
        verify(model)


def test_a_packed_pass_that_is_wrong_in_bfloat16_alone_is_not_used(monkeypatch):
    """As flash attention would be, which a card takes for nothing else."""
    model, attend = make_model(SHAPES["qwen3"], torch.float32), StreamAttention.__call__
    assert verify(model, in_bfloat16=True).method.packed

    def broken(self, query, key, value, scale, window):
        return attend(self, query, key, value, 0 if torch.is_autocast_enabled("cpu") else scale, window)

    monkeypatch.setattr(StreamAttention, "__call__", broken)
    assert verify(model).method.packed
    found = verify(model, in_bfloat16=True)
    assert not found.method.packed and found.why_not_packed.startswith("in bfloat16 ")


def test_a_prompts_tokens_are_taken_from_its_first_row(make_rollout):
    # Prompts [1, 2] and [7] with suffixes [3, 4], [] and [8]; the last token of each rollout is a label only.
    rollouts = [make_rollout([1, 2], [3, 4, 9]), make_rollout([1, 2], [9]), make_rollout([7], [8, 9], group=1)]
    stream = pack(rollouts, range(3))
    assert stream.input_ids.tolist() == [1, 2, 3, 4, 7, 8] and row_tokens(stream) == 3 * 4
    rows, places = padded_rows(stream)
    assert (rows[0].tolist(), rows[1:, :2].tolist()) == ([1, 2, 3, 4], [[1, 2], [7, 8]])
    assert places.tolist() == [0, 1, 2, 3, 8, 9]


@pytest.mark.parametrize("kept", [True, False])
def test_autocast_is_the_heads_precision_forward_and_backward(kept, monkeypatch):
    monkeypatch.setattr("minrl.models.logprobs.KEPT_LOGITS", 10**9 if kept else 0)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 8, generator=generator), torch.randn(300, 8, generator=generator)
    labels = torch.tensor([1, 2, 3, 4, 5])

    def gradients(hidden, weight, autocast):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logprobs, entropy = chunked_logprobs(leaves[0], Head(leaves[1]), labels, 1.3)
        (logprobs.sum() + entropy.sum()).backward()
        return logprobs, entropy, *(leaf.grad.float() for leaf in leaves)

    expected = gradients(hidden.bfloat16(), weight.bfloat16(), autocast=False)
    actual = gradients(hidden, weight, autocast=True)
    torch.testing.assert_close(actual[:3], expected[:3], atol=0, rtol=0)
    torch.testing.assert_close(actual[3], expected[3], atol=1e-2, rtol=1e-2)  # summed in the weight's own float32
