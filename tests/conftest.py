"""What the tests share: a tiny policy, a tiny task, rollouts by hand, and settings that keep the suite fast.

Nothing slow is imported at the top: the process that hands out the tests to pytest-xdist's workers runs none of them.
"""

import copy
import gc
import os
import re
import shutil
import signal
import sys
import sysconfig

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny matrices: a second thread only costs
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# As in an activated environment, so that commands are printed with the name `python`.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from loguru import logger

pytest.register_assert_rewrite("tests.runs")

import tests.run_time_types  # noqa: F401 - before the first import of minrl
from minrl.dataflow import SOLO, Example, Reward, Rollout, Turn
from minrl.sandbox.calls import LEVELS, _unavailable
from tests.parsed import sized

CPU = sized(device="cpu", threads=1)

SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 2}


def small_config(kind, **changes):
    """A config of transformers' `model_type` with the sizes of a small model."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**{**SIZES, "bos_token_id": None, **changes})


def random_model(config, attention="eager"):
    """A model of this config with weights so large that each counts, and tokens differ by more than half a nat."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.data += 0.3 * torch.randn_like(weight)
        elif weight.shape[-1] >= 8:
            weight.data.normal_(std=1.5 * weight.shape[-1] ** -0.5)
    return model


def save_small_model(folder, tokenizer, hidden=32, layers=2, seed=0):
    """Save a Qwen3-shaped model of two heads with this tokenizer."""
    from minrl.models.distributed import Processes
    from minrl.models.loading import small_qwen3
    from minrl.policy import as_policy
    from minrl.run.checkpoint import save_policy

    save_policy(as_policy(small_qwen3(tokenizer, hidden, layers, 2, seed), tokenizer, CPU, Processes(CPU)), folder)


def adapt(policy, base="base", size=0.2, **settings):
    """The policy with adapters, of which each weight has moved by about this much."""
    import torch

    from minrl.models.lora import Adapters

    policy.adapters = Adapters(policy.model, sized(**{"lora_rank": 4, **settings}), base, seed=0)
    generator = torch.Generator().manual_seed(1)
    for weight in (weight for weight in policy.model.parameters() if weight.requires_grad and size):
        weight.data += size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return policy


def improve(policy, size=1e-2):
    """What an optimizer step does: every weight that is trained moves, and the version with it."""
    import torch

    for weight in (weight for weight in policy.model.parameters() if weight.requires_grad):
        weight.data += size * torch.randn_like(weight)
    policy.version += 1


SMALL_RUN = str.split("""--task sevens --model-id model --prompts-per-step 4 --group-size 4 --max-tokens 4
    --learning-rate 5e-3 --warmup-steps 0 --schedule constant --steps 3 --save-every 1 --keep-checkpoints 0
    --eval-every 0 --eval-examples 2 --eval-samples 1 --rollouts-every 1 --threads 1 --device cpu --quiet
    --no-preflight --run-name run""")
"""The flags of a run of three steps that are all saved."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """A worker for each core that may be used, eight at most; none for files by name, or for what needs a GPU or vLLM's
    threads for itself.
    """
    alone = not {"gpu", "vllm"} <= set(re.findall(r"\bnot (\w+)", config.option.markexpr))
    files = not any(Path(argument).is_dir() for argument in config.args)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if alone or files or cores == 1 else min(cores, 8)


for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in a shell's background: what tests start inherits it
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


os.fsync = lambda _: None  # thousands of calls wait for the disk: of a process that is killed all is kept without
gc.set_threshold(10_000, 20, 20)  # a model makes thousands of objects that are not garbage
sysconfig.get_path = cache(sysconfig.get_path)  # each sink of loguru's asks for 48 of them, which takes 15 ms


@pytest.fixture(params=["strongest", *(pytest.param(name, marks=pytest.mark.slow) for name in LEVELS)], scope="module")
def level(request):
    """The strongest level of this machine; in the slow set each other one."""
    there = [name for name in LEVELS if not _unavailable(name)]
    names = there[:1] if request.param == "strongest" else [name for name in there[1:] if name == request.param]
    if not names:
        pytest.skip(f"{request.param} is the strongest level or none of this machine")
    return names[0]


@pytest.fixture(scope="session")
def processes():
    from minrl.models.distributed import Processes

    return Processes(CPU)


@pytest.fixture(scope="session")
def words():
    """About fifty, in which `sevens` is said: how many there are decides what chance alone earns."""
    from minrl.tasks.countdown import CountdownOptions
    from minrl.tasks.countdown import words as countdown_words

    return [*countdown_words(CountdownOptions()), "pegs", "goal", "A", "B", "C", ":"]


SMALL_MODELS = {}
"""The model of each seed and the state of torch's generator behind it: a copy takes half the time of a new one."""


@pytest.fixture
def make_policy(processes, words):
    """A Qwen3-shaped policy of two layers for each seed."""
    import torch

    from minrl.models.loading import small_qwen3, word_tokenizer
    from minrl.policy import as_policy

    def make(seed=0):
        tokenizer = word_tokenizer(words)
        if seed not in SMALL_MODELS:
            SMALL_MODELS[seed] = small_qwen3(tokenizer, 64, 2, 2, seed), torch.get_rng_state()
        model, state = SMALL_MODELS[seed]
        torch.set_rng_state(state)
        return as_policy(copy.deepcopy(model), tokenizer, CPU, processes)

    return make


@pytest.fixture
def policy(make_policy):
    return make_policy(0)


@pytest.fixture
def engine(policy):
    from minrl.engines.torch_engine import TorchEngine

    return TorchEngine(policy)


