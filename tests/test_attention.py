"""Attention inside a packed stream equals plain attention over what each token may see, gradients too."""

from inspect import signature
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from minrl.batch import pack
from minrl.dataflow import UserError
from minrl.models import attention, attention_cpu
from minrl.models.attention import StreamAttention, packed_attention, takes_flash
from tests.conftest import rollout_of

HEADS, KV_HEADS, WIDTH = 4, 2, 8

GROUPS = {  # (prompt, completions' lengths): ragged groups, a single token, a prompt of one token, one without company
    "ragged": [(5, [6, 1, 3]), (2, [2, 4]), (1, [9])],
    "no suffix at all": [(3, [1, 1])],  # a completion of one token is a label only
    "many lengths": [(7, [1, 40, 2, 38, 11, 12]), (30, [3, 25]), (6, [40])],
}
WAYS = {
    "short rows": StreamAttention,
    "long rows": lambda stream: StreamAttention(stream, longest=0),
    "both": lambda stream: StreamAttention(stream, longest=12),
}


def stream_of(groups):
    rollouts = [
        rollout_of([10 * group + n for n in range(prompt)], [7] * length, group=group)
        for group, (prompt, lengths) in enumerate(groups)
        for length in lengths
    ]
    return pack(rollouts, range(len(rollouts)))


def visible(stream, window):
    """(T, T): which token sees which, from the words of the docstring: its own run and its prompt, not ahead."""
    tokens = len(stream.input_ids)
    run, prompt = [0] * tokens, [0] * tokens
    for start, length, prompt_start, prompt_length in stream.segments:
        for token in range(start, start + length):
            run[token], prompt[token] = start, prompt_start if prompt_length else start
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


def flash(*args, **named):
    """What torch's `varlen_attn` computes: a query sees what is not ahead of it, counted from its sequence's end."""
    call = signature(varlen_attn).bind(*args, **named).arguments
    query, key, value, starts, key_starts, *longest = list(call.values())[:7]
    back, ahead_of = call["window_size"]
    assert ahead_of == 0 and call["enable_gqa"] and starts.dtype == key_starts.dtype == torch.int32
    assert [starts.diff().max(), key_starts.diff().max()] == longest
    outputs = []
    for (a, b), (c, d) in zip(pairwise(starts.tolist()), pairwise(key_starts.tolist()), strict=True):
        ahead = torch.arange(d - c - (b - a), d - c)[:, None] - torch.arange(d - c)
        seen = (ahead >= 0) & (ahead <= (back if back >= 0 else d))
        one = [tensor[first:last].transpose(0, 1)[None] for tensor, first, last in ((query, a, b), (key, c, d))]
        outputs.append(plain(*one, value[c:d].transpose(0, 1)[None], seen, call["scale"])[0])
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("way", "groups", "window"),
    [
        *((way, "many lengths", None) for way in (*WAYS, "a row in each part", "flash")),
        *((way, groups, 3) for way in ("both", "flash") for groups in GROUPS),
    ],
)
def test_attention_and_gradients_are_the_plain_ones(way, groups, window, monkeypatch):
    if way == "flash":
        monkeypatch.setattr(attention, "takes_flash", lambda query: True)
        monkeypatch.setattr(attention, "varlen_attn", flash)
    if way == "a row in each part":
        monkeypatch.setattr(attention_cpu, "LARGEST", 1)
    stream, attend = stream_of(GROUPS[groups]), WAYS.get(way, StreamAttention)
    tensors = inputs(len(stream.input_ids), torch.float64)
    expected = with_gradients(lambda *x: plain(*x, visible(stream, window), 0.3), tensors)
    actual = with_gradients(lambda *x: attend(stream)(*x, 0.3, window), tensors)
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("way", "dtype", "bound"), [("short rows", torch.float32, 2e-5), ("long rows", torch.bfloat16, 1e-2)]
)
def test_scores_in_lower_precision_are_not_rounded(way, dtype, bound):
    # Scores up to 60: in bfloat16 they would be rounded by 0.25, and a share by a fifth.
    stream = stream_of([(20, [60] * 4)])
    tensors = inputs(len(stream.input_ids), dtype, size=3.0)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = with_gradients(lambda *x: plain(*x, visible(stream, None), 0.35), exact)

    def attend(*given):
        with torch.autocast("cpu", torch.bfloat16):  # which rounds neither what is attended nor gradients
            return WAYS[way](stream)(*given, 0.35, None)

    actual = with_gradients(attend, tensors)
    for new, old in zip(actual, expected, strict=True):
        assert new.dtype == dtype and (new.double() - old).norm() < bound * old.norm()


@pytest.mark.parametrize("way", ["short rows", "long rows"])
def test_large_scores_leave_no_trace_in_padding(way):
    # Scores of about 300: their exponentials overflow float32, also those of the queries that pad a row.
    stream = stream_of(GROUPS["many lengths"])
    tensors = inputs(len(stream.input_ids), torch.float32, size=15.0)
    for tensor in with_gradients(lambda *x: WAYS[way](stream)(*x, 0.5, None), tensors):
        assert tensor.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "width", "version", "takes"),
    [
        (torch.bfloat16, 128, (9, 0), True),
        (torch.float32, 64, (9, 0), False),
        (torch.bfloat16, 36, (9, 0), False),
        (torch.bfloat16, 64, (7, 5), False),
    ],
)
def test_what_flash_attention_takes(dtype, width, version, takes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: version)
    query = SimpleNamespace(dtype=dtype, shape=(3, 2, width), device=torch.device("cuda"))
    assert takes_flash(query) is takes and not takes_flash(torch.empty(3, 2, width, dtype=dtype))


def test_a_layer_that_caps_its_logits_is_refused():
    stream = stream_of(GROUPS["ragged"])
    settings = {"stream": StreamAttention(stream), "softcap": 50.0}
    with pytest.raises(UserError, match="caps its attention logits"):
        packed_attention(None, *inputs(len(stream.input_ids), torch.float32), None, 0.3, None, **settings)
