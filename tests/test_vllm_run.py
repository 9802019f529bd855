"""Whole runs with the real vLLM: killed and continued, and in two processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minrl.engines import vllm as vllm_engine

ROOT = Path(__file__).parent.parent
REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

SETTINGS = """--run-name countdown-grpo-seed0 --engine vllm --steps 3 --save-every 1 --prompts-per-step 2 --group-size 2
    --max-tokens 8 --base-steps 2 --entropy-coef 0.01 --no-preflight --no-eval-first --eval-every 0 --eval-examples 2
    --eval-samples 1 --reward-workers 1 --threads 1 --device cpu"""
FLAGS = SETTINGS.split()


def folders(folder):
    return ["--runs-dir", str(folder / "runs"), "--checkpoints-dir", str(folder / "checkpoints")]


def start(*command):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen([*map(str, command)], env=environment, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def summary(folder):
    return json.loads((folder / "runs/countdown-grpo-seed0/summary.json").read_text())


def metrics(folder):
    path = folder / "runs/countdown-grpo-seed0/metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_killed_run_continues_to_the_weights_of_one_that_never_stopped(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    _, said = (process := start(sys.executable, "train.py", *FLAGS, *folders(whole))).communicate(timeout=600)
    assert process.returncode == 0, said

    process = start(sys.executable, "train.py", *FLAGS, *folders(killed))
    while len(metrics(killed)) < 2 and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    process = start(sys.executable, "train.py", "--resume", "latest", *folders(killed))
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said

    assert summary(killed)["weights_sha256"] == summary(whole)["weights_sha256"]
    assert summary(killed)["eval_after"] == summary(whole)["eval_after"]
    assert [line["step"] for line in metrics(killed)] == [1, 2, 3]
    assert sum(line["policy/optimizer_steps"] for line in metrics(killed)) >= 2  # else equal weights say nothing
    sampled = ["reward/mean", "rollout/completion_tokens_mean", "rollout/entropy", "engine/logprob_gap_max"]
    for line, other in zip(metrics(killed), metrics(whole), strict=True):
        assert [line[tag] for tag in sampled] == [other[tag] for tag in sampled]
        assert line["engine/logprob_gap_max"] <= 1e-4


def test_processes_have_an_engine_each_and_torch_stays_as_it_was(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", ROOT / "tests/two_engines.py"]
    for sharding in ("none", "full"):
        process = start(*launch, tmp_path, sharding)
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said[-3000:]
    ranks = [
        [json.loads((tmp_path / f"{sharding}{rank}.json").read_text()) for sharding in ("none", "full")]
        for rank in range(2)
    ]
    for own, shards in ranks:
        for found in (own, shards):
            assert found["as_before"] and found["all"] == [0, 1]
            assert found["executor"] == "ExecutorWithExternalLauncher"
            assert max(found["gaps"]) <= 1e-4 and found["facts"]["engine/sync_gap_max"] <= 1e-4
        assert own["facts"]["engine/sync_checked_tensors"] > 20
        assert shards["facts"]["engine/sync_checked_tensors"] == own["facts"]["engine/sync_checked_tensors"]
        assert shards["ids"] == own["ids"] == ranks[0][0]["ids"] and len(own["ids"][0]) == 10