@pytest.fixture(autouse=True)
def _forgets_tasks_of_its_program():
    """What a test does to TASK_DEFINITIONS is not there in the next test."""
    from minrl.tasks import TASK_DEFINITIONS

    with patch.dict(TASK_DEFINITIONS):
        yield


@pytest.fixture
def own_imports(tmp_path, monkeypatch):
    """What the test imports of its folder and where it looks for it is not there in the next test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in [*sys.modules.items()]:
        if str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture(scope="module")
def own_programs():
    """An evaluation reads the task's own programs and not MinRL's, which takes most of the time of a small one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minrl.tasks.programs.PACKAGE", Path("nowhere/minrl"))
        yield


@pytest.fixture(scope="session")
def evaluated_place(tmp_path_factory):
    """A folder with the two models and the tasks of tests/evaluated.py."""
    from tests import evaluated

    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "evaluated_tasks.py").write_text(evaluated.TASKS)
    for seed in (0, 1):
        save_small_model(folder / f"model{seed}", evaluated.tokenizer(), 64, 1, seed)
    return folder


@pytest.fixture
def said():
    """What is said in the test, a line each."""
    lines = []
    sink = logger.add(lines.append, format="{message}")
    yield lines
    logger.remove(sink)


@pytest.fixture
def workers():
    from minrl.rewards.workers import Workers

    pool = Workers(2, deadline_s=120.0)
    yield pool
    pool.close()


def sevens_task():
    from minrl.tasks import Task
    from minrl.tasks.task import split
    from tests.say_sevens import count_sevens

    examples = [Example(f"numbers {n}", f"numbers {n}", {"number": n}, {"odd": str(n % 2)}) for n in range(16)]
    return Task(split(examples, 0.5), count_sevens, cheap=True)


@pytest.fixture
def sevens():
    """Say nothing but 7: learnable in a few steps by any policy."""
    return sevens_task()


@pytest.fixture(scope="session")
def sevens_base(tmp_path_factory):
    """A run that has made the base model of `SAY_SEVENS`, and nothing else."""
    from tests.runs import Run
    from tests.say_sevens import SAY_SEVENS

    flags = "--device cpu --threads 1 --quiet --preflight-only --prompts-per-step 2 --group-size 2"
    run = Run(tmp_path_factory.mktemp("base"), [*SAY_SEVENS, *flags.split()])
    assert run.here() == 0
    return run


@contextmanager
def named_sevens(task):
    """The task is known by its name."""
    from minrl.tasks import BUILT_IN, TASK_DEFINITIONS

    with patch.dict(TASK_DEFINITIONS, sevens=task), patch.dict(BUILT_IN, sevens=task):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory, words):
    """The folder of the run of `SMALL_RUN` and of the model that it begins with; its task is known by name."""
    from minrl.__main__ import main
    from minrl.models.loading import word_tokenizer

    folder = tmp_path_factory.mktemp("finished")
    save_small_model(folder / "model", word_tokenizer(words), 64)
    with named_sevens(sevens_task()):
        with chdir(folder):
            assert main(["train", *SMALL_RUN]) == 0
        yield folder


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    """The working directory: a folder with the model of `finished`."""
    shutil.copytree(finished / "model", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(finished, place):
    """The working directory: a folder with the model and the run of `finished`, as if it had been made here."""
    for name in ("runs", "checkpoints"):
        shutil.copytree(finished / name, place / name)
    return place


@pytest.fixture
def sevens_model(policy, sevens, tmp_path):
    """The folder of the policy as a model; `sevens` is a task that is known by name."""
    from minrl.run.checkpoint import save_policy

    save_policy(policy, tmp_path / "model")
    with named_sevens(sevens):
        yield str(tmp_path / "model")


def rollout_of(prompt, sampled, **changes):
    """A single-turn rollout of the prompt and the sampled ids."""
    values = {
        "ids": prompt + sampled,
        "loss_mask": [False] * len(prompt) + [True] * len(sampled),
        "rollout_logprobs": [0.0] * len(prompt) + [-1.0] * len(sampled),
        "turns": [(len(prompt), len(prompt) + len(sampled))],
        "prompt_length": len(prompt),
        "example_id": "example",
        "group": 0,
        "sample": 0,
        "role": SOLO,
        "seed": 0,
        "weight_version": 0,
        "reward": Reward(1.0),
    }
    return Rollout(**{**values, **changes})


@pytest.fixture
def make_rollout():
    return rollout_of


def play_through(play, *said, work=lambda job: job.function(*job.arguments)):
    """The turns that a play shows a policy that says these texts; `work` does its jobs."""
    shown, said = [], list(said)
    play.advance(None)
    while play.pending is not None:
        if isinstance(play.pending, Turn):
            shown.append(play.pending)
            play.advance(said.pop(0))
        else:
            play.advance(work(play.pending))
    assert not said and play.failure is None, play.failure
    return shown


@pytest.fixture(scope="session", autouse=True)
def _each_shape_is_verified_once():
    """A run verifies its model. Those of the tests' runs are Qwen3's with few shapes: each is verified by the first run
    that has it, as a tenth of a small run is this. The tests of verifying call it by itself.
    """
    if "minrl.run.setup" not in sys.modules:
        yield
        return
    from minrl.models.scoring import set_method
    from minrl.run import setup

    usual, found = setup.verify, {}

    def verify(model, in_bfloat16):
        finite = all(bool(weights.isfinite().all()) for weights in model.parameters())
        if type(model).__name__ != "Qwen3ForCausalLM" or not finite:
            return usual(model, in_bfloat16)
        shape = (model.config.to_json_string(), model.dtype, model.device)
        if shape not in found:
            found[shape] = usual(model, in_bfloat16)
        set_method(model, found[shape].method)
        return found[shape]

    with patch.object(setup, "verify", verify):
        yield


@pytest.fixture(autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)
