"""Attention inside a packed stream equals plain attention over what each token may see, gradients too."""

from itertools import pairwise

import pytest
import torch

from minrl.batch import pack
from minrl.models import rectangle_attention, short_attention, varlen_attention
from minrl.models.attention import CardAttention, JoinedAttention, packed_attention, plan_attention
from minrl.models.padded_attention import PaddedAttention
from minrl.types import UserError

HEADS, KV_HEADS, WIDTH = 4, 2, 8

# (prompt, completions' lengths): ragged groups, a single token, a prompt of one token, one without company
GROUPS = {
    "ragged": [(5, [6, 1, 3]), (2, [2, 4]), (1, [9])],
    "no suffix at all": [(3, [1, 1])],  # a completion of one token is a label only
    "many lengths": [(7, [1, 40, 2, 38, 11, 12]), (30, [3, 25]), (6, [40])],
    "alike": [(4, [5, 5]), (4, [5, 5])],
}


def card(stream):
    """The attention of a CUDA card; its kernel is replaced by `flash_on_cpu`."""
    return CardAttention(stream)


def planned(longest):
    """The attention of a CPU with short rows of up to so many keys."""

    def way(stream):
        return JoinedAttention(lambda window: rectangle_attention.plan(stream, window, longest))

    return way


SHARED, SOME_SHORT = planned(0), planned(12)


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


def attended(query, key, value, seen, scale):
    """(Lq, H, C), (Lk, K, C) twice, (Lq, Lk) -> probabilities (H, Lq, Lk) and normalizers (H, Lq), by the formula."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = (torch.einsum("qhc,khc->hqk", query, key) * scale).masked_fill(~seen, -torch.inf)
    return scores, scores.logsumexp(-1)


def flash_forward(query, key, value, *settings, scale, **_):
    """What torch's kernel for runs of different lengths computes, run by run."""
    starts, key_starts, longest, key_longest, _dropout, causal, _debug = settings
    assert all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    assert starts.dtype == key_starts.dtype == torch.int32
    assert (starts.diff().max(), key_starts.diff().max()) == (longest, key_longest)
    assert (starts[-1], key_starts[-1]) == (len(query), len(key))
    outputs, normalizers = [], []
    for q, k, v in runs_of(starts, key_starts, query, key, value):
        scores, normalizer = attended(q, k, v, seen_by(q, k, causal), scale)
        repeated = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        outputs.append(torch.einsum("hqk,khc->qhc", (scores - normalizer[..., None]).exp(), repeated))
        normalizers.append(normalizer)
    empty = query.new_empty(0)
    return torch.cat(outputs), torch.cat(normalizers, dim=1), torch.zeros(2, dtype=torch.uint64), empty, empty


def flash_backward(grad, query, key, value, out, *settings, scale, **_):
    """Its gradients: those of softmax's outputs under the normalizer that is given."""
    normalizer, starts, key_starts, _longest, _key_longest, _dropout, causal, *_random = settings
    assert normalizer.is_contiguous() and normalizer.shape == (
        query.shape[1],
        len(query),
    )  # the kernel reads its memory
    assert all(tensor.stride(-1) == 1 for tensor in (grad, query, key, value, out))
    assert grad.dtype == query.dtype == key.dtype == value.dtype == out.dtype
    grads = [], [], []
    columns = [normalizer[:, a:b] for a, b in pairwise(starts.tolist())]
    parts = runs_of(starts, key_starts, query, key, value)
    outs = zip(grad.split(starts.diff().tolist()), out.split(starts.diff().tolist()), strict=True)
    for (q, k, v), (g, o), column in zip(parts, outs, columns, strict=True):
        scores, _ = attended(q, k, v, seen_by(q, k, causal), scale)
        p = (scores - column[..., None]).exp()
        keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        ds = p * (torch.einsum("qhc,khc->hqk", g, values) - (g * o).sum(-1).T[..., None]) * scale
        shared = (len(k), k.shape[1], -1, k.shape[2])
        grads[0].append(torch.einsum("hqk,khc->qhc", ds, keys))
        grads[1].append(torch.einsum("hqk,qhc->khc", ds, q).view(shared).sum(2))
        grads[2].append(torch.einsum("hqk,qhc->khc", p, g).view(shared).sum(2))
    return tuple(map(torch.cat, grads))


def runs_of(starts, key_starts, query, key, value):
    bounds = zip(pairwise(starts.tolist()), pairwise(key_starts.tolist()), strict=True)
    return [(query[a:b], key[c:d], value[c:d]) for (a, b), (c, d) in bounds]


def seen_by(query, key, causal):
    everything = torch.ones(len(query), len(key), dtype=torch.bool)
    return everything.tril() if causal else everything


