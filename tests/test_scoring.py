"""The packed, chunked forward pass equals a plain one, rollout by rollout, gradients too."""

import pytest
import torch
from torch.autograd import gradcheck
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from minrl import head as output_head
from minrl import scoring
from minrl.batch import micro_batches, pack
from minrl.head import chunked_logprobs
from minrl.scoring import score

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


@pytest.mark.parametrize("budget", [1, 12, 10_000])
def test_how_rollouts_are_cut_into_streams_changes_nothing(rollouts, budget):
    model = make_model(SHAPES["qwen3"])
    torch.testing.assert_close(packed(model, rollouts, 1.0, budget), plain(model, rollouts, 1.0), atol=1e-6, rtol=0)


def test_packed_scores_in_float32(rollouts):
    model = make_model(SHAPES["qwen3"], torch.float32)
    torch.testing.assert_close(packed(model, rollouts, 0.8, 10_000), plain(model, rollouts, 0.8), atol=1e-5, rtol=0)


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
    torch.testing.assert_close(chunked_logprobs(hidden, weight, labels, temperature), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kept_logits", [0, 2**24])
@pytest.mark.parametrize("chunk_logits", [1, 33, 2**24])
def test_chunked_gradients_are_the_numerical_ones(monkeypatch, head, kept_logits, chunk_logits):
    monkeypatch.setitem(output_head.CHUNK_LOGITS, "cpu", chunk_logits)
    monkeypatch.setattr(output_head, "CHUNK_ROWS", 1)
    monkeypatch.setattr(output_head, "KEPT_LOGITS", kept_logits)
    hidden, weight, labels = head
    assert gradcheck(lambda h, w: chunked_logprobs(h, w, labels, 0.7), (hidden, weight))


def test_entropy_by_hand():
    # Logits ln 3 and 0 have probabilities 3/4 and 1/4; at temperature 1/2 they double: 9/10 and 1/10.
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[3.0], [1.0]]).log()
    for temperature, p in ((1.0, 0.75), (0.5, 0.9)):
        logprob, entropy = chunked_logprobs(hidden, weight, torch.tensor([0]), temperature)
        probabilities = torch.tensor([p, 1 - p])
        torch.testing.assert_close(logprob, probabilities[:1].log(), atol=1e-6, rtol=0)
        torch.testing.assert_close(entropy, -(probabilities * probabilities.log()).sum()[None], atol=1e-6, rtol=0)


def test_bfloat16_sums_stay_in_float32():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 8, generator=generator).bfloat16()
    weight = torch.randn(5000, 8, generator=generator).bfloat16()
    logprobs, entropy = chunked_logprobs(hidden, weight, torch.tensor([1, 2, 3]), 1.0)
    logp = (hidden @ weight.T).float().log_softmax(-1)  # the products are bfloat16, the sum over 5000 is not
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, logp[[0, 1, 2], [1, 2, 3]], atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, -(logp.exp() * logp).sum(-1), atol=1e-4, rtol=0)


REFUSED = {
    # Each of these changes its logits after the head, or its attention scores, in a way that packing leaves out.
    "capped logits": Gemma2Config(**SMALL, head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=2.0),
    "capped attention": Gemma2Config(**SMALL, head_dim=8, attn_logit_softcapping=2.0, final_logit_softcapping=None),
    "scaled logits": GraniteConfig(**SMALL, logits_scaling=8.0),
    "biased head": PhiConfig(**{**SMALL, "num_key_value_heads": 4}),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_a_model_that_cannot_be_scored_right_is_refused(shape):
    model = make_model(REFUSED[shape], torch.float32)
    if getattr(model.lm_head, "bias", None) is not None:
        torch.nn.init.normal_(model.lm_head.bias)
    with pytest.raises(ValueError, match="cannot be trained"):
        scoring.verify_scoring(model)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_that_is_scored_right_is_not_refused(shape):
    scoring.verify_scoring(make_model(SHAPES[shape], torch.float32))


@pytest.mark.parametrize("kept", [True, False])
def test_autocast_is_the_heads_precision_forward_and_backward(kept, monkeypatch):
    monkeypatch.setattr("minrl.head.KEPT_LOGITS", 10**9 if kept else 0)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 8, generator=generator), torch.randn(300, 8, generator=generator)
    labels = torch.tensor([1, 2, 3, 4, 5])

    def gradients(hidden, weight, autocast):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logprobs, entropy = chunked_logprobs(*leaves, labels, 1.3)
        (logprobs.sum() + entropy.sum()).backward()
        return logprobs, entropy, *(leaf.grad.float() for leaf in leaves)

    expected = gradients(hidden.bfloat16(), weight.bfloat16(), autocast=False)
    actual = gradients(hidden, weight, autocast=True)
    for new, old in zip(actual[:3], expected[:3], strict=True):
        torch.testing.assert_close(new, old, atol=0, rtol=0)
    torch.testing.assert_close(actual[3], expected[3], atol=1e-2, rtol=1e-2)  # summed in the weight's own float32
