"""The embedded engine: exact, seeded, and blind to what else is in the batch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from minrl.batch import pack
from minrl.dataflow import Request, UserError
from minrl.engines import Sampling
from minrl.engines.decoders import make_decoder
from minrl.engines.torch_engine import TorchEngine, footprint, mix, mix_seed, sample, slices, uniforms
from minrl.models.loading import word_tokenizer
from minrl.models.scoring import score
from minrl.policy import as_policy
from tests.conftest import CPU, improve, small_config
from tests.test_scoring import SHAPES, make_model

PROMPTS = [[5, 6, 7], [9], [8, 7, 6, 5, 10, 11, 12, 5, 6], [5, 6, 7], [13, 14]]
END = 2
NO_STOP = Sampling(1.0, frozenset())


def requests_for(prompts, max_tokens=12, seed=100):
    return [Request(list(prompt), seed + row, max_tokens) for row, prompt in enumerate(prompts)]


def scored(policy, make_rollout, requests, completions, temperature=1.0):
    """The policy's log-probabilities of the completions, by the packed forward pass."""
    pairs = zip(requests, completions, strict=True)
    rollouts = [make_rollout(request.ids, completion.ids) for request, completion in pairs]
    with torch.no_grad():
        return score(policy.model, pack(rollouts, range(len(rollouts))), temperature)[0]


def reported(completions):
    return torch.tensor([value for completion in completions for value in completion.logprobs])


@pytest.fixture
def shaped(processes):
    """A policy of each shape, with weights large enough that tokens differ in probability."""

    def make(shape):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(SHAPES[shape], attn_implementation="sdpa")
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 2:
                    weight.mul_(8)
                elif "bias" in name:
                    weight.normal_()
        return as_policy(model, word_tokenizer([str(n) for n in range(35)]), CPU, processes)

    return make


@pytest.mark.parametrize("shape", SHAPES)
def test_logprobs_are_those_of_the_policys_scoring_forward(shape, shaped, make_rollout):
    policy, requests = shaped(shape), requests_for(PROMPTS)
    completions = TorchEngine(policy).generate(requests, Sampling(0.7, frozenset({END})))
    assert reported(completions).std() > 0.5
    expected = scored(policy, make_rollout, requests, completions, 0.7)
    torch.testing.assert_close(reported(completions), expected, atol=3e-5, rtol=0)


FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 4.0, 8.0, 16.0]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24, **FACTORS}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
ROPES_OF_LENGTH = {
    "longrope": small_config("phi3", original_max_position_embeddings=24, rope_parameters=LONGROPE),
    "dynamic": small_config("llama", max_position_embeddings=24, rope_parameters=DYNAMIC),
}


@pytest.mark.parametrize("rope", ROPES_OF_LENGTH)
def test_rotary_embeddings_that_depend_on_the_length_are_those_of_each_sequence_alone(rope, processes, make_rollout):
    # The first row ends two tokens before the others and waits in the batch for them: up to position 42 of 24.
    model = make_model(ROPES_OF_LENGTH[rope], torch.float32)
    policy = as_policy(model, word_tokenizer([]), CPU, processes)
    requests = [Request(list(range(5, 27)), 1, 2), *(Request([5, 6, 7 + n], n, 21) for n in range(4))]
    completions = TorchEngine(policy).generate(requests, NO_STOP)
    alone = []
    for request, completion in zip(requests, completions, strict=True):
        ids = torch.tensor([request.ids + completion.ids])
        logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        alone.append(logprobs[len(request.ids) - 1 :].detach())
    assert torch.cat(alone).std() > 0.5
    torch.testing.assert_close(reported(completions), torch.cat(alone), atol=1e-4, rtol=0)
    torch.testing.assert_close(scored(policy, make_rollout, requests, completions), torch.cat(alone), atol=1e-4, rtol=0)
    with pytest.raises(UserError, match="may take 25 tokens, the engine takes 24: lower --max-tokens"):
        TorchEngine(policy).generate([Request([5] * 20, 1, 5)], NO_STOP)


