"""A disk that is full, a folder that cannot be written: found before step 1, else one line, and the run can go on."""

import pytest

from minrl.__main__ import main
from minrl.dataflow import TrainState, UserError
from minrl.optimizer import make_optimizer
from minrl.run.checkpoint import is_whole, newest, save_checkpoint
from tests.conftest import SMALL_RUN
from tests.disks import files_up_to
from tests.parsed import sized


def test_a_save_that_finds_no_room_leaves_the_checkpoint_before_and_nothing_else(policy, tmp_path):
    config = sized(keep_checkpoints=1)
    optimizer = make_optimizer(policy, config)
    for weight in policy.model.parameters():
        weight.grad = weight * 0
    optimizer.step()
    before = save_checkpoint(tmp_path, tmp_path, policy, optimizer, TrainState(step=1), config)
    # Every file's last byte is missing in turn, the smallest's first: what comes before it in the save is whole.
    for size in sorted({file.stat().st_size for file in before.rglob("*") if file.is_file()} - {0}):
        with files_up_to(size - 1), pytest.raises(UserError) as refused:
            save_checkpoint(tmp_path, tmp_path, policy, optimizer, TrainState(step=2), config)
        assert str(refused.value).startswith(f"cannot write {tmp_path}/.step_000002.tmp")
        assert str(refused.value).endswith(": File too large") and "\n" not in str(refused.value)
        assert list(tmp_path.iterdir()) == [before] and is_whole(before)
    after = save_checkpoint(tmp_path, tmp_path, policy, optimizer, TrainState(step=2), config)
    assert after == newest(tmp_path)


def test_a_run_that_could_not_be_written_down_does_not_load_its_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no folder `model`
    (tmp_path / "file").touch()
    for flag in ("--runs-dir", "--checkpoints-dir"):
        with pytest.raises(UserError, match="file/run: a file is where a folder should be"):
            main(["train", *SMALL_RUN, "--task", "countdown", flag, "file"])
