"""Commands of README and docs run as they are written, with small sizes. test_documents.py parses the others."""

import glob
import json
import random
import shlex

import pytest

from minrl.__main__ import main
from minrl.tasks import load_task
from tests.test_documents import ALL_COMMANDS

SIZES = """--base-steps 1 --base-hidden-size 64 --base-heads 2 --base-layers 1  --device cpu
    --threads 1 --quiet --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1"""
MODEL = f"{SIZES} --model-id checkpoints/base-countdown-*"
TRAINING = "--steps 1 --prompts-per-step 2 --group-size 2 --max-tokens 8 --no-preflight"
ROUNDS = "--rounds 1 --examples-per-round 2 --samples-per-example 2 --max-tokens 8"

HERE = {
    "python train.py --threads 1": f"{SIZES} {TRAINING} --run-name countdown-grpo-seed0",
    "python train.py --resume latest": "--steps 2",
    "python train.py --model-id Qwen/Qwen3-0.6B": f"{MODEL} {TRAINING}",
    "python evaluate.py --task countdown --completions mine.jsonl --output scored.jsonl": "--reward-workers 1",
    "python -m minrl rollouts RUN": "",
    "python -m minrl sft --data rows.jsonl --model-id Qwen/Qwen3-0.6B --learning-rate 1e-5 --max-examples 128": (
        f"{MODEL} --steps 1"
    ),
    "python -m minrl filter --task countdown --data samples.jsonl --output correct.jsonl": "--reward-workers 1",
    "python -m minrl expert-iteration --task countdown --rounds 5": f"{SIZES} {ROUNDS}",
}
"""Commands that are run here, in this order, and what makes them small. The last of two equal flags holds."""


@pytest.fixture
def rows():
    """Training problems of Countdown with their demonstrations, a line each, under every name that a command reads."""
    task = load_task("countdown")
    lines = []
    for example in task.dataset.train[:160]:
        text = task.demonstrations(example, random.Random(0))
        row = {"prompt": example.prompt, "response": text, "completion": text, **example.fields}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def call(command: str) -> int:
    """Run a command of ours in this process."""
    _, *words = [place for one in shlex.split(command) for place in glob.glob(one) or [one]]
    words = ["countdown-grpo-seed0" if word == "RUN" else word for word in words]
    return main(words[2:] if words[0] == "-m" else [words[0].removesuffix(".py"), *words[1:]])


def test_the_commands_are_those_of_the_documents():
    assert HERE.keys() <= {" ".join(command.split()) for _, command in ALL_COMMANDS}


def test_the_commands_run_one_after_another_with_small_sizes(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "rows", "samples"):
        (tmp_path / f"{name}.jsonl").write_text(rows)
    for command, sizes in HERE.items():
        assert call(f"{command} {sizes}") == 0, command
