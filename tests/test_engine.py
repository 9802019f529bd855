"""The embedded engine: exact, seeded, and blind to what else is in the batch."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config

from minrl.batch import pack
from minrl.dataflow import Request, UserError
from minrl.engines import Sampling
from minrl.engines.decoders import LlamaDecoder, make_decoder
from minrl.engines.torch_engine import (
    TorchEngine,
    footprint,
    mix,
    sample,
    uniforms,
)
from minrl.models.loading import word_tokenizer
from minrl.models.scoring import score
from minrl.policy import as_policy
from tests.conftest import CPU
from tests.test_scoring import SHAPES, SMALL, make_model

PROMPTS = [[5, 6, 7], [9], [8, 7, 6, 5, 10, 11, 12, 5, 6], [5, 6, 7], [13, 14]]
END = 2
NO_STOP = Sampling(1.0, frozenset())


def requests_for(prompts, max_tokens=12, seed=100):
    return [Request(list(prompt), seed + row, max_tokens) for row, prompt in enumerate(prompts)]


def scored(policy, make_rollout, requests, completions, temperature):
    """The policy's log-probabilities of the completions, by the packed forward pass."""
    pairs = zip(requests, completions, strict=True)
    rollouts = [make_rollout(request.ids, completion.ids) for request, completion in pairs]
    with torch.no_grad():
        logprobs, _ = score(policy.model, pack(rollouts, range(len(rollouts))), temperature)
    return logprobs


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
    policy, temperature = shaped(shape), 0.7
    requests = requests_for(PROMPTS)
    completions = TorchEngine(policy).generate(requests, Sampling(temperature, frozenset({END})))
    reported = torch.tensor([value for completion in completions for value in completion.logprobs])
    assert reported.std() > 0.5
    expected = scored(policy, make_rollout, requests, completions, temperature)
    torch.testing.assert_close(reported, expected, atol=3e-5, rtol=0)


FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 4.0, 8.0, 16.0]}
ROPES_OF_LENGTH = {
    "longrope": Phi3Config(
        **SMALL,
        eos_token_id=2,
        original_max_position_embeddings=24,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24, **FACTORS},
    ),
    "dynamic": LlamaConfig(
        **{**SMALL, "max_position_embeddings": 24},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    ),
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
    reported = torch.tensor([value for completion in completions for value in completion.logprobs])
    torch.testing.assert_close(reported, torch.cat(alone), atol=1e-4, rtol=0)
    packed = scored(policy, make_rollout, requests, completions, 1.0)
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-4, rtol=0)


def test_what_could_outgrow_the_context_is_refused(processes):
    policy = as_policy(make_model(ROPES_OF_LENGTH["dynamic"], torch.float32), word_tokenizer([]), CPU, processes)
    with pytest.raises(UserError, match="may take 25 tokens, the engine takes 24: lower --max-tokens"):
        TorchEngine(policy).generate([Request([5] * 20, 1, 5)], NO_STOP)


@pytest.mark.parametrize("shape", ["qwen3", "gpt-neox"])
def test_completions_that_do_not_fit_the_memory_are_sampled_in_slices(shape, shaped, monkeypatch):
    policy = shaped(shape)
    prompts = [PROMPTS[2], PROMPTS[2][::-1], PROMPTS[2][1:]]
    requests = [Request(prompt, 10 * n + m, 6 + n) for n, prompt in enumerate(prompts) for m in range(4)]
    usual = TorchEngine(policy).generate(requests, NO_STOP)
    kind = type(make_decoder(policy.model))
    budget = footprint(policy.model, 4, 6, 9, 8)  # six of the longest rows: a prompt and a half
    calls, held, step = [], [], kind.step
    prefill = kind.prefill
    monkeypatch.setattr(kind, "prefill", lambda *a: calls.append(a[1]) or prefill(*a))
    monkeypatch.setattr(kind, "step", lambda self, tokens: held.append(cache_bytes(self)) or step(self, tokens))
    completions = TorchEngine(policy, cache_gib=budget / 2**30).generate(requests, NO_STOP)
    assert [len(prompts) for prompts in calls] == [2, 2]  # each prompt of a slice once
    assert 0 < max(held) <= budget
    assert [one.ids for one in completions] == [one.ids for one in usual]
    for one, other in zip(completions, usual, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def cache_bytes(made):
    """Bytes of the keys and values that a decoder holds."""
    if isinstance(made, LlamaDecoder):
        return sum(cache.nbytes for cache in made.cache)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in made.cache.layers)


