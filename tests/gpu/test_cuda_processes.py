"""A run in two processes, each on a card of its own: whole copies and shards, by NCCL, against one process.

python -m pytest tests/gpu -m gpu
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.gpu import make_model

ROOT = Path(__file__).parent.parent.parent
REASON = "needs two CUDA GPUs" if torch.cuda.device_count() < 2 else None
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

STEPS = 2
TASK = """
from dataclasses import dataclass

from minrl.tasks import TaskDefinition, TaskOptions
from minrl.tasks.task import split
from minrl.dataflow import Example, Reward


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    most: int = 40


def reward(completion, example):
    return Reward(sum(word.endswith(("0", "2", "4")) for word in completion.split()) % 4 / 3)


def dataset(options):
    return split([Example(str(n), f"w{n} w{n + 1}", {}) for n in range(options.most)], 0.5)


even = TaskDefinition(dataset, reward, Options, lambda options: {"cheap": True})
"""


def trained(model, folder, sharding, count, device="cuda"):
    """Metrics of the steps, and the weights after the first, of a run in so many processes."""
    (folder / "even.py").write_text(TASK)
    name = f"{sharding}{count}"
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
    flags = f"""--task {folder}/even.py:even --model-id {model} --engine torch --device {device} --dtype float32
        --sharding {sharding} --steps {STEPS} --prompts-per-step 4 --group-size 4 --max-tokens 16 --warmup-steps 0
        --kl-coef 0.01 --passes-per-step 2 --learning-rate 1e-4 --save-every 1
        --no-eval-first --eval-every 0 --eval-examples 4 --no-preflight --quiet
        --run-name {name} --runs-dir {folder}/runs --checkpoints-dir {folder}/kept"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launcher, "train.py", *flags.split()]
    subprocess.run(command, check=True, env=environment, cwd=ROOT, timeout=900)
    lines = map(json.loads, (folder / "runs" / name / "metrics.jsonl").read_text().splitlines())
    saved = load_file(folder / "kept" / name / "step_000001" / "model.safetensors")
    return [line for line in lines if "policy/loss" in line], saved


def require_alike(several, alone, start):
    """The first step's samples, gradient and update; in later ones rounding may choose other tokens."""
    (first, *_), weights = several
    (expected, *_), others = alone
    for tag in ("reward/mean", "rollout/completion_tokens_mean", "policy/grad_norm", "policy/loss", "policy/ref_kl"):
        assert first[tag] == pytest.approx(expected[tag], rel=1e-2, abs=1e-4), tag
    assert weights.keys() == others.keys() == start.keys()
    apart = sum(float((weights[name] - others[name]).abs().sum()) for name in start)
    moved = sum(float((others[name] - start[name]).abs().sum()) for name in start)
    assert apart < 0.1 * moved


def test_two_cards_train_as_one_and_hold_half_of_the_weights(tmp_path):
    make_model(tmp_path / "model", tiny=False)
    start, alone = load_file(tmp_path / "model/model.safetensors"), trained(tmp_path / "model", tmp_path, "none", 1)
    copies, shards = (trained(tmp_path / "model", tmp_path, kind, 2) for kind in ("none", "full"))
    require_alike(copies, alone, start)
    require_alike(shards, alone, start)
    taken = [max(line["memory/update_gib"] for line in found) for found, _ in (copies, shards)]
    assert taken[1] < 0.75 * taken[0]
