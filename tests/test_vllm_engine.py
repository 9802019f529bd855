"""The vLLM engine against the policy and the embedded engine; and that a sync that went wrong is noticed."""

import copy
from collections import deque
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from minrl.dataflow import Request, UserError
from minrl.engines import Engine, Sampling
from minrl.engines import vllm as vllm_engine
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm import VllmEngine
from minrl.engines.vllm_sync import SyncError, find_engine_tensors, policy_logprobs, unread
from minrl.models.loading import word_tokenizer
from minrl.models.lora import MergedWeights
from minrl.policy import as_policy
from tests.conftest import adapt, improve, small_config
from tests.parsed import sized

REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())
REQUESTS = [Request([5 + index // 4, 6, 7, 8, 9], 2**40 + index, 8 + index % 5) for index in range(16)]
UNSTOPPED = Sampling(1.0, frozenset())

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(REASON is not None, reason=REASON or "")]


def shaped_policy(shape, processes):
    tokenizer = word_tokenizer([f"w{index}" for index in range(100)])
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3}
    sizes |= {"head_dim": 32, "max_position_embeddings": 128, "tie_word_embeddings": shape != "phi3"}
    model = AutoModelForCausalLM.from_config(small_config(shape, **sizes), attn_implementation="eager")
    policy = as_policy(model, tokenizer, sized(device="cpu"), processes)
    improve(policy, 0.1)  # weights that matter: every tensor's, biases and norms included
    policy.version = 0
    return policy


@pytest.fixture(scope="module")
def engine_of(processes):
    """The engine of a policy of this shape, with such adapters. vLLM's process groups belong to the process: one
    engine lives at a time.
    """
    alive = {}

    def close():
        for engine in alive.values():
            engine.close()
        alive.clear()

    def get(shape, dtype=torch.float32, **lora):
        name = shape, dtype, *lora.items()
        if name not in alive:
            close()
            own = copy.copy(processes)
            own.dtype = dtype
            policy = shaped_policy(shape, own)
            alive[name] = VllmEngine(sized(engine="vllm"), adapt(policy, size=0, **lora) if lora else policy, 16)
        engine = alive[name]
        engine._syncs = 0  # check the next one
        engine.sync(engine.policy)
        return engine

    yield get
    close()


@pytest.fixture
def engine(engine_of):
    return engine_of("qwen3")


def worst_gap(policy, completions, temperature):
    """The largest difference between sampled and recomputed log-probabilities."""
    gaps = []
    for request, completion in zip(REQUESTS, completions, strict=True):
        ids = torch.tensor([request.ids + completion.ids])
        with torch.no_grad():
            logprobs = (policy.model(input_ids=ids).logits[0, :-1] / temperature).log_softmax(-1)
        own = logprobs.gather(1, ids[0, 1:, None])[len(request.ids) - 1 :, 0]
        gaps.append(float((own - torch.tensor(completion.logprobs)).abs().max()))
    return max(gaps)


@pytest.mark.parametrize("shape", ["phi3", "qwen3"])  # fused projections, and tied weights
def test_after_an_update_the_engine_samples_with_the_new_weights(engine_of, shape):
    engine = engine_of(shape)
    policy, sampling = engine.policy, Sampling(0.8, engine.policy.stop_ids)
    assert worst_gap(policy, engine.generate(REQUESTS, sampling), 0.8) <= 1e-4
    improve(policy)
    with pytest.raises(SyncError, match="call wake\\(\\) and sync"):
        engine.generate(REQUESTS, sampling)
    engine.sync(policy)
    assert worst_gap(policy, engine.generate(REQUESTS, sampling), 0.8) <= 1e-4
    held = find_engine_tensors(engine.model, policy.model.state_dict())
    assert unread(held, policy.model.state_dict()) == []  # every tensor is compared, not only probed


def skip_sync(engine, monkeypatch):
    monkeypatch.setattr(engine, "_load", lambda policy: None)


def forget_tied_head(engine, monkeypatch):
    """The head keeps its packed copy, or where this CPU has none for the precision the weight it had."""
    head = engine.model.lm_head
    multiply, stale = head.cpu_linear, head.weight.detach().clone()
    monkeypatch.setattr(head, "cpu_linear", lambda x, weight, bias: multiply(x, stale, bias))
    monkeypatch.setattr(head.quant_method, "process_weights_after_loading", lambda head: None)


def swap_layers(engine, monkeypatch):
    as_saved, names = vllm_engine.as_saved, [f"model.layers.{number}.mlp.down_proj.weight" for number in (0, 1)]

    def swapped(model, weights, *without):
        changed = {**weights, names[0]: weights[names[1]], names[1]: weights[names[0]]}
        return as_saved(model, changed, *without)

    monkeypatch.setattr(vllm_engine, "as_saved", swapped)


@pytest.mark.parametrize("break_it", [skip_sync, forget_tied_head, swap_layers])
def test_a_broken_sync_is_caught_at_the_next_step_however_small(engine, monkeypatch, break_it):
    break_it(engine, monkeypatch)
    improve(engine.policy, 1e-5)  # in bfloat16 the probe cannot see it: log-probabilities move by less than they round
    with pytest.raises(SyncError, match=r"update \d+ .*tensors differ.*log-probabilities differ by"):
        engine.sync(engine.policy)


def test_the_probe_alone_catches_what_can_be_heard(engine, monkeypatch):
    monkeypatch.setattr("minrl.engines.vllm.mismatched_tensors", lambda *_: [])
    skip_sync(engine, monkeypatch)
    improve(engine.policy)
    with pytest.raises(SyncError, match=r"0 of .* weight tensors differ; log-probabilities differ by up to"):
        engine.sync(engine.policy)


def test_an_engine_that_has_sampled_sleeps_and_wakes_when_the_policy_has_computed(engine, monkeypatch):
    """The real core; a CPU has no memory to give back, so that the worker's calls for that are recorded instead."""
    done, policy = [], engine.policy
    core = engine._llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    for name in ("discard", "sleep", "wake_up"):
        monkeypatch.setattr(worker, name, lambda *_, name=name, **given: done.append(name), raising=False)
    scored = lambda *given: done.append("policy") or policy_logprobs(*given)  # noqa: E731 - it needs the memory first
    monkeypatch.setattr(vllm_engine, "policy_logprobs", scored)
    monkeypatch.setattr(engine, "_cuda", True)
    monkeypatch.setattr(core, "batch_queue_size", 2)  # asynchronous scheduling, as vLLM has on CUDA
    monkeypatch.setattr(core, "batch_queue", deque(maxlen=2))
    monkeypatch.setattr(core, "step_fn", core.step_with_batch_queue)
    for stops in (frozenset(range(50)), frozenset()):  # sampling is stopped, or cut
        engine.generate(REQUESTS, Sampling(1.0, stops))
        assert core.scheduler.has_requests() or core.batch_queue  # what a pause must be without
        engine.sleep()
        assert core.model_executor.is_sleeping and core.is_scheduler_paused()
        with pytest.raises(SyncError):
            engine.generate(REQUESTS, Sampling(1.0, stops))
        improve(policy)
        engine._syncs = 0  # it is checked
        engine.wake()
        engine.sync(policy)
        assert not core.model_executor.is_sleeping and not core.is_scheduler_paused()
        assert worst_gap(policy, engine.generate(REQUESTS, UNSTOPPED), 1.0) <= 1e-4
    assert done == ["discard", "policy", "wake_up"] * 2
    vllm_engine.drain(engine._llm)


def test_where_the_cache_has_no_room_again_the_run_ends_in_one_line(engine, monkeypatch):
    def full(tags):
        raise RuntimeError("CUDA Error: out of memory")

    monkeypatch.setattr(engine, "_asleep", True)
    monkeypatch.setattr(engine._llm, "wake_up", full)
    with pytest.raises(UserError, match=r"no room for its cache .*CUDA Error: out of memory\): lower --engine-memory"):
        engine.wake()


def test_greedy_completions_are_those_of_the_embedded_engine(engine):
    policy, own = engine.policy, TorchEngine(engine.policy)
    longer = [replace(request, max_tokens=24) for request in REQUESTS]
    whole = own.generate(longer, Sampling(0.0, frozenset()))
    said = {token for one in whole for token in one.ids[2:6]}
    strings = policy.decode_all(whole[0].ids[3:5]), policy.decode_all(whole[4].ids[5:6])
    for stops in (frozenset(), ()), (frozenset(sorted(said)[:2]), ()), (frozenset(), strings):
        mine, theirs = (one.generate(longer, Sampling(0.0, *stops)) for one in (engine, own))
        assert [(c.ids, c.finish_reason) for c in mine] == [(c.ids, c.finish_reason) for c in theirs]
        torch.testing.assert_close([c.logprobs for c in mine], [c.logprobs for c in theirs], atol=1e-4, rtol=0)
    assert {c.finish_reason for c in engine.generate(longer, Sampling(0.0, frozenset(said)))} == {"stop"}
    expected, ids = policy_logprobs(policy, [5, 6, 7, 50, 60]), [5, 6, 7, 50, 60]
    torch.testing.assert_close(torch.tensor(engine.score(ids)), expected, atol=1e-4, rtol=0)  # at temperature 1
    assert isinstance(engine, Engine)


def test_completions_are_told_of_as_they_end_and_an_error_of_who_listens_leaves_no_request(engine):
    assert engine.cores == torch.get_num_threads()
    free, told = engine.generate(REQUESTS, UNSTOPPED), []
    sampling = Sampling(1.0, frozenset(free[2].ids[3:5]), (engine.policy.decode(free[4].ids[3:5]),))
    completions = engine.generate(REQUESTS, sampling, on_end=lambda ended: told.append(dict(ended)))
    assert {index: one for step in told for index, one in step.items()} == dict(enumerate(completions))
    assert sum(map(len, told)) == len(REQUESTS) and len(list(filter(None, told))) > 3  # at different steps

    def broken(ended):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(REQUESTS, UNSTOPPED, on_end=broken)
    assert engine.generate(REQUESTS, UNSTOPPED) == free


def test_the_scale_of_gemmas_embeddings_is_vllms(engine_of):
    engine = engine_of("gemma3_text", torch.bfloat16)
    own = engine.policy.model.get_input_embeddings().embed_scale
    assert float(own) == float(engine.model.model.normalizer) == 11.3125  # of 128 ** 0.5 = 11.3137


def test_lora_adapters_are_merged_into_the_engine_and_verified_there(engine_of):
    engine = engine_of("qwen2", lora_rank=4)
    policy = engine.policy
    for _ in range(2):
        improve(policy, 3e-2)
        engine.sync(policy)
        completions = engine.generate(REQUESTS, Sampling(0.8, policy.stop_ids))
        assert worst_gap(policy, completions, 0.8) <= 1e-4
        with policy.as_reference():
            assert worst_gap(policy, completions, 0.8) > 1e-2  # the adapters do matter
    weights = MergedWeights(policy.model, policy.model.state_dict()).bases
    assert unread(find_engine_tensors(engine.model, weights), weights) == []


APART = {"lora_serve": "adapter", "lora_target_modules": "q_proj,v_proj,gate_proj,down_proj"}


def test_adapters_that_stay_apart_are_loaded_over_each_other_and_a_step_that_was_not_is_caught(engine_of, monkeypatch):
    engine = engine_of("qwen2", **APART)
    policy = engine.policy
    monkeypatch.setattr(vllm_engine, "reload", None)  # the base model is loaded once
    for _ in range(2):
        improve(policy, 3e-2)
        engine.sync(policy)
        assert worst_gap(policy, engine.generate(REQUESTS, Sampling(0.8, policy.stop_ids)), 0.8) <= 1e-4
        assert engine.take_facts()["engine/sync_checked_tensors"] == 39 + 3 * 4 * 2  # A and B of each
    monkeypatch.setattr(vllm_engine, "load_adapters", lambda *_: engine._lora_request)
    improve(policy, 1e-6)
    with pytest.raises(SyncError, match=r"24 of \d+ weight tensors differ \(model.layers.0.self_attn.q_proj.lora_A"):
        engine.sync(policy)