@pytest.mark.parametrize("shape", ["qwen3", "gpt-neox"])
def test_a_completion_does_not_depend_on_what_else_is_in_the_batch(shape, shaped):
    engine = TorchEngine(shaped(shape))
    sampling = Sampling(1.0, frozenset({END}))
    requests = requests_for(PROMPTS)
    together = engine.generate(requests, sampling)
    alone = [engine.generate([request], sampling)[0] for request in requests]
    backwards = engine.generate(requests[::-1], sampling)[::-1]
    assert [c.ids for c in together] == [c.ids for c in alone] == [c.ids for c in backwards]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


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


def test_every_stop_id_ends_a_completion_and_is_kept(engine):
    free = engine.generate(requests_for(PROMPTS, 40), NO_STOP)
    stops = frozenset({free[0].ids[3], free[1].ids[5]})
    stopped = engine.generate(requests_for(PROMPTS, 40), Sampling(1.0, stops))
    for long, short in zip(free, stopped, strict=True):
        first = next((n for n, token in enumerate(long.ids) if token in stops), None)
        assert short.ids == (long.ids if first is None else long.ids[: first + 1])
        assert short.finish_reason == ("length" if first is None else "stop")
        assert len(short.logprobs) == len(short.ids)
    assert stopped[0].finish_reason == stopped[1].finish_reason == "stop"


def test_a_stop_string_may_hold_a_special_token(engine, policy):
    (special,) = policy.tokenizer.convert_tokens_to_ids(["<user>"])
    requests = [Request([5, 6], seed, 30) for seed in range(40)]
    free = engine.generate(requests, NO_STOP)
    long = next(c for c in free if special in c.ids[1:])
    place = long.ids.index(special, 1)
    stop = policy.decode_all(long.ids[place - 1 : place + 1])
    short = engine.generate(requests, Sampling(1.0, frozenset(), (stop,)))[free.index(long)]
    assert short.finish_reason == "stop"
    assert short.ids == long.ids[: place + 1]  # the string spans two tokens


def test_only_in_float32_is_the_engine_the_policy_itself(policy, monkeypatch):
    assert not TorchEngine(policy).needs_correction
    monkeypatch.setattr(policy.processes, "dtype", torch.bfloat16)
    assert TorchEngine(policy).needs_correction


def test_the_engine_samples_from_the_weights_as_they_are_now(engine, policy, make_rollout):
    requests = requests_for(PROMPTS)
    engine.generate(requests, NO_STOP)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    engine.sync(policy)
    completions = engine.generate(requests, NO_STOP)
    reported = torch.tensor([value for completion in completions for value in completion.logprobs])
    torch.testing.assert_close(reported, scored(policy, make_rollout, requests, completions, 1.0), atol=1e-5, rtol=0)


def test_uniforms_are_those_of_splitmix64():
    # The generator's first numbers from the state 0, as its authors' C program prints them; 53 bits are kept.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    drawn = uniforms(np.zeros(1, dtype=np.uint64), range(3))[0]
    assert drawn.tolist() == [(number >> 11) / 2**53 for number in published]
    # A seed goes through the same hash first; that of the first state is the first number.
    assert mix(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0] == published[0]


@pytest.mark.parametrize(("vocabulary", "temperature"), [(129, 2.0), (1000, 1.0)])  # blocks: two and eight
def test_tokens_of_large_vocabularies_are_those_of_the_plain_inverse_cdf(vocabulary, temperature):
    logits = 3 * torch.randn(500, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u = torch.from_numpy(uniforms(np.arange(500, dtype=np.uint64), range(1))[:, 0])
    p = (logits / temperature).softmax(-1)
    expected = torch.searchsorted(p.cumsum(-1), u[:, None], right=True)[:, 0]
    tokens, logprobs = sample(logits, u, temperature)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, p.log().gather(1, expected[:, None])[:, 0], atol=1e-9, rtol=0)


def test_at_the_border_of_two_blocks_no_impossible_token_is_drawn():
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


