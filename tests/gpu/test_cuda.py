"""vLLM and the policy on one CUDA card, with a Qwen3-0.6B-shaped model of random weights.

python -m pytest tests/gpu -m gpu
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import copy_floor_s, make_model, run_loop, seconds_of
from minrl.config import EngineConfig, ModelConfig
from minrl.engines import Sampling
from minrl.engines.vllm import versions as vllm_versions
from minrl.engines.vllm.engine import VllmEngine
from minrl.engines.vllm.verify import SyncError
from minrl.engines.vllm_server.engine import ServerEngine
from minrl.engines.vllm_server.wanted import wanted_of
from minrl.engines.vllm_server.weights import WeightsFolder
from minrl.models.processes import Processes
from minrl.models.sharding import master_weights
from minrl.run.setup import load_policy
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


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


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


def on_this_card(command: str, tmp_path, name: str) -> subprocess.Popen:
    """A server beside the policy. It takes a fifth of the card."""
    with (tmp_path / f"{name}.log").open("w") as output:
        line = ["bash", "-c", f"exec env {command} --gpu-memory-utilization 0.2"]
        return subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True)


@pytest.mark.parametrize(
    "transfer", ["", """ --weight-transfer-config '{"backend": "nccl"}'"""], ids=["folder", "nccl"]
)
def test_a_server_gets_the_weights_of_an_update(model, tmp_path, transfer):
    """NCCL wants a card for each side: with one card that case is left out."""
    if transfer and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA cards")
    policy = load_policy(str(model), ModelConfig(), Processes(ModelConfig()))
    url = f"http://127.0.0.1:{free_port()}"
    config = EngineConfig(engine="vllm-server", engine_urls=url, engine_weights_dir=str(tmp_path))
    wanted = wanted_of(config, policy, policy.context_length)
    WeightsFolder(str(tmp_path)).write_shape(policy, policy.model)
    card = "CUDA_VISIBLE_DEVICES=1 " if transfer else ""
    server = on_this_card(f"{card}{wanted.command(url)}{transfer}", tmp_path, "server")
    try:
        engine = ServerEngine(config, policy)
        assert bool(engine._handover.by_card) == bool(transfer)
        for _ in range(2):
            assert mean_gap(engine) < 0.05
            improve(policy, 1e-3)
            engine.sync(policy)
        assert mean_gap(engine) < 0.05
        engine.close()
    finally:
        os.killpg(server.pid, signal.SIGKILL)


def test_processes_have_an_engine_each_on_its_card_or_hold_one_together(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA cards")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "tests/two_engines.py"]
    subprocess.run([*command, str(tmp_path), "cuda"], check=True, timeout=900)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, found in enumerate(ranks):
        assert all(one["as_before"] and one["all"] == [0, 1] for one in found)
        assert all(max(one["gaps"]) < 0.5 and one["cards"] == [rank, rank] for one in found)