def test_a_slice_costs_at_most_the_limit_or_is_a_single_request(policy):
    # Of 3 rows with prompts of 5 and completions of 7 tokens: keys and values of 2 layers, 2 groups and 8 dimensions,
    # 16 times the hidden size of 32 for each token of the prompts, 4 numbers for each of 40 words.
    config = SimpleNamespace(config=small_config("llama"))
    assert footprint(config, 2, 3, 5, 7) == 3 * (2 * (12 * 2 * 2 * 2 * 8 + 5 * 16 * 32) + 4 * 4 * 40)
    assert TorchEngine(policy)._limit == 4 * 2**30 == 8 * TorchEngine(policy, 0.5)._limit
    sizes = [(2, 3), (1, 4), (3, 1), (9, 9), (1, 1), (1, 2)]  # prompts and completions
    requests = [Request([5] * prompt, 0, completion) for prompt, completion in sizes]
    cost = lambda rows, prompt, completion: rows * (prompt + completion)  # noqa: E731
    for limit, lengths in ((12, [2, 1, 1, 2]), (21, [3, 1, 2]), (20, [2, 1, 1, 2])):
        parts = list(slices(requests, cost, limit))
        assert [len(part) for part in parts] == lengths and [one for part in parts for one in part] == requests


def test_completions_that_do_not_fit_the_memory_are_sampled_in_slices(shaped, monkeypatch):
    policy = shaped("qwen3")
    prompts = [PROMPTS[2], PROMPTS[2][::-1], PROMPTS[2][1:]]
    requests = [Request(prompt, 10 * n + m, 6 + n) for n, prompt in enumerate(prompts) for m in range(4)]
    engine = TorchEngine(policy)
    usual, tokens = engine.generate(requests, NO_STOP), 9 + 9 + 8
    assert engine.take_facts() == {"prompt_tokens": 4 * tokens, "prompt_tokens_computed": tokens}
    assert engine.take_facts() == {}
    kind, calls = type(make_decoder(policy.model)), []
    prefill = kind.prefill
    monkeypatch.setattr(kind, "prefill", lambda *given: calls.append(given[1:]) or prefill(*given))
    engine._limit = footprint(policy.model, 4, 6, 9, 8)  # six of the longest rows: a prompt and a half
    completions = engine.generate(requests, NO_STOP)
    assert calls == [([tuple(prompt) for prompt in part], 6 + n) for n, part in ((1, prompts[:2]), (2, prompts[1:]))]
    assert engine.take_facts() == {"prompt_tokens": 4 * tokens, "prompt_tokens_computed": tokens + 9}
    assert [one.ids for one in completions] == [one.ids for one in usual]
    torch.testing.assert_close(reported(completions), reported(usual), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", ["qwen3", "gpt-neox"])
def test_a_completion_does_not_depend_on_what_else_is_in_the_batch(shape, shaped):
    engine, requests, sampling = TorchEngine(shaped(shape)), requests_for(PROMPTS), Sampling(1.0, frozenset({END}))
    together = engine.generate(requests, sampling)
    alone = [engine.generate([request], sampling)[0] for request in requests]
    backwards = engine.generate(requests[::-1], sampling)[::-1]
    assert [c.ids for c in together] == [c.ids for c in alone] == [c.ids for c in backwards]
    torch.testing.assert_close(reported(together), reported(alone), atol=1e-5, rtol=0)
    assert engine.generate([], sampling) == []


def test_each_token_is_drawn_by_the_number_of_its_seed_and_position(shaped):
    policy = shaped("qwen3")
    (one,), ids = TorchEngine(policy).generate([Request([5], 3, 40)], Sampling(0.5, frozenset())), [5]
    for position, token in enumerate(one.ids):  # beyond those numbers that are drawn at once
        logits = policy.model(torch.tensor([ids])).logits[:, -1].detach().double()
        u = torch.from_numpy(uniforms(np.array([3], dtype=np.uint64), range(40)))[:, position]
        cdf = (logits[0] / 0.5).softmax(-1).cumsum(-1)
        assert token == int(torch.searchsorted(cdf, u, right=True))
        ids.append(token)


def test_greedy_takes_the_most_likely_token_whatever_the_seed(shaped):
    policy = shaped("qwen3")
    greedy = Sampling(0.0, frozenset())
    one, other = TorchEngine(policy).generate([Request([5, 6], seed, 8) for seed in (1, 2)], greedy)
    ids = [5, 6]
    for logprob in one.logprobs:
        logits = policy.model(torch.tensor([ids])).logits[0, -1].detach()
        ids.append(int(logits.argmax()))
        assert logprob == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-5)  # at temperature 1
    assert one.ids == other.ids == ids[2:]