def test_what_is_heard_is_what_is_sampled_and_who_hears_can_end_it(engine, monkeypatch):
    requests = [Request([5, 6 + index % 2], index, 9 - index) for index in range(6)]
    whole = engine.generate(requests, NO_STOP)
    heard = [([], []) for _ in requests]

    def hear(index, token, logprob):
        heard[index][0].append(token)
        heard[index][1].append(logprob)
        return index != 3 or len(heard[index][0]) < 2

    told = engine.generate(requests, NO_STOP, hear)
    assert [(one.ids, one.logprobs) for one in told] == [tuple(one) for one in heard]
    for index, (one, before) in enumerate(zip(told, whole, strict=True)):
        assert one.ids == (before.ids if index != 3 else before.ids[:2])
    # Slices and lengths change the order in which requests are sampled, and not whose tokens they are.
    monkeypatch.setattr(engine, "_limit", 1)
    again = [[] for _ in requests]
    engine.generate(requests, NO_STOP, lambda index, token, logprob: again[index].append(token) or True)
    assert again == [one.ids for one in whole]


@pytest.mark.parametrize(("shape", "apart"), [("qwen3", True), ("gpt-neox", False)])
def test_each_completion_is_reported_once(shape, shaped, apart, monkeypatch):
    policy = shaped(shape)
    engine = TorchEngine(policy)
    if apart:
        monkeypatch.setattr(engine, "_limit", 1)
    requests = [Request(list(prompt), seed, 14 - seed % 5) for seed, prompt in enumerate(PROMPTS)]
    free = engine.generate(requests, NO_STOP)
    for sampling in (
        NO_STOP,
        Sampling(1.0, frozenset(range(5, 11))),
        Sampling(1.0, frozenset(), (policy.decode_all(free[3].ids[4:6]),)),
    ):
        told = []
        completions = engine.generate(requests, sampling, on_end=told.extend)
        assert sorted(told, key=lambda one: one[0]) == list(enumerate(completions))
        assert completions == engine.generate(requests, sampling)
        assert (completions == free) == (sampling is NO_STOP)


def test_a_completion_is_reported_after_its_last_step_and_each_step_is(engine):
    lengths, told = [3, 1, 5, 3], []
    requests = [Request([5, 6], seed, length) for seed, length in enumerate(lengths)]
    engine.generate(requests, NO_STOP, on_end=lambda ended: told.append([index for index, _ in ended]))
    assert told == [[1], [], [0, 3], [], [2]]


def test_a_stop_token_at_the_limit_is_a_stop_and_not_a_truncation(engine):
    free = engine.generate([Request([5], 3, 6)], NO_STOP)[0]
    last = free.ids[-1]
    assert last not in free.ids[:-1]  # the seed was chosen so
    assert engine.generate([Request([5], 3, 6)], Sampling(1.0, frozenset({last})))[0].finish_reason == "stop"


def test_after_a_sync_another_policy_samples(engine, make_policy):
    other = make_policy(1)
    request = [Request([5, 6], 3, 8)]
    before = engine.generate(request, NO_STOP)
    engine.sync(other)
    assert engine.generate(request, NO_STOP) == TorchEngine(other).generate(request, NO_STOP) != before


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_the_run_in_a_line(policy, temperature):
    with torch.no_grad():
        policy.model.model.norm.weight[0] = torch.nan
    with pytest.raises(UserError, match="probabilities are not numbers"):
        TorchEngine(policy).generate([Request([5, 6], 3, 8)], Sampling(temperature, frozenset()))
    tokens, logprobs = sample(torch.full((1, 5000), torch.nan), torch.tensor([0.5]).double(), 1.0)  # many words
    assert int(tokens) < 5000 and logprobs.isnan().all()


def test_the_ends_of_the_unit_interval_draw_possible_tokens():
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf], [-torch.inf, 3.0, -2.0, -torch.inf]])
    lowest, _ = sample(logits, torch.zeros(2, dtype=torch.float64), 1.0)
    assert lowest.tolist() == [1, 1]
    highest, _ = sample(logits, torch.full((2,), 1 - 2.0**-53, dtype=torch.float64), 1.0)
    assert highest.tolist() == [2, 2]
    noise = torch.randn(2000, 50, generator=torch.Generator().manual_seed(0))
    tokens, _ = sample(noise, torch.full((2000,), 1 - 2.0**-53, dtype=torch.float64), 1.0)
    assert (tokens < 50).all()