@pytest.fixture
def flash_on_cpu(monkeypatch):
    """torch's kernels for runs on a card, by the formula on the CPU, called through torch's own signature of them."""
    monkeypatch.setattr(varlen_attention, "takes", lambda query, window: window is None)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", flash_forward, "CPU")
        library.impl("_flash_attention_backward", flash_backward, "CPU")
        yield


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("way", [plan_attention, SHARED, SOME_SHORT, PaddedAttention, card])
@pytest.mark.usefixtures("flash_on_cpu")
def test_attention_and_gradients_are_the_plain_ones(way, groups, window, stream_of):
    stream = stream_of(GROUPS[groups])
    tensors = inputs(len(stream.input_ids), torch.float64)
    expected = with_gradients(lambda *x: plain(*x, visible(stream, window), 0.3), tensors)
    actual = with_gradients(lambda *x: way(stream)(*x, 0.3, window), tensors)
    for new, old in zip(actual, expected, strict=True):
        torch.testing.assert_close(new, old, atol=1e-9, rtol=0)


@pytest.mark.parametrize("way", [plan_attention, SHARED])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 5e-2)])
def test_attention_in_lower_precision(dtype, bound, way, stream_of):
    stream = stream_of(GROUPS["many lengths"])
    tensors = inputs(len(stream.input_ids), dtype)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = with_gradients(lambda *x: plain(*x, visible(stream, None), 0.3), exact)
    for new, old in zip(with_gradients(lambda *x: way(stream)(*x, 0.3, None), tensors), expected, strict=True):
        assert new.dtype == dtype
        torch.testing.assert_close(new.double() / old.abs().max(), old / old.abs().max(), atol=bound, rtol=0)


@pytest.mark.parametrize("way", [plan_attention, SHARED])
def test_large_scores_leave_no_trace_in_padding(way, stream_of):
    # Scores of about 300: their exponentials overflow float32, also those of the queries that pad a row.
    stream = stream_of(GROUPS["many lengths"])
    tensors = inputs(len(stream.input_ids), torch.float32, size=15.0)
    for tensor in with_gradients(lambda *x: way(stream)(*x, 0.5, None), tensors):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("longest", [0, 12, 224])
