"""Folders of models and of runs, broken in every way: one line says which file and what to do, and nothing is lost."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minrl.__main__ import main
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.tasks import TASK_DEFINITIONS, Task, TaskDefinition
from minrl.tasks.task import split
from minrl.types import Example
from tests.conftest import CPU
from tests.say_sevens import count_sevens
from tests.wrong_uses import TINY, refused  # noqa: F401 - a fixture

NAME = "sevens-grpo-seed0"
START = [*["--task", "sevens", "--model-id", "model"], *TINY.split()]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """None."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, processes, words):
    """The folder of a model and of a run of one step that began with it."""
    folder = tmp_path_factory.mktemp("finished")
    examples = [Example(f"numbers {n}", f"numbers {n}", {"number": n}) for n in range(16)]
    task = Task(split(examples, 0.5), count_sevens, cheap=True)
    tokenizer = word_tokenizer(words)
    save_policy(as_policy(small_qwen3(tokenizer, 64, 2, 2, 0), tokenizer, CPU, processes), folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASK_DEFINITIONS, "sevens", TaskDefinition(NoOptions, lambda options, path: task))
        with pytest.MonkeyPatch.context() as there:
            there.chdir(folder)
            assert main(["train", *START, "--run-name", NAME]) == 0
        yield folder


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    """The working directory: a folder with the model and the run, as if both had been made here."""
    for name in ("model", "runs", "checkpoints"):
        shutil.copytree(finished / name, tmp_path / name)
    for path in (*tmp_path.glob("runs/*/*.json"), *tmp_path.glob("checkpoints/*/run.json")):
        path.write_text(path.read_text().replace(str(finished), str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=1))


def weights(model, **changes):
    file = model / "model.safetensors"
    save_file({**load_file(file), **changes}, file, {"format": "pt"})


def without(model, *names):
    for name in names:
        (model / name).unlink()


def adapter(model, base="/nowhere/base", weights=None):
    for path in model.iterdir():
        path.unlink()
    (model / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}))
    if weights is not None:
        (model / "adapter_model.safetensors").write_bytes(weights)


def pickled(model, content=b"no pickle"):
    without(model, "model.safetensors")
    (model / "pytorch_model.bin").write_bytes(content)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
NO_MODEL = "is not a model folder that transformers can load"

MODELS = {
    "empty": (lambda m: [path.unlink() for path in m.iterdir()], NO_MODEL),
    "config cut": (lambda m: cut(m / "config.json"), NO_MODEL),
    "config is a list": (lambda m: (m / "config.json").write_text("[]"), NO_MODEL),
    "config of an encoder": (
        lambda m: edit(m / "config.json", model_type="vit"),
        "a model of type 'vit', which has no",
    ),
    "no tokenizer": (lambda m: without(m, "tokenizer.json", "tokenizer_config.json"), NO_MODEL),
    "tokenizer a pointer of git-lfs": (lambda m: (m / "tokenizer.json").write_text(POINTER), NO_MODEL),
    "no weights": (lambda m: without(m, "model.safetensors"), NO_MODEL),
    "weights cut": (lambda m: cut(m / "model.safetensors"), NO_MODEL),
    "weights of another width": (lambda m: edit(m / "config.json", hidden_size=128), "weights of its own shape"),
    "weights not finite": (lambda m: weights(m, **{"model.norm.weight": torch.full((64,), torch.nan)}), "not finite"),
    "weights in a damaged pickle": (pickled, NO_MODEL),
    "adapter without its base": (adapter, "/nowhere/base"),
    "adapter whose config is cut": (lambda m: (adapter(m), cut(m / "adapter_config.json")), "adapter_config.json"),
    "adapter without weights": (lambda m: adapter(m, "base"), "adapter_model.safetensors"),
    "a file": (lambda m: (shutil.rmtree(m), m.write_bytes(b"GGUF")), "is damaged or incomplete"),
}
"""What happened to the model's folder, and what its one line must hold beside the folder's name."""


@pytest.mark.parametrize("case", MODELS)
def test_a_broken_model_is_one_line(refused, place, case):  # noqa: F811
    shutil.copytree(place / "model", place / "base")
    shutil.rmtree(place / "runs")
    shutil.rmtree(place / "checkpoints")
    breaking, *words = MODELS[case]
    breaking(place / "model")
    refused("train", START, str(place / "model"), *words)


