"""The same numbers in W&B, each step once; offline, with the real package."""

import json
from importlib.util import find_spec

import pytest

from minrl.tracking.samples import COLUMNS
from minrl.tracking.writers import Board

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: make setup EXTRA=wandb")


def test_a_run_that_goes_on_is_written_again_with_its_samples_name_settings_and_identity(tmp_path, monkeypatch):
    import wandb

    logged, usual = [], wandb.Run.log

    def log(run, values, step):
        logged.append((step, *values))
        usual(run, values, step=step)

    monkeypatch.setattr(wandb.Run, "log", log)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    folder = tmp_path / "sevens-grpo-seed0"
    (folder / "wandb/offline-run-before").mkdir(parents=True)
    (folder / "wandb_id.txt").write_text("abc123")
    earlier = [{"step": n, "reward/mean": n / 4} for n in (0, 1)]  # those of metrics.jsonl up to the checkpoint
    board = Board("wandb", folder, ["sevens"], {"learning_rate": 3e-4}, 1, earlier)
    rows = [("3 + 4", "sampled", "7 <b>\n", 1.0, True, "short 0.5"), ("3 + 4", "sampled", "", None, None, "")]
    board.samples(2, "samples/train", rows)
    board.scalars(2, {"reward/mean": 0.5})
    run = board._run
    found = run.project, run.name, run.id, run.config["learning_rate"]
    assert found == ("minrl", "sevens-grpo-seed0", "abc123", 3e-4)
    board.close(2, finished=True)
    assert logged == [(0, "reward/mean"), (1, "reward/mean"), (2, "samples/train"), (2, "reward/mean")]
    (path,) = folder.glob("wandb/**/*.table.json")
    assert json.loads(path.read_text()) == {"columns": list(COLUMNS), "data": list(map(list, rows))}
    assert not (folder / "wandb/offline-run-before").exists()
