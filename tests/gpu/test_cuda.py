"""vLLM and the policy on one CUDA GPU, with a Qwen3-0.6B-shaped model of random weights, in less than ten minutes.

    python -m pytest tests/gpu -m gpu

Each engine has a process of its own (on_card.py), whose numbers are printed; `make gpu` measures.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import make_model
from minrl.engines.vllm import installed_build, refusal

ROOT = Path(__file__).parent.parent.parent
REASON = refusal("cuda", installed_build()) if torch.cuda.is_available() else "needs a CUDA GPU"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=REASON or "")]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, tiny=False)
    return folder


@pytest.fixture
def on_card(model, capsys):
    def found(*words):
        command = [sys.executable, "-m", "tests.gpu.on_card", model, *words]
        done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout.strip().splitlines()[-1]
        with capsys.disabled():
            print(f"\n{words[0]}: {said}")
        return json.loads(said)

    return found


@pytest.mark.parametrize("sleep", ["sleep", "awake"])
def test_an_update_reaches_the_engine_through_sleep_and_a_broken_sync_is_caught(on_card, sleep):
    found = on_card(sleep)
    assert found["gap_before"] < 0.05 and found["gap_after"] < 0.05
    assert sleep == "awake" or found["asleep_gib"] < found["awake_gib"] - 1
    assert found["again_gib"] <= found["awake_gib"] + 0.5
    assert found["engine/sync_checked_tensors"] > 300
    assert "tensors differ" in found["stale"] and "2 of " in found["swapped"]


def test_a_server_gets_the_weights_of_an_update(on_card, tmp_path):
    found = on_card("server", tmp_path)
    assert found["gap_before"] < 0.05 and found["gap_after"] < 0.05


def test_five_steps_of_the_whole_loop(on_card):
    steps = on_card("loop")
    assert len(steps) == 5
    for step in steps:
        assert step["engine/logprob_gap_mean"] < 0.05 and step["engine/ess"] > 0.9


def test_processes_have_an_engine_each_on_its_card(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "tests/two_engines.py"]
    for sharding in ("none", "full"):
        subprocess.run([*command, str(tmp_path), sharding, "cuda"], check=True, timeout=900)
        for rank in range(2):
            found = json.loads((tmp_path / f"{sharding}{rank}.json").read_text())
            assert found["as_before"] and found["all"] == [0, 1]
            assert max(found["gaps"]) < 0.5 and found["cards"] == [rank, rank]