RUN, KEPT = Path("runs") / NAME, Path("checkpoints") / NAME
CONFIG, METRICS, STEP = RUN / "config.json", RUN / "metrics.jsonl", KEPT / "step_000001"
LATEST, NAMED = "--resume latest", f"--resume {RUN}"


def set_to(**changes):
    """Edits settings of the run."""
    return lambda: edit(CONFIG, config={**json.loads(CONFIG.read_text())["config"], **changes})


def line(text):
    return lambda: METRICS.open("a").write(text + "\n")


STATES = [
    ("config cut", lambda: cut(CONFIG), "train", LATEST, "finds no run in"),
    ("config empty", lambda: CONFIG.write_text(""), "train", NAMED, "config.json is damaged"),
    ("config not UTF-8", lambda: CONFIG.write_bytes(b"\xff\xfe"), "train", NAMED, "config.json is damaged"),
    ("config with null", lambda: edit(CONFIG, config=None), "train", NAMED, "config.json", "config"),
    ("config without its name", lambda: edit(CONFIG, minrl_run=None), "train", NAMED, "config.json"),
    ("config of a newer version", set_to(tomorrow=1), "train", NAMED, "unknown setting 'tomorrow'"),
    ("config edited to a wrong type", set_to(steps="many"), "train", NAMED, "steps must be an integer, got 'many'"),
    ("config edited out of range", set_to(seed=-1), "train", NAMED, "seed must be at least 0 and below 2^63, got -1"),
    ("config edited to another task", set_to(task="chess"), "train", NAMED, "no task 'chess'"),
    ("config edited to a task that is gone", set_to(task="/gone.py:task"), "train", NAMED, "no file /gone.py"),
    ("the folder above is named", lambda: None, "train", "--resume runs", "no run and no checkpoint there"),
    ("a file is named", lambda: None, "train", f"--resume {CONFIG}", "no run and no checkpoint there"),
    ("a step that is not there", lambda: None, "train", f"--resume {KEPT}/step_000009", "no run and no checkpoint"),
    ("another program's", lambda: None, "sft", NAMED, "is not one of minrl sft", "minrl train --resume"),
    ("another program's latest", lambda: None, "expert-iteration", LATEST, "finds no run in"),
    ("checkpoints a file", lambda: (shutil.rmtree(KEPT), KEPT.touch()), "train", NAMED, "--checkpoints-dir"),
    ("no state", lambda: (STEP / "trainer.json").unlink(), "train", NAMED, "no readable trainer.json"),
    ("no optimizer", lambda: (STEP / "optimizer.safetensors").unlink(), "train", NAMED, "optimizer.safetensors is mis"),
    ("trainer.json cut", lambda: cut(STEP / "trainer.json"), "train", NAMED, "no readable trainer.json"),
    ("metrics of other things", line("5"), "report", NAME, "metrics.jsonl"),
    ("metrics without a step", line('{"loss": 1}'), "report", NAME, "metrics.jsonl", "step"),
    ("config a list", lambda: CONFIG.write_text("[]"), "report", NAME, "config.json"),
    ("config cut for a page", lambda: cut(CONFIG), "rollouts", NAME, "config.json"),
    ("checkpoints are gone", lambda: shutil.rmtree(KEPT), "evaluate", f"--checkpoint {NAME}", "are not in"),
    ("checkpoints are damaged", lambda: cut(STEP / "model.safetensors"), "evaluate", f"--checkpoint {STEP}", "damaged"),
    ("config edited, evaluated", set_to(max_tokens="many"), "evaluate", f"--checkpoint {NAME} --quiet", "max_tokens"),
]
"""What happened to a run, what is called, and what its one line must hold."""


@pytest.mark.parametrize(("what", "program", "flags", "said"), [(w, *more[:2], more[2:]) for _, w, *more in STATES],
                         ids=[name for name, *_ in STATES])  # fmt: skip
def test_a_broken_run_is_one_line_and_stays_as_it_is(refused, place, what, program, flags, said):  # noqa: F811
    what()
    refused(program, flags.split(), *said)


def test_notes_that_are_damaged_stop_nobody(place):
    (KEPT / "run.json").write_text("[1]")
    assert main(["train", "--resume", str(STEP)]) == 0
