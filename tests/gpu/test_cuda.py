"""vLLM and the policy on one CUDA card, with a Qwen3-0.6B-shaped model of random weights.

python -m pytest tests/gpu -m gpu
"""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu import copy_floor_s, make_model, run_loop, seconds_of
from minrl.config import EngineConfig, ModelConfig
from minrl.engines import Sampling
from minrl.engines.vllm import versions as vllm_versions
from minrl.engines.vllm.engine import VllmEngine
from minrl.engines.vllm.verify import SyncError
from minrl.model.processes import Processes
from minrl.policy import master_weights
from minrl.run.loading import load_policy
from minrl.types import Request

REASON = vllm_versions.refusal("cuda", vllm_versions.installed_build())
if not torch.cuda.is_available():
    REASON = "needs a CUDA card"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

REQUESTS = [Request([5 + index % 90] * 48, 2**40 + index, 64) for index in range(32)]
SAMPLING = Sampling(1.0, frozenset())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, tiny=False)
    return folder


@pytest.fixture(params=["kv", "all", "off"])
def engine(request, model):
    policy = load_policy(str(model), ModelConfig(), Processes(ModelConfig()))
    made = VllmEngine(EngineConfig(engine="vllm", engine_sleep=request.param, engine_memory_frac=0.4), policy, 64)
    yield made
    made.close()


def used_gib() -> float:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def improve(policy, size: float) -> None:
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(size * torch.randn_like(weight))
    policy.version += 1


@torch.no_grad()
def mean_gap(engine) -> float:
    gaps = []
    for request, completion in zip(REQUESTS, engine.generate(REQUESTS, SAMPLING), strict=True):
        ids = torch.tensor([request.ids + completion.ids], device="cuda")
        with engine.policy.processes.autocast():
            logits = engine.policy.model(input_ids=ids, use_cache=False).logits[0, :-1]
        logprobs = logits.float().log_softmax(-1)
        own = logprobs.gather(1, ids[0, 1:, None])[len(request.ids) - 1 :, 0].cpu()
        gaps.append(float((own - torch.tensor(completion.logprobs)).abs().mean()))
    return sum(gaps) / len(gaps)


def test_an_update_reaches_the_engine_through_sleep_and_device_copies(engine):
    sleeps = engine.config.engine_sleep
    assert mean_gap(engine) < 0.05
    awake = used_gib()
    engine.sleep()
    asleep = used_gib()
    assert asleep < awake - 1 or sleeps == "off"
    improve(engine.policy, 1e-3)
    engine.wake()
    engine.sync(engine.policy)
    assert engine._copies.direct
    assert mean_gap(engine) < 0.05
    assert used_gib() <= awake + 0.5


def test_a_sync_allocates_nothing_and_is_near_a_plain_copy(engine):
    weights = master_weights(engine.policy.model)
    engine._load(weights)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    engine._load(weights)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert seconds_of(lambda: engine._load(weights)) <= 3 * copy_floor_s(engine.policy) + 0.01


def test_broken_syncs_are_caught_in_bfloat16(engine, monkeypatch):
    load = engine._load
    monkeypatch.setattr(engine, "_load", lambda weights: None)
    improve(engine.policy, 1e-6)
    with pytest.raises(SyncError, match="tensors differ"):
        engine.sync(engine.policy)
    monkeypatch.setattr(engine, "_load", load)
    engine.sync(engine.policy)
    down = engine.model.get_submodule("model.layers.0.mlp.down_proj").weight
    other = engine.model.get_submodule("model.layers.1.mlp.down_proj").weight
    first = down.detach().clone()
    down.data.copy_(other.data)
    other.data.copy_(first)
    with pytest.raises(SyncError, match=r"2 of .* tensors differ"):
        engine.check()


def test_five_steps_of_the_whole_loop(model):
    steps = run_loop(model, 5, False)
    assert len(steps) == 5
    for step in steps:
        assert step["engine/logprob_gap_mean"] < 0.05
        assert step["engine/ess"] > 0.9
        assert {"memory/rollout_gib", "memory/update_gib", "memory/sync_gib"} <= step.keys()
