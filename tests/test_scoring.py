"""The packed, chunked forward pass equals a plain one, rollout by rollout, gradients too."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from minrl.batch import micro_batches, pack
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
from tests.conftest import small_config

SHAPES = {
    "qwen3": small_config("qwen3", head_dim=16, tie_word_embeddings=True),
    "mistral": small_config("mistral", sliding_window=3),
    "qwen2-sliding": small_config("qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "gemma": small_config("gemma", head_dim=8),
    "gpt-neox": small_config("gpt_neox", num_key_value_heads=4),
}


def make_model(config, dtype=torch.float64):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).eval()
    with torch.no_grad():  # the usual initialization is so small that every token is equally likely
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(8)
    return model


@pytest.fixture
def rollouts(make_rollout):
    """Two groups of ragged completions, a single token among them, and a rollout of two turns."""
    turns = make_rollout(
        [1, 2, 3, 4, 5],
        [],
        ids=[1, 2, 3, 4, 5, 21, 2, 15, 16, 31, 2],
        loss_mask=[False] * 5 + [True, True, False, False, True, True],
        rollout_logprobs=[0.0] * 11,
        turns=[(5, 7), (9, 11)],
    )
    return [
        make_rollout([1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 2]),
        make_rollout([6, 7], [11, 2], group=1),
        make_rollout([1, 2, 3, 4, 5], [30]),
        make_rollout([6, 7], [12, 13, 14, 15], group=1),
        turns,
    ]


def plain(model, rollouts, temperature):
    """Log-probabilities and entropies of sampled tokens by transformers' own forward pass, one rollout at a time."""
    logprobs, entropies = [], []
    for rollout in rollouts:
        z = model(torch.tensor([rollout.ids])).logits[0, :-1] / temperature
        logp = z.log_softmax(-1)
        chosen = torch.tensor(rollout.loss_mask[1:])
        logprobs.append(logp.gather(1, torch.tensor(rollout.ids[1:])[:, None])[:, 0][chosen])
        entropies.append(-(logp.exp() * logp).sum(-1)[chosen])
    return torch.cat(logprobs), torch.cat(entropies)


def packed(model, rollouts, temperature, budget):
    """The same by `score`, in the order of the step's tokens."""
    total = sum(rollout.num_sampled for rollout in rollouts)
    logprobs, entropies = (torch.empty(total, dtype=next(model.parameters()).dtype) for _ in range(2))
    for part in micro_batches(rollouts, range(len(rollouts)), budget):
        stream = pack(rollouts, part)
        logprobs[stream.token_index], entropies[stream.token_index] = score(model, stream, temperature)
    return logprobs, entropies


