"""Attention inside a packed stream equals plain attention over what each token may see, gradients too."""

import pytest
import torch

from minrl import attention
from minrl.attention import JoinedAttention, plan_attention
from minrl.batch import pack
from minrl.padded_attention import PaddedAttention

HEADS, KV_HEADS, WIDTH = 4, 2, 8

# (prompt, completions' lengths): ragged groups, a single token, a prompt of one token, one without company
GROUPS = {
    "ragged": [(5, [6, 1, 3]), (2, [2, 4]), (1, [9])],
    "no suffix at all": [(3, [1, 1])],  # a completion of one token is a label only
    "many lengths": [(7, [1, 40, 2, 38, 11, 12]), (30, [3, 25]), (6, [40])],
    "alike": [(4, [5, 5]), (4, [5, 5])],
}


@pytest.fixture
def stream_of(make_rollout):
    def make(groups):
        rollouts = []
        for group, (prompt, lengths) in enumerate(groups):
            ids = [10 * group + n for n in range(prompt)]
            rollouts += [make_rollout(ids, [7] * length, group=group) for length in lengths]
        return pack(rollouts, range(len(rollouts)))

    return make


def visible(stream, window):
    """(T, T): which token sees which, from the words of the docstring: its own run and its prompt, not ahead."""
    tokens = len(stream.input_ids)
    run, prompt = [0] * tokens, [0] * tokens
    for row, (index, length) in enumerate(
        zip(stream.prefix_index.tolist(), stream.prefix_lengths.tolist(), strict=True)
    ):
        for token in index[:length]:
            run[token] = prompt[token] = row
    suffixes = zip(stream.suffix_index.tolist(), stream.suffix_lengths.tolist(), stream.prefix_of.tolist(), strict=True)
    for row, (index, length, of) in enumerate(suffixes):
        for token in index[:length]:
            run[token], prompt[token] = 1000 + row, of
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    positions = stream.positions.tolist()
    for query in range(tokens):
        for key in range(tokens):
            ahead = positions[query] - positions[key]
            known = run[key] in (run[query], prompt[query])
            seen[query, key] = known and ahead >= 0 and (window is None or ahead < window)
    return seen


def plain(query, key, value, seen, scale):
    """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C), by the formula."""
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (key, value))
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def inputs(tokens, dtype, size=1.0):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, HEADS, tokens, WIDTH), (1, KV_HEADS, tokens, WIDTH), (1, KV_HEADS, tokens, WIDTH)]
    return [
        (size * torch.randn(*s, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_() for s in shapes
    ]


def with_gradients(attend, tensors):
    output = attend(*tensors)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [output, *torch.autograd.grad((output * weights.to(output.dtype)).sum(), tensors)]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("way", [JoinedAttention, PaddedAttention])
def test_attention_and_gradients_are_the_plain_ones(way, groups, window, stream_of):
    stream = stream_of(GROUPS[groups])
    tensors = inputs(len(stream.input_ids), torch.float64)
    expected = with_gradients(lambda *x: plain(*x, visible(stream, window), 0.3), tensors)
    actual = with_gradients(lambda *x: way(stream)(*x, 0.3, window), tensors)
    for new, old in zip(actual, expected, strict=True):
        torch.testing.assert_close(new, old, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 5e-2)])
def test_attention_in_lower_precision(dtype, bound, stream_of):
    stream = stream_of(GROUPS["many lengths"])
    tensors = inputs(len(stream.input_ids), dtype)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = with_gradients(lambda *x: plain(*x, visible(stream, None), 0.3), exact)
    for new, old in zip(
        with_gradients(lambda *x: JoinedAttention(stream)(*x, 0.3, None), tensors), expected, strict=True
    ):
        assert new.dtype == dtype
        torch.testing.assert_close(new.double() / old.abs().max(), old / old.abs().max(), atol=bound, rtol=0)


def test_large_scores_leave_no_trace_in_padding(stream_of):
    # Scores of about 300: their exponentials overflow float32, also those of the queries that pad a row.
    stream = stream_of(GROUPS["many lengths"])
    tensors = inputs(len(stream.input_ids), torch.float32, size=15.0)
    for tensor in with_gradients(lambda *x: JoinedAttention(stream)(*x, 0.5, None), tensors):
        assert tensor.isfinite().all()


def test_rows_of_a_part_are_of_about_the_same_length(stream_of, monkeypatch):
    monkeypatch.setattr(attention, "WORTH_SLOTS", 0)
    stream = stream_of(GROUPS["many lengths"])
    for part in JoinedAttention(stream).parts(None):
        lengths = torch.bincount(part.slots // part.queries.shape[1])
        assert lengths.min() >= attention.SHORTEST * lengths.max()
    covered = torch.cat([part.tokens for part in JoinedAttention(stream).parts(None) if part.own])
    assert sorted(covered.tolist()) == list(range(len(stream.input_ids)))


def test_a_cpu_attends_by_parts(stream_of):
    assert isinstance(plan_attention(stream_of(GROUPS["alike"])), JoinedAttention)