def test_rows_of_a_part_are_of_about_the_same_length(longest, stream_of, monkeypatch):
    monkeypatch.setattr(rectangle_attention, "WORTH_SLOTS", 0)
    stream = stream_of(GROUPS["many lengths"])
    parts = rectangle_attention.plan(stream, None, longest)
    for part in parts:
        lengths = torch.bincount(part.slots // part.queries.shape[1])
        assert lengths.min() >= rectangle_attention.SHORTEST * lengths.max()
    covered = torch.cat([part.tokens for part in parts if part.own])
    assert sorted(covered.tolist()) == list(range(len(stream.input_ids)))


def test_short_rows_are_divided_where_their_scores_are_many(stream_of, monkeypatch):
    monkeypatch.setattr(short_attention, "LARGEST", 3 * 4 * 8)  # scores of three rows
    stream = stream_of([(4, [5] * 8)])  # eight suffixes of four tokens, each behind a prompt of four
    parts = rectangle_attention.plan(stream, None)
    assert [len(part.queries) for part in parts] == [1, 3, 3, 2]
    tensors = inputs(len(stream.input_ids), torch.float64)
    expected = with_gradients(lambda *x: plain(*x, visible(stream, None), 0.3), tensors)
    for new, old in zip(
        with_gradients(lambda *x: plan_attention(stream)(*x, 0.3, None), tensors), expected, strict=True
    ):
        torch.testing.assert_close(new, old, atol=1e-9, rtol=0)


def test_a_prompt_much_longer_than_its_suffixes_is_shared(stream_of):
    stream = stream_of([(20, [6] * 3), (21, [6] * 3)])  # suffixes of five tokens: four times five is twenty
    short = [part for part in rectangle_attention.plan(stream, None) if isinstance(part, short_attention.ShortRows)]
    assert sorted(tuple(part.keys.shape) for part in short) == [(2, 21), (3, 25)]


def test_keys_of_a_part_are_bounded(stream_of, monkeypatch):
    monkeypatch.setattr(short_attention, "MOST_KEYS", 20)
    parts = rectangle_attention.plan(stream_of([(4, [2] * 9)]), None)  # suffixes of one token, each behind four
    assert [tuple(part.keys.shape) for part in parts] == [(1, 4), (4, 5), (4, 5), (1, 5)]


def test_gradients_may_be_taken_under_autocast(stream_of):
    stream = stream_of(GROUPS["ragged"])
    tensors = inputs(len(stream.input_ids), torch.float32)
    expected = with_gradients(lambda *x: plan_attention(stream)(*x, 0.3, None), tensors)
    with torch.autocast("cpu", torch.bfloat16):
        actual = with_gradients(lambda *x: plan_attention(stream)(*x, 0.3, None), tensors)
    assert all(map(torch.equal, actual, expected))


def test_scores_in_lower_precision_are_not_rounded(stream_of):
    # Scores up to 60: in bfloat16 they would be rounded by 0.25, and a share by a fifth.
    stream = stream_of([(20, [60] * 4)])
    tensors = inputs(len(stream.input_ids), torch.bfloat16, size=3.0)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = with_gradients(lambda *x: plain(*x, visible(stream, None), 0.35), exact)
    actual = with_gradients(lambda *x: plan_attention(stream)(*x, 0.35, None), tensors)
    assert all(new.dtype == torch.bfloat16 for new in actual)
    for new, old in zip(actual, expected, strict=True):
        assert (new.double() - old).norm() < 6e-3 * old.norm()


def test_autocast_does_not_round_what_is_attended(stream_of):
    stream = stream_of(GROUPS["ragged"])
    tensors = inputs(len(stream.input_ids), torch.float32)
    expected = plan_attention(stream)(*tensors, 0.3, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(plan_attention(stream)(*tensors, 0.3, None), expected)


def test_a_card_attends_by_runs_without_a_copy_of_what_sees_itself(stream_of):
    stream = stream_of(GROUPS["ragged"])
    own, across = varlen_attention.plan(stream)
    # Prompts of 5, 2 and 1 tokens, each followed by what its completions feed: all but their last tokens.
    assert own.starts.diff().tolist() == [5, 5, 2, 2, 1, 3, 1, 8]
    assert own.tokens == own.key_tokens == slice(None)
    assert (across.starts.diff().tolist(), across.key_starts.diff().tolist()) == ([7, 4, 8], [5, 2, 1])


@pytest.mark.parametrize(
    ("dtype", "width", "window", "capability", "takes"),
    [
        (torch.bfloat16, 128, None, (9, 0), True),
        (torch.float16, 64, None, (8, 0), True),
        (torch.float32, 64, None, (9, 0), False),
        (torch.bfloat16, 64, 4096, (9, 0), False),
        (torch.bfloat16, 36, None, (9, 0), False),
        (torch.bfloat16, 264, None, (9, 0), False),
        (torch.bfloat16, 64, None, (7, 5), False),
    ],
)
def test_what_flash_attention_takes(dtype, width, window, capability, takes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert varlen_attention.takes(torch.empty(1, 2, 3, width, dtype=dtype), window) is takes


def test_a_cpu_attends_by_parts(stream_of):
    assert isinstance(plan_attention(stream_of(GROUPS["alike"])), JoinedAttention)


def test_the_parts_of_a_window_are_planned_once(stream_of):
    stream, asked = stream_of(GROUPS["ragged"]), []
    attention = JoinedAttention(lambda window: asked.append(window) or rectangle_attention.plan(stream, window))
    for window in (None, 3, None, 3):
        attention(*inputs(len(stream.input_ids), torch.float32), 0.3, window)
    assert asked == [None, 3]


def test_a_card_plans_its_padded_rows_once(stream_of, monkeypatch):
    planned, stream = [], stream_of(GROUPS["ragged"])
    monkeypatch.setattr(varlen_attention, "takes", lambda query, window: False)
    monkeypatch.setattr(
        "minrl.models.attention.PaddedAttention", lambda one: planned.append(one) or PaddedAttention(one)
    )
    attention = card(stream)
    for _ in range(2):
        attention(*inputs(len(stream.input_ids), torch.float32), 0.3, None)
    assert len(planned) == 1


def test_mixed_precisions_are_attended_in_the_widest(stream_of):
    stream = stream_of(GROUPS["ragged"])
    query, key, value = inputs(len(stream.input_ids), torch.float32)
    expected = plan_attention(stream)(query, key, value, 0.3, None)
    for mixed in ((query.double(), key, value), (query, key.double(), value), (query, key, value.double())):
        output = plan_attention(stream)(*mixed, 0.3, None)
        assert output.dtype == torch.float64
        torch.testing.assert_close(output.float(), expected, atol=1e-5, rtol=0)


def test_a_layer_attends_with_its_own_scale_or_that_of_its_width(stream_of):
    stream = stream_of(GROUPS["ragged"])
    tensors = inputs(len(stream.input_ids), torch.float64)
    for given, scale in ((0.3, 0.3), (None, WIDTH**-0.5)):
        for window in (None, 3):
            output, weights = packed_attention(
                None, *tensors, None, given, window, stream=plan_attention(stream), softcap=None
            )
            expected = plain(*tensors, visible(stream, window), scale)
            torch.testing.assert_close(output, expected, atol=1e-9, rtol=0)
            assert weights is None


@pytest.mark.parametrize("says", ["the layer", "the call"])
def test_a_layer_that_caps_its_logits_is_refused_in_one_line(says, stream_of):
    stream = stream_of(GROUPS["ragged"])
    layer = torch.nn.Identity()
    layer.attn_logit_softcapping = 50.0 if says == "the layer" else None
    settings = {"stream": plan_attention(stream), "softcap": 50.0 if says == "the call" else None}
    with pytest.raises(UserError, match="caps its attention logits") as refused:
        packed_attention(layer, *inputs(len(stream.input_ids), torch.float32), None, 0.3, None, **settings)
    assert "\n" not in str(refused.value)