def test_whatever_stops_a_completion_is_kept(engine, policy):
    requests = [Request([5, 6], seed, 30) for seed in range(40)]
    free = engine.generate(requests, NO_STOP)
    ids = free[1].ids
    place = next(n for n in range(3, 30) if ids[n] not in ids[:n])
    (at_limit,) = engine.generate([Request([5, 6], 1, place + 1)], Sampling(1.0, frozenset({ids[place]})))
    assert (at_limit.ids, at_limit.finish_reason) == (ids[: place + 1], "stop")
    special = policy.tokenizer.convert_tokens_to_ids("<user>")
    with_special = next(one.ids for one in free if special in one.ids[1:])
    behind = with_special.index(special, 1) + 1
    letter = min((policy.decode_all([token]) for token in ids), key=len)
    pairs = policy.decode_all(free[0].ids[:2]), policy.decode_all(with_special[behind - 2 : behind])
    for stops, texts in ((frozenset(), (letter,)), (frozenset({free[0].ids[3], ids[5]}), pairs)):
        stopped = engine.generate(requests, Sampling(1.0, stops, texts))
        for long, short in zip(free, stopped, strict=True):
            said = [policy.decode_all(long.ids[: n + 1]) for n in range(30)]
            ends = [n for n in range(30) if long.ids[n] in stops or any(text in said[n] for text in texts)]
            length = min(ends, default=29) + 1
            assert short.ids == long.ids[:length]
            assert short.logprobs == pytest.approx(long.logprobs[:length], abs=1e-5)
            assert short.finish_reason == ("stop" if ends else "length")
        assert "stop" in {one.finish_reason for one in stopped}


def test_rows_leave_the_batch_and_completions_are_reported_as_they_end(shaped, monkeypatch):
    policy, told, rows = shaped("qwen3"), [], []
    kind = type(make_decoder(policy.model))
    step = kind.step
    monkeypatch.setattr(kind, "step", lambda self, tokens: rows.append(len(tokens)) or step(self, tokens))
    requests = [Request([5, 6], seed, length) for seed, length in enumerate((3, 1, 9, 4, 2, 5, 8, 6, 7))]
    engine = TorchEngine(policy)
    completions = engine.generate(requests, NO_STOP, on_end=told.append)
    assert rows == [8, 8, 6, 6, 4, 4, 4, 4]
    assert told == [[(index, completions[index])] for index in (1, 4, 0, 3, 5, 7, 8, 6, 2)]
    engine._limit = 1  # each is a slice
    told.clear()
    assert engine.generate(requests, NO_STOP, on_end=told.append) == completions
    assert list(filter(None, told)) == [[one] for one in enumerate(completions)]
    assert len(told) == sum(request.max_tokens for request in requests)  # each step of each slice


def test_who_listens_computes_in_modes_of_their_own_and_the_engine_in_its_own(shaped, monkeypatch):
    policy = shaped("gpt-neox")  # whose steps autocast reaches
    exact = TorchEngine(policy)
    assert not exact.needs_correction and exact.cores == torch.get_num_threads()
    expected = reported(exact.generate(requests_for(PROMPTS), NO_STOP))
    monkeypatch.setattr(policy.processes, "dtype", torch.bfloat16)
    engine, modes = TorchEngine(policy), []
    listen = lambda _: modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))  # noqa: E731
    completions = engine.generate(requests_for(PROMPTS), NO_STOP, on_end=listen)
    assert modes == [(True, False)] * 12 and engine.needs_correction
    assert (reported(completions) - expected).abs().max() > 0


def test_what_is_heard_is_what_is_sampled_and_who_hears_can_end_it(engine):
    requests = [Request([5, 6 + index % 2], index, 9 - index) for index in range(6)]
    whole = engine.generate(requests, NO_STOP)
    for limit in (engine._limit, 1):  # slices change the order of requests, and not whose tokens they are
        heard = [[] for _ in requests]
        engine._limit = limit
        hear = lambda index, *said: heard[index].append(said) or index != 3 or len(heard[3]) < 2  # noqa: B023, E731
        told = engine.generate(requests, NO_STOP, hear)
        assert [list(zip(one.ids, one.logprobs, strict=True)) for one in told] == heard
        for index, (one, before) in enumerate(zip(told, whole, strict=True)):
            assert one.ids == (before.ids if index != 3 else before.ids[:2])
            assert one.finish_reason == ("stop" if index == 3 else "length")


