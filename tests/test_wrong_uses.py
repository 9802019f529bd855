"""Wrong uses of every program, in this process: each ends in one line that says what was given and how to fix it, and
what was there stays as it was.
"""

import json
import shlex
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minrl.__main__ import PROGRAMS, main
from minrl.run import base_model, setup
from minrl.sft import filter
from minrl.tasks import mcp, reasoning_gym, verifiers
from minrl.utils.cli import run_main
from tests.killing import signalled_at

for _, program, _ in PROGRAMS.values():  # which says that it loads, the first time
    import_module(program)

TINY = """--device cpu --threads 1 --quiet --no-preflight --steps 1 --prompts-per-step 2 --group-size 2 --max-tokens 4
    --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1 --save-every 0"""
START = f"--task sevens --model-id model {TINY}"
ROWS = "--task countdown --reward-workers 1"


def listing(folder):
    """Each file with its content, each link with its target, each folder; without what Python compiles."""
    found = {}
    for path in (path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts):
        found[path.relative_to(folder)] = (
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
    return found


@pytest.fixture(autouse=True)
def _streams(monkeypatch):
    """Put back when the test is over."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))


@pytest.fixture
def refused(capfd, monkeypatch):
    """Runs a program where it must refuse: no model is made for minutes where it does not."""
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
    # several tasks
    ("train", "--task :2,hanoi", "task must have a name before the weight, got ':2'"),
    ("train", "--task math,gsm8k --data-path rows.jsonl", "data_path is of one task", "such as --gsm8k.data-path"),
    ("expert-iteration", "--task countdown,hanoi", "train.py alone takes several tasks in one run"),
    # values, and flags that contradict each other or need another
    ("train", "--task= --model-id model", "--task is empty", "name a task"),
    ("train", "--hanoi.max-disks 5", "hanoi, which is neither trained nor evaluated here"),
    ("train", "--opponent x", "--opponent has nobody to play", "leave it out"),
    ("train", "--data-path nowhere.jsonl", "countdown makes its own problems and takes no --data-path"),
    ("evaluate", "--checkpoint x --temperature 0 --samples 2", "temperature 0 says the same again"),
    ("filter", "--data rows.jsonl --output out --task tictactoe", "tictactoe is played over several turns"),
    # files
    ("train", "--task nowhere.py:task", "--task", "no file", "/nowhere.py"),
    ("train", "--task empty.py", "what is named is no task", "empty.py has none"),
    ("train", "--runs-dir notes.txt", "notes.txt", "a file is where a folder should be"),
    ("evaluate", "--completions nowhere.jsonl", "cannot read the completions in nowhere.jsonl", "No such file"),
    ("evaluate", "--completions rows.jsonl --output .", "cannot write .: it is a folder; name a file"),
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
CONFIG, METRICS, STEP = RUN / "config.json", RUN / "metrics.jsonl", KEPT / "step_000003"
LATEST, NAMED = "--resume latest", f"--resume {RUN}"
NO_MODEL = "is not a model folder that transformers can load"
WEIGHTS = MODEL / "model.safetensors"


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=1))


def emptied(**files):
    """The folder of the model without what it had, and with these files."""
    for path in MODEL.iterdir():
        path.unlink()
    for name, text in files.items():
        (MODEL / f"{name}.json").write_text(text)


def adapter(base):
    shutil.copytree(MODEL, "base")
    emptied(adapter_config=json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}))


def rewrite(change):
    """The weights of the model are what the function makes of them."""
    save_file(change(load_file(WEIGHTS)), WEIGHTS, {"format": "pt"})


def set_to(**changes):
    """Edits settings of the run."""
    return lambda: edit(CONFIG, config={**json.loads(CONFIG.read_text())["config"], **changes})


MODELS = {
    "empty": (emptied, NO_MODEL),
    "config of an encoder": (lambda: edit(MODEL / "config.json", model_type="vit"), "a model of type 'vit'"),
    "no tokenizer": (lambda: [path.unlink() for path in MODEL.glob("tokenizer*")], NO_MODEL),
    "no weights": (WEIGHTS.unlink, NO_MODEL),
    "weights of another width": (lambda: edit(MODEL / "config.json", hidden_size=128), "weights of its own shape"),
    "weights cut": (lambda: cut(WEIGHTS), NO_MODEL),
    "weights of a part": (
        lambda: rewrite(lambda weights: {name: weights[name] for name in weights if "mlp" not in name}),
        "lacks 6 weights of its own shape, model.layers.0.mlp.down_proj.weight among",
    ),
    "weights not finite": (
        lambda: rewrite(lambda weights: {**weights, "model.norm.weight": torch.full((64,), torch.nan)}),
        "not finite",
    ),
    "adapter without its base": (lambda: adapter("/nowhere/base"), "/nowhere/base"),
}
STATES = {
    "config cut": (lambda: cut(CONFIG), "train", LATEST, "finds no run in"),
    "config of a newer version": (set_to(tomorrow=1), "train", NAMED, "unknown setting 'tomorrow'"),
    "config edited to a task that is gone": (set_to(task="/gone.py:task"), "train", NAMED, "no file /gone.py"),
    "the folder above is named": (None, "train", "--resume runs", "no run runs", "did you mean run?"),
    "a step that is not there": (None, "train", f"--resume {KEPT}/step_000009", "is damaged or not there"),
    "another program's": (None, "sft", NAMED, "is not one of minrl sft", "minrl train --resume"),
    "checkpoints are damaged": (lambda: cut(STEP / WEIGHTS.name), "evaluate", f"--checkpoint {STEP}", "damaged"),
    "runs is below a file": (Path("new").touch, "train", f"{START} --runs-dir new/deep", "a file is where a folder"),
    **{f"model: {case}": (what, "train", START, "/model", word) for case, (what, word) in MODELS.items()},
}
"""What happened to the model or the run, what is called, and what its one line must hold."""


@pytest.mark.parametrize("case", STATES)
def test_a_broken_model_or_run_is_one_line_and_stays_as_it_is(refused, run, case):
    prepare, program, flags, *words = STATES[case]
    (prepare or (lambda: None))()
    refused(program, flags, *words)


EXTRAS = {
    "lora": (f"{START} --lora-rank 4", "peft", "make setup EXTRA=lora"),
    "reasoning-gym": (f"{START} --task reasoning_gym/leg_counting", "reasoning_gym", "EXTRA=reasoning-gym"),
    "verifiers": (f"{START} --task verifiers:word-game", "verifiers", "EXTRA=verifiers"),
    "mcp": (f"{START} --tools mcp:server", "mcp", "EXTRA=mcp"),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_that_is_missing_is_one_line(refused, place, monkeypatch, extra):
    flags, module, *words = EXTRAS[extra]
    monkeypatch.setitem(sys.modules, module, None)
    reasoning_gym.library.cache_clear()
    verifiers.load_library.cache_clear()
    mcp.load_library.cache_clear()
    refused("train", flags, *words)


SIGNALS = {
    "while the parts are made": (setup, "make_optimizer", "train", START),
    "while rows are scored": (filter, "score_lines", "filter", f"{ROWS} --data rows.jsonl --output kept"),
}


@pytest.mark.parametrize("case", SIGNALS)
def test_a_signal_ends_a_program_in_one_line_and_leaves_nothing_half_done(run, capfd, monkeypatch, case):
    module, moment, program, flags = SIGNALS[case]
    Path("rows.jsonl").write_text('{"prompt": "1", "response": "2", "completion": "1"}\n')
    before = listing(run)
    with signalled_at(module, moment, 1, signal.SIGTERM), pytest.raises(SystemExit) as ended:
        run_main(main, [program, *flags.split()])
    said = capfd.readouterr().err.splitlines()
    assert ended.value.code == 143 and said[-1] == "interrupted" and "Traceback" not in "".join(said)
    assert listing(run) == before
