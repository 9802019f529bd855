"""Whole runs with the real vLLM: killed and continued, and in two processes."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minrl.dataflow import Request
from minrl.engines import Sampling
from minrl.engines import vllm as vllm_engine
from minrl.engines.vllm import VllmEngine
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.sharding import in_one_pass, named_weights, sharded_policy
from minrl.policy import as_policy
from tests.conftest import CPU
from tests.crew import crew
from tests.parsed import sized
from tests.runs import Run, signal_when

ROOT = Path(__file__).parent.parent
REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

REQUESTS = [Request([5 + n, 6 + n], n, 2 + 2 * n) for n in range(10)]
"""Some are long, so that processes are done at different times."""
FLAGS = """--engine vllm --steps 3 --save-every 1 --prompts-per-step 2 --group-size 2
    --max-tokens 8 --base-steps 2 --entropy-coef 0.01 --no-preflight --no-eval-first --eval-every 0 --eval-examples 2
    --eval-samples 1 --reward-workers 1 --threads 1 --device cpu"""


def begin(run, *more):
    """The run, or its continuation, in a new interpreter: vLLM is imported in none that forks."""
    command = [sys.executable, "-m", "minrl", *run.words(*more)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def test_a_killed_run_continues_to_the_weights_of_one_that_never_stopped(tmp_path):
    whole = Run(tmp_path / "whole", FLAGS.split())
    assert begin(whole).wait(timeout=600) == 0
    killed = replace(whole, place=tmp_path / "killed").given_base_of(whole)
    assert signal_when(begin(killed), lambda: len(killed.steps()) >= 2) == -signal.SIGKILL
    assert begin(killed, "--resume", "latest").wait(timeout=600) == 0

    assert killed.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert killed.summary["eval_after"] == whole.summary["eval_after"]
    assert sum(line["policy/optimizer_steps"] for line in killed.metrics) >= 2  # else equal weights say nothing
    sampled = ["step", "reward/mean", "rollout/completion_tokens_mean", "rollout/entropy", "engine/logprob_gap_max"]
    for line, other in zip(killed.metrics, whole.metrics, strict=True):
        assert [line[tag] for tag in sampled] == [other[tag] for tag in sampled]
        assert line["engine/logprob_gap_max"] <= 1e-4


def with_engine(sharding):
    """What an engine in this process of two sampled, before and after an update."""
    tokenizer = word_tokenizer([f"w{number}" for number in range(60)])
    with Processes(CPU).open() as processes:

        def whole():
            return as_policy(small_qwen3(tokenizer, 128, 2, 4, 0), tokenizer, CPU, processes)

        policy = whole() if sharding == "none" else sharded_policy(whole, processes, sharding)
        before = state()
        engine = VllmEngine(sized(engine="vllm", engine_sleep=False), policy, 16)
        found, ids = {"as_before": state() == before, "gap": 0.0}, []
        for _ in range(2):
            share = REQUESTS[processes.share(len(REQUESTS))]
            said = engine.generate(share, Sampling(1.0, frozenset()))
            ids.append(processes.gather([one.ids for one in said]))
            for asked, one in zip(share, said, strict=True):
                found["gap"] = max(found["gap"], gap(policy, asked.ids + one.ids, one.logprobs))
            with torch.no_grad():
                for number, weight in enumerate(named_weights(policy.model).values()):
                    weight.mul_(1 + 0.2 * (-1) ** number)
            policy.version += 1
            engine.sync(policy)
        found |= {"ids": ids, "executor": type(engine._llm.llm_engine.model_executor).__name__, **engine.take_facts()}
        engine.close()
        return found


def state():
    """What starting an engine must leave as it was."""
    launcher = {name: value for name, value in sorted(os.environ.items()) if name.endswith(("RANK", "WORLD_SIZE"))}
    own = torch.get_default_device(), torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state().sum()
    group = id(torch.distributed.group.WORLD), torch.distributed.get_world_size()
    return [str(one) for one in (launcher, *own, *group, torch.set_num_threads)]


@torch.no_grad()
def gap(policy, ids, sampled):
    """The largest difference of log-probabilities. All processes take part in the forward pass."""
    logits = in_one_pass(policy.model, lambda model: model(input_ids=torch.tensor([ids]))).logits[0, :-1]
    own = logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[-len(sampled) :, 0]
    return float((own - torch.tensor(sampled)).abs().max())


def test_processes_have_an_engine_each_and_torch_stays_as_it_was():
    """Forked from a new interpreter: in this one engines have run, whose threads a fork lacks."""
    check = f"from tests.{Path(__file__).stem} import {engines_in_two_processes.__name__} as run; run()"
    subprocess.run([sys.executable, "-X", "faulthandler", "-c", check], cwd=ROOT, check=True)


def engines_in_two_processes():
    replicas, shards = crew(2, with_engine, "none"), crew(2, with_engine, "full")
    for found in (*replicas, *shards):
        assert found["as_before"] and found["executor"] == "ExecutorWithExternalLauncher"
        assert found["gap"] <= 1e-4 and found["engine/sync_gap_max"] <= 1e-4
        assert found["engine/sync_checked_tensors"] == replicas[0]["engine/sync_checked_tensors"] > 20
        assert found["ids"] == replicas[0]["ids"] and len(found["ids"][0]) == len(REQUESTS)
