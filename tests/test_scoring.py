"""The packed, chunked forward pass equals a plain one, rollout by rollout, gradients too."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    PhimoeConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from minrl.batch import micro_batches, pack
from minrl.models import (
    loading,  # noqa: F401 - registers packed attention with transformers
    scoring,
)
from minrl.models import logprobs as output_head
from minrl.models.cpu import few_sizes
from minrl.models.logprobs import Head, chunked_logprobs
from minrl.models.scoring import Method, padded_rows, row_batches, row_tokens, score, set_method
from minrl.run.verify import Probe, verify
from minrl.types import UserError

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
SHAPES = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True),
    "mistral": MistralConfig(**SMALL, sliding_window=3),
    "qwen2-sliding": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "gemma": GemmaConfig(**SMALL, head_dim=8),
    "gpt-neox": GPTNeoXConfig(**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}),
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


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_scores_are_those_of_a_plain_forward_pass(shape, rollouts, temperature):
    model = make_model(SHAPES[shape])
    expected = plain(model, rollouts, temperature)
    assert expected[0].std() > 0.5  # otherwise any two numbers would agree
    torch.testing.assert_close(packed(model, rollouts, temperature, 10_000), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
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


def test_sizes_are_few_and_little_larger():
    sizes = {few_sizes(count, 16) for count in range(2048, 4097)}
    assert sizes == set(range(2048, 4097, 128))
    assert all(count <= few_sizes(count, 16) < 1.0625 * count for count in range(1, 10_000))
    assert (scoring.filled_size(2049, torch.device("cpu")), scoring.filled_size(2049, torch.device("cuda"))) == (
        2176,
        2049,
    )
    assert [few_sizes(count, 2) for count in (1, 2, 3, 4, 5, 7, 9, 13)] == [1, 2, 3, 4, 6, 8, 12, 16]


@pytest.mark.parametrize("shape", ["qwen3", "mistral"])
def test_packed_gradients_are_those_of_a_plain_forward_pass(shape, rollouts):
    model = make_model(SHAPES[shape])
    weights = torch.randn(sum(r.num_sampled for r in rollouts), dtype=torch.float64)
    gradients = []
    for scored in (plain, lambda *args: packed(*args, 10_000)):
        model.zero_grad()
        logprobs, entropy = scored(model, rollouts, 0.7)
        ((logprobs * weights).sum() + 0.3 * (entropy * weights).sum()).backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    for name, expected in gradients[0].items():
        # transformers' norms compute in float32 whatever the weights are, so float64 agrees to float32's precision.
        largest = float(expected.abs().max())
        torch.testing.assert_close(gradients[1][name] / largest, expected / largest, atol=1e-5, rtol=0)


def test_a_model_keeps_its_own_attention_outside(rollouts):
    model = make_model(SHAPES["qwen3"])
    before = model(torch.tensor([rollouts[0].ids])).logits
    score(model, pack(rollouts, range(len(rollouts))), 1.0)
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(model(torch.tensor([rollouts[0].ids])).logits, before, atol=0, rtol=0)


@pytest.fixture
def head():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, generator=generator)
    weight = torch.randn(11, 5, dtype=torch.float64, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.tensor([0, 3, 10, 3, 5, 6, 1])


@pytest.mark.parametrize("kept_logits", [0, 2**24])  # computed again in the backward pass, or kept
@pytest.mark.parametrize("chunk_logits", [1, 22, 33, 2**24])  # 1, 2, 3 and all 7 rows of 11 logits
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_chunked_logprobs_are_log_softmax_and_entropy(monkeypatch, head, kept_logits, chunk_logits, temperature):
    monkeypatch.setitem(output_head.CHUNK_LOGITS, "cpu", chunk_logits)
    monkeypatch.setattr(output_head, "CHUNK_ROWS", 1)
    monkeypatch.setattr(output_head, "KEPT_LOGITS", kept_logits)
    hidden, weight, labels = head
    logp = (hidden @ weight.T / temperature).log_softmax(-1)
    expected = logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(
        chunked_logprobs(hidden, Head(weight), labels, temperature), expected, atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("kept_logits", [0, 2**24])
@pytest.mark.parametrize("chunk_logits", [1, 33, 2**24])
def test_chunked_gradients_are_the_numerical_ones(monkeypatch, head, kept_logits, chunk_logits):
    monkeypatch.setitem(output_head.CHUNK_LOGITS, "cpu", chunk_logits)
    monkeypatch.setattr(output_head, "CHUNK_ROWS", 1)
    monkeypatch.setattr(output_head, "KEPT_LOGITS", kept_logits)
    monkeypatch.setattr(output_head, "BLOCK_ROWS", 2)  # of the smallest chunks
    hidden, weight, labels = head
    assert gradcheck(lambda h, w: chunked_logprobs(h, Head(w), labels, 0.7), (hidden, weight))


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


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("wanted", ["hidden", "weight"])
def test_only_the_gradient_that_is_wanted_is_computed(wanted, kept, head, monkeypatch):
    monkeypatch.setattr(output_head, "KEPT_LOGITS", 2**24 if kept else 0)
    both = torch.autograd.grad(chunked_logprobs(head[0], Head(head[1]), head[2], 0.7)[0].square().sum(), head[:2])
    leaves = {
        name: x.detach().requires_grad_(name == wanted) for name, x in zip(("hidden", "weight"), head, strict=False)
    }
    products = []
    monkeypatch.setattr(output_head, "product", lambda x, w, bias=None: products.append(w.shape) or x @ w.T)
    logprobs, _ = chunked_logprobs(leaves["hidden"], Head(leaves["weight"]), head[2], 0.7)
    logprobs.square().sum().backward()
    expected = both[0 if wanted == "hidden" else 1]
    torch.testing.assert_close(leaves[wanted].grad, expected, atol=1e-12, rtol=0)
    assert products.count((5, 11)) == (wanted == "hidden")  # the gradient of the hidden states is a product with W^T


def test_bfloat16_sums_stay_in_float32():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 8, generator=generator).bfloat16()
    weight = torch.randn(5000, 8, generator=generator).bfloat16()
    logprobs, entropy = chunked_logprobs(hidden, Head(weight), torch.tensor([1, 2, 3]), 1.0)
    logp = (hidden @ weight.T).float().log_softmax(-1)  # the products are bfloat16, the sum over 5000 is not
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, logp[[0, 1, 2], [1, 2, 3]], atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, -(logp.exp() * logp).sum(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("chunk_logits", [1, 33, 2**24])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("scale", "cap"), [(1.0, 0.0), (0.3, 0.0), (1.0, 2.0), (0.3, 2.0)])
def test_a_heads_bias_scale_and_cap_shape_its_logits(monkeypatch, head, chunk_logits, temperature, scale, cap):
    monkeypatch.setitem(output_head.CHUNK_LOGITS, "cpu", chunk_logits)
    monkeypatch.setattr(output_head, "CHUNK_ROWS", 1)
    hidden, weight, labels = head
    bias = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def chunked(hidden, weight, bias):
        return chunked_logprobs(hidden, Head(weight, bias, scale, cap), labels, temperature)

    logits = (hidden @ weight.T + bias) * scale
    logits = cap * torch.tanh(logits / cap) if cap else logits
    logp = (logits / temperature).log_softmax(-1)
    expected = logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(chunked(hidden, weight, bias), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(Head(weight, bias, scale, cap).logits(hidden), logits, atol=1e-12, rtol=0)
    assert gradcheck(chunked, (hidden, weight, bias))


# Each of these changes its logits after the head, its attention scores, or its windows, in a way of its own.
OWN_WAYS = {
    "capped logits": (
        Gemma2Config(**SMALL, head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=2.0),
        True,
    ),
    "capped attention": (
        Gemma2Config(**SMALL, head_dim=8, attn_logit_softcapping=2.0, final_logit_softcapping=None),
        False,
    ),
    "scaled logits": (GraniteConfig(**SMALL, logits_scaling=0.5), True),
    "biased head": (PhiConfig(**{**SMALL, "num_key_value_heads": 4}), True),
    # Their windows are in the mask alone, and wider than a probe would be.
    "masked window": (PhimoeConfig(**SMALL, num_local_experts=4, sliding_window=40), False),
    "masked window of some layers": (
        Qwen2MoeConfig(
            **SMALL,
            num_experts=4,
            moe_intermediate_size=16,
            use_sliding_window=True,
            sliding_window=40,
            max_window_layers=2,
        ),
        False,
    ),
}


@pytest.mark.parametrize("shape", OWN_WAYS)
def test_a_model_that_cannot_be_packed_is_computed_in_rows(shape, rollouts):
    config, packed = OWN_WAYS[shape]
    model = make_model(config, torch.float32)
    if getattr(model.lm_head, "bias", None) is not None:
        torch.nn.init.normal_(model.lm_head.bias)
    found = verify(model)
    assert found.method.packed is packed
    assert bool(found.why_not_packed) is not packed
    model.set_attn_implementation("eager")
    expected = plain(model, rollouts, 0.6)
    assert expected[0].std() > 0.5
    stream = pack(rollouts, range(len(rollouts)))
    logprobs, entropies = (values[stream.token_index.argsort()] for values in score(model, stream, 0.6))
    torch.testing.assert_close((logprobs, entropies), expected, atol=1e-4, rtol=0)


def test_experts_of_a_width_that_the_grouped_product_does_not_take_are_computed_one_by_one(rollouts):
    config = Qwen3MoeConfig(**SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=30)
    model = make_model(config, torch.float32)
    verify(model)
    stream = pack(rollouts, range(len(rollouts)))
    logprobs = score(model, stream, 1.0)[0][stream.token_index.argsort()]
    torch.testing.assert_close(logprobs, plain(model, rollouts, 1.0)[0], atol=1e-4, rtol=0)


def test_the_probe_holds_the_tokens_of_end_and_padding():
    model = make_model(LlamaConfig(**SMALL, eos_token_id=2, bos_token_id=1), torch.float32)
    rollouts = Probe(model).rollouts
    assert {0, 1, 2} <= set(rollouts[0].ids[1:-1])
    assert len({tuple(rollout.ids) for rollout in rollouts}) == len(rollouts)


@pytest.mark.parametrize(("bias", "refused"), [(0.0004, False), (0.1, True)])
def test_a_model_is_refused_from_a_thousandth_of_a_nat_on(bias, refused, monkeypatch):
    # A bias of b on one of two halves of the vocabulary moves log-probabilities by at most b, by about half of it.
    model = make_model(OWN_WAYS["biased head"][0], torch.float32)
    with torch.no_grad():
        model.lm_head.bias.zero_()[:20] = bias
    monkeypatch.setattr("minrl.models.scoring.output_head", lambda model: Head(model.lm_head.weight))
    monkeypatch.setattr("minrl.run.verify.output_head", lambda model: Head(model.lm_head.weight))
    if refused:
        with pytest.raises(UserError, match=r"PhiForCausalLM cannot be trained: its logits are not .* head \(0\.0"):
            verify(model)
    else:
        verify(model)


def test_whatever_a_forward_pass_raises_is_one_line(monkeypatch):
    model = make_model(SHAPES["qwen3"], torch.float32)

    def fail(*args, **kwargs):
        raise RuntimeError("shape of a kind\nand more")

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(UserError) as refusal:
        verify(model)
    assert str(refusal.value) == (
        "Qwen3ForCausalLM cannot be trained: transformers' own forward pass fails: shape of a kind; "
        "choose another model"
    )


def test_a_gradient_that_is_not_that_of_plain_transformers_refuses(monkeypatch):
    model = make_model(SHAPES["qwen3"], torch.float32)
    monkeypatch.setattr("minrl.run.verify.score", lambda *a, **k: tuple(x * 1.0 for x in halved(score(*a, **k))))
    with pytest.raises(UserError, match=r"the gradient of .*q_proj.weight differs by 0.5 of"):
        verify(model)


def halved(values):
    """The same values with half of their gradients."""
    return tuple((value + value.detach()) / 2 for value in values)


def test_nothing_is_cached_while_a_stream_is_scored(rollouts):
    model, asked = make_model(SHAPES["qwen3"], torch.float32), []
    handle = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: asked.append(kwargs["use_cache"]), with_kwargs=True
    )
    score(model, pack(rollouts, [0]), 1.0)
    verify(model)
    handle.remove()
    assert asked and not any(asked)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("shape", ["qwen3", "mistral", "gpt-neox"])
def test_padded_rows_give_the_scores_and_gradients_of_a_plain_forward_pass(shape, rollouts, temperature):
    model = make_model(SHAPES[shape])
    set_method(model, Method(packed=False))
    stream = pack(rollouts, range(len(rollouts)))
    weights = torch.randn(sum(r.num_sampled for r in rollouts), dtype=torch.float64)
    gradients = []
    for values in (
        plain(model, rollouts, temperature),
        [value[stream.token_index.argsort()] for value in score(model, stream, temperature)],
    ):
        model.zero_grad()
        (values[0] @ weights + 0.3 * values[1] @ weights).backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    for name, expected in gradients[0].items():
        largest = float(expected.abs().max())
        torch.testing.assert_close(gradients[1][name] / largest, expected / largest, atol=1e-5, rtol=0)


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


def test_rows_of_about_the_same_length_are_computed_together(make_rollout):
    rollouts = [make_rollout([1], [2] * (length - 1)) for length in (3, 9, 4, 10, 2)]
    assert row_batches(rollouts, range(5), 20) == [[3, 1], [2, 0, 4]]  # 2 rows of 10, 3 of 4
    assert row_batches(rollouts, range(5), 1) == [[3], [1], [2], [0], [4]]
    assert row_batches(rollouts, [4, 0], 6) == [[0, 4]]


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, sliding_window=40),
        Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=40, max_window_layers=1),
        PhimoeConfig(**SMALL, num_local_experts=4, sliding_window=64),  # as long as the context: it never cuts
    ],
    ids=lambda config: config.model_type,
)
def test_a_window_that_is_scored_right_is_not_refused_and_stays_as_it_is(config):
    model = make_model(config, torch.float32)
    before = [vars(holder).get("sliding_window") for holder in (model.config, *model.modules())]
    verify(model)
    assert [vars(holder).get("sliding_window") for holder in (model.config, *model.modules())] == before


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
