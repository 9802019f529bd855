"""Wrong uses of every program, in this process: each ends in one line that says what was given and how to fix it, and
what was there stays as it was.
"""

import json
import logging
import shlex
import signal
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minrl.__main__ import PROGRAMS, main
from minrl.run import base_model, setup
from minrl.utils.cli import run_main
from tests.killing import signalled_at

for _, program, _ in PROGRAMS.values():  # which says that it loads, the first time
    import_module(program)

TINY = """--device cpu --threads 1 --quiet --no-preflight --steps 1 --prompts-per-step 2 --group-size 2 --max-tokens 4
    --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1 --save-every 0"""
START = f"--task sevens --model-id model {TINY}"


def listing(folder):
    """Each file with its content, each folder, without what Python keeps of what it compiled."""
    found = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in found}


@pytest.fixture(autouse=True)
def _streams(monkeypatch):
    """Put back when the test is over."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))


@pytest.fixture
def refused(capfd, monkeypatch):
    """Runs a program where it must refuse: no model is made for minutes where it does not."""
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [logging.NullHandler()])  # its own table
    monkeypatch.setattr(base_model, "make_base_model", lambda *_, **__: pytest.fail("this was not refused"))

    def refused(program, flags, *words):
        before = listing(Path())
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_main(main, [program, *shlex.split(flags)])
        said = capfd.readouterr().err
        said = said.removeprefix(f"reading {flags}\n" if program == "report" else "")
        assert ended.value.code == 2, said
        assert said.startswith("error: ") and said.count("\n") == 1, said
        assert [word for word in words if word not in said] == [], said
        assert listing(Path()) == before

    return refused


FLAGS = [
    ("expert-iteration", "--task countdown,hanoi", "train.py alone takes several tasks in one run"),
    ("train", "--hanoi.max-disks 5", "hanoi, which is neither trained nor evaluated here"),
    ("train", "--data-path nowhere.jsonl", "countdown makes its own problems and takes no --data-path"),
    ("evaluate", "--checkpoint x --temperature 0 --samples 2", "temperature 0 says the same again"),
    ("filter", "--data rows.jsonl --output out --task tictactoe", "tictactoe is played over several turns"),
    ("train", "--task empty.py", "what is named is no task", "empty.py has none"),
    ("train", "--runs-dir notes.txt", "notes.txt", "a file is where a folder should be"),
    ("report", "notes.txt", "no run notes.txt", "holds a config.json"),
]  # fmt: skip
"""A program, its flags, and what its one line must hold. More are in test_cli.py and test_config.py."""


@pytest.mark.parametrize("case", FLAGS, ids=lambda case: f"{case[0]} {case[1]}")
def test_a_wrong_flag_value_or_file_is_one_line(refused, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("milk, bread\n")
    Path("rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    Path("empty.py").touch()
    program, flags, *words = case
    refused(program, flags if program in ("report", "filter") else f"{flags} --quiet", *words)


MODEL, RUN, KEPT = Path("model"), Path("runs/run"), Path("checkpoints/run")
CONFIG, STEP = RUN / "config.json", KEPT / "step_000003"
LATEST, NAMED = "--resume latest", f"--resume {RUN}"
NO_MODEL = "is not a model folder that transformers can load"
WEIGHTS = MODEL / "model.safetensors"


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def weights_with_nan():
    save_file({**load_file(WEIGHTS), "model.norm.weight": torch.full((64,), torch.nan)}, WEIGHTS, {"format": "pt"})


MODELS = {
    "config of an encoder": (lambda: edit(MODEL / "config.json", model_type="vit"), "a model of type 'vit'"),
    "no tokenizer": (lambda: [path.unlink() for path in MODEL.glob("tokenizer*")], NO_MODEL),
    "weights of another width": (lambda: edit(MODEL / "config.json", hidden_size=128), "weights of its own shape"),
    "weights not finite": (weights_with_nan, "not finite"),
}
STATES = {
    "config cut": (lambda: cut(CONFIG), "train", LATEST, "finds no run in"),
    "another program's": (list, "sft", NAMED, "is not one of minrl sft", "minrl train --resume"),
    "other settings": (
        list,
        "train",
        f"{NAMED} --seed 1 --chat-template chatml",
        "keeps its config and only --steps, --stop-at and --patience may change, got --seed 1 (it has 0); --chat-templ",
        "start a new run from its weights: model_id='run', --model-id run",
    ),
    "checkpoints are damaged": (lambda: cut(STEP / WEIGHTS.name), "evaluate", f"--checkpoint {STEP}", "damaged"),
    **{f"model: {case}": (what, "train", START, "/model", word) for case, (what, word) in MODELS.items()},
}
"""What happened to the model or the run, what is called, and what its one line must hold."""


@pytest.mark.parametrize("case", STATES)
def test_a_broken_model_or_run_is_one_line_and_stays_as_it_is(refused, run, case):
    prepare, program, flags, *words = STATES[case]
    prepare()
    refused(program, flags, *words)


def test_an_extra_that_is_missing_is_one_line(refused, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    refused("train", f"{START} --lora-rank 4", "peft", "make setup EXTRA=lora")


def test_a_signal_while_the_parts_are_made_ends_a_program_in_one_line_and_leaves_nothing(run, capfd):
    before = listing(run)
    with signalled_at(setup, "make_optimizer", 1, signal.SIGTERM), pytest.raises(SystemExit) as ended:
        run_main(main, ["train", *START.split()])
    said = capfd.readouterr().err.splitlines()
    assert ended.value.code == 143 and said[-1] == "interrupted" and "Traceback" not in "".join(said)
    assert listing(run) == before