@pytest.mark.parametrize("shape", ["qwen3", "gpt-neox"])
def test_what_fills_a_pass_up_changes_nothing(shape, rollouts, monkeypatch):
    """Also where memory that is not written holds NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    seen, found = [], []
    for sizes in (10**6, 1):  # every number of tokens, and powers of two only
        monkeypatch.setattr(scoring, "TOKEN_SIZES", sizes)
        model = make_model(SHAPES[shape])
        model.get_decoder().register_forward_pre_hook(
            lambda module, args, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True
        )
        torch.use_deterministic_algorithms(True)
        try:
            logprobs, entropies = packed(model, rollouts, 0.8, 10_000)
            (logprobs.sum() + entropies.square().sum()).backward()
        finally:
            torch.use_deterministic_algorithms(False)
        found.append([logprobs, entropies, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    assert seen == [21, 32]  # prompts of 5 and 2, and 5, 1, 0, 3 and 5 tokens behind them
    assert len(found[1][0]) == sum(rollout.num_sampled for rollout in rollouts)
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


@pytest.fixture
def head():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, generator=generator)
    weight = torch.randn(11, 5, dtype=torch.float64, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.tensor([0, 3, 10, 3, 5, 6, 1])


def test_on_a_card_each_chunk_of_the_heads_backward_pass_is_one_product_of_each_kind(monkeypatch):
    """8,192 scored tokens of 152k logits in bfloat16, with tensors without storage in place of a card's."""
    monkeypatch.setitem(output_head.CHUNK_LOGITS, "meta", output_head.CHUNK_LOGITS["cuda"])
    counted = Counter()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counted[func._schema.name] += 1
            return func(*args, **(kwargs or {}))

    with torch.device("meta"), torch.no_grad(), Counting():
        hidden = torch.empty(8192, 1024, dtype=torch.bfloat16)
        weight, labels = torch.empty(151_936, 1024), torch.zeros(8192, dtype=torch.long)
        logsumexp, entropy, grad = (torch.empty(8192) for _ in range(3))
        chunks = -(-8192 // output_head._chunk_rows(hidden, weight))
        saved = hidden, weight, None, labels, logsumexp, entropy
        context = SimpleNamespace(
            saved_tensors=saved,
            form=(1.0, 0.0),
            temperature=1.0,
            probabilities=[None] * chunks,
            needs_input_grad=(True, True, False),
        )
        grad_hidden, grad_weight, *_ = output_head._ChunkedLogprobs.backward(context, grad, None)
    assert (grad_hidden.dtype, grad_weight.dtype) == (torch.bfloat16, torch.float32)
    assert chunks == 10 and counted["aten::mm"] == 3 * chunks  # logits, and the gradients of hidden states and weights


@pytest.mark.parametrize(
    ("kept_logits", "chunk_logits", "scale", "cap", "biased"),
    [  # kept, or computed again in the backward pass; 1, 3 and all 7 rows of 11 logits
        (2**24, 33, 1.0, 0.0, False),
        (0, 33, 0.3, 2.0, True),
        (0, 1, 1.0, 0.0, False),
        (2**24, 2**24, 0.3, 2.0, True),
    ],
)
def test_chunked_logprobs_and_their_gradients(monkeypatch, head, kept_logits, chunk_logits, scale, cap, biased):
    monkeypatch.setitem(output_head.CHUNK_LOGITS, "cpu", chunk_logits)
    for name, value in (("CHUNK_ROWS", 1), ("KEPT_LOGITS", kept_logits), ("BLOCK_ROWS", 2)):
        monkeypatch.setattr(output_head, name, value)
    hidden, weight, labels = head
    bias = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    leaves = (hidden, weight, bias) if biased else (hidden, weight)

    def chunked(hidden, weight, bias=None):
        return chunked_logprobs(hidden, Head(weight, bias, scale, cap), labels, 0.6)

    logits = (hidden @ weight.T + (bias if biased else 0)) * scale
    logits = cap * torch.tanh(logits / cap) if cap else logits
    logp = (logits / 0.6).log_softmax(-1)
    expected = logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(chunked(*leaves), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(Head(*leaves[1:], scale=scale, cap=cap).logits(hidden), logits, atol=1e-12, rtol=0)
    assert gradcheck(chunked, leaves)


@pytest.mark.parametrize(("bias", "refused"), [(0.0004, False), (0.1, True)])
def test_a_model_is_refused_from_a_thousandth_of_a_nat_on(bias, refused, monkeypatch):
    # A bias of b on one of two halves of the vocabulary moves log-probabilities by at most b, by about half of it.
    model = make_model(small_config("phi", num_key_value_heads=4), torch.float32)
    with torch.no_grad():
        model.lm_head.bias.zero_()[:20] = bias
    monkeypatch.setattr("minrl.models.scoring.output_head", lambda model: Head(model.lm_head.weight))
    monkeypatch.setattr("minrl.models.check.output_head", lambda model: Head(model.lm_head.weight))
    if refused:
        with pytest.raises(UserError, match=r"PhiForCausalLM cannot be trained: its last hidden states .* by 0\.0"):
            verify(model)
    else:
        verify(model)


def test_a_gradient_that_is_not_that_of_plain_transformers_refuses(monkeypatch):
    model = make_model(SHAPES["qwen3"], torch.float32)
    monkeypatch.setattr("minrl.models.check.score", lambda *a, **k: tuple(x * 1.0 for x in halved(score(*a, **k))))
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


def halved(values):
    """The same values with half of their gradients."""
    return tuple((value + value.detach()) / 2 for value in values)


def test_a_prompts_tokens_are_taken_from_its_first_row(make_rollout):
    # Prompts [1, 2] and [7] with suffixes [3, 4], [] and [8]; the last token of each rollout is a label only.
    rollouts = [make_rollout([1, 2], [3, 4, 9]), make_rollout([1, 2], [9]), make_rollout([7], [8, 9], group=1)]
    stream = pack(rollouts, [0, 1, 2])
    assert stream.input_ids.tolist() == [1, 2, 3, 4, 7, 8]
    rows, places = padded_rows(stream)
    assert [row[:length] for row, length in zip(rows.tolist(), (4, 2, 2), strict=True)] == [
        [1, 2, 3, 4],
        [1, 2],
        [7, 8],
    ]
    assert places.tolist() == [0, 1, 2, 3, 8, 9]
    assert row_tokens(stream) == 3 * 4


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
    for new, old in zip(actual[:3], expected[:3], strict=True):
        torch.testing.assert_close(new, old, atol=0, rtol=0)
    torch.testing.assert_close(actual[3], expected[3], atol=1e-2, rtol=1e-2)  # summed in the weight's own float32
    # And both gradients are those without autocast, to the 8 bits of bfloat16.
    for new, plain in zip(actual[2:], gradients(hidden, weight, autocast=False)[2:], strict=True):
        largest = plain.abs().max()
        torch.testing.assert_close(new / largest, plain / largest, atol=0.05, rtol=0)