def test_the_engine_samples_from_the_weights_as_they_are_now_and_those_of_another_policy(
    engine, policy, make_policy, make_rollout
):
    requests = requests_for(PROMPTS)
    before = engine.generate(requests, NO_STOP)
    improve(policy, 0.1)
    for synced in (policy, make_policy(1)):
        engine.sync(synced)
        completions = engine.generate(requests, NO_STOP)
        assert completions != before
        expected = scored(synced, make_rollout, requests, completions)
        torch.testing.assert_close(reported(completions), expected, atol=1e-5, rtol=0)


def test_uniforms_and_seeds_are_those_of_splitmix64():
    # The generator's first numbers from the state 0, as its authors' C program prints them; 53 bits are kept.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    drawn = uniforms(np.zeros(1, dtype=np.uint64), range(1, 3))[0]
    assert drawn.tolist() == [(number >> 11) / 2**53 for number in published[1:]]
    # A seed goes through the same hash first; that of the first state is the first number.
    assert mix(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0] == published[0]
    assert mix_seed(0x9E3779B97F4A7C15) == published[0] - 2**63


@pytest.mark.parametrize(("vocabulary", "temperature"), [(50, 1.0), (129, 2.0), (1000, 1.0)])  # two blocks, and eight
def test_tokens_are_those_of_the_plain_inverse_cdf(vocabulary, temperature):
    logits = 3 * torch.randn(500, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u = torch.from_numpy(uniforms(np.arange(500, dtype=np.uint64), range(1))[:, 0])
    p = (logits / temperature).softmax(-1)
    expected = torch.searchsorted(p.cumsum(-1), u[:, None], right=True)[:, 0]
    tokens, logprobs = sample(logits, u, temperature)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, p.log().gather(1, expected[:, None])[:, 0], atol=1e-9, rtol=0)


def test_no_impossible_token_is_drawn_at_the_ends_of_the_unit_interval_and_between_blocks():
    last = torch.tensor(1 - 2.0**-53, dtype=torch.float64)
    for logits in ([[-torch.inf, 0.0, 1.0, -torch.inf]], [[-torch.inf, *[0.0] * 198, -torch.inf]]):
        for u, token in ((0 * last, 1), (last, len(logits[0]) - 2)):
            assert sample(torch.tensor(logits), u[None], 1.0)[0].tolist() == [token]
    for size in (4, 256):  # a number at which the cumulative probability is exact belongs to the next token
        u = torch.arange(4, dtype=torch.float64) / 4
        assert sample(torch.zeros(4, size), u, 1.0)[0].tolist() == [0, size // 4, size // 2, 3 * size // 4]
    # Each block begins with a token of probability 0. The double-precision sums of both blocks are rounded.
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(400, 256, generator=generator)
    logits[:, 128:] -= 30 * torch.rand(400, 1, generator=generator)
    logits[:, [0, 128]] = -torch.inf
    p = logits.softmax(-1)
    sums = p.view(-1, 2, 128).sum(-1).double()
    u = sums[:, 0] / sums.sum(-1)
    for _ in range(4):
        u = torch.nextafter(u, torch.zeros_like(u))
    for _ in range(9):
        tokens, _ = sample(logits, u, 1.0)
        assert (p.gather(1, tokens[:, None]) > 0).all()
        u = torch.nextafter(u, torch.ones_like(u))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_the_run_in_a_line(policy, temperature):
    with torch.no_grad():
        policy.model.model.norm.weight[0] = torch.nan
    with pytest.raises(UserError, match="probabilities are not numbers"):
        TorchEngine(policy).generate([Request([5, 6], 3, 8)], Sampling(temperature, frozenset()))
    tokens, logprobs = sample(torch.full((1, 5000), torch.nan), torch.tensor([0.5]).double(), 1.0)  # many words
    assert int(tokens) < 5000 and logprobs.isnan().all()
