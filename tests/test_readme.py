"""The task that docs/tasks.md shows for the embedded base model trains, resumes, scores and learns."""

import json
import re
import sys
from pathlib import Path

import pytest

from minrl.__main__ import main
from minrl.tasks import load_task

ROOT = Path(__file__).parent.parent
SETTINGS = """--run-name beads-grpo-seed0 --device cpu --threads 1 --quiet --prompts-per-step 4 --group-size 8
    --max-tokens 12 --eval-samples 4 --base-steps 60 --base-hidden-size 64 --base-heads 2 
    --reward-workers 1"""
PAGE = (ROOT / "docs" / "tasks.md").read_text()


@pytest.fixture
def beads(tmp_path, monkeypatch):
    """The guide's task for the embedded base model, in a folder of its own."""
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def beads(" in block]
    path = tmp_path / "anywhere" / "beads.py"
    path.parent.mkdir()
    path.write_text(source)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop("beads", None)


def test_the_example_of_a_task_shows_no_held_out_prompt(beads):
    dataset = load_task(f"{beads}:beads").dataset
    assert dataset.train and not {e.prompt for e in dataset.train} & {e.prompt for e in dataset.held_out}


@pytest.mark.slow
def test_the_example_of_a_task_trains_goes_on_and_scores_completions(beads, tmp_path, monkeypatch):
    path = list(sys.path)
    monkeypatch.chdir(beads.parent)
    flags = ["--task", "beads.py:beads", "--beads.most", "4", "--steps", "2"]
    assert main(["train", *flags, *SETTINGS.split()]) == 0
    folder = beads.parent / "runs" / "beads-grpo-seed0"
    config = json.loads((folder / "config.json").read_text())["config"]
    assert config["task"] == f"{beads}:beads"
    assert config["tasks"]["beads"] == {"most": 4}

    # Nothing knows the file any more, and the folder is not the file's: the path in config.json is absolute.
    del sys.modules["beads"]
    monkeypatch.setattr(sys, "path", path)
    folders = ["--runs-dir", str(folder.parent), "--checkpoints-dir", str(beads.parent / "checkpoints")]
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "latest", "--steps", "3", *folders]) == 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward/mean" in line] == [1, 2, 3]
    # One demonstration in four is right, and a base model that learned nothing never is.
    assert sum(line["reward/mean"] for line in lines if "reward/mean" in line) > 0
    assert all(line["reward/unscorable_frac"] == 0 for line in lines if "reward/mean" in line)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["task"], summary["steps"]) == ("beads", 3)

    rows = tmp_path / "mine.jsonl"
    rows.write_text(
        "".join(json.dumps({"completion": text, "red": 2, "blue": 1}) + "\n" for text in ("red red blue", "red"))
    )
    scored = tmp_path / "scored.jsonl"
    flags = ["--task", f"{beads}:beads", "--completions", str(rows), "--output", str(scored), "--reward-workers", "1"]
    assert main(["evaluate", *flags]) == 0
    assert [json.loads(line)["reward"] for line in scored.read_text().splitlines()] == [1.0, 0.0]
