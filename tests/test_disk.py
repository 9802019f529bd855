"""A disk that is full, a folder that cannot be written: found before step 1, else one line, and the run can go on."""

import json
import shutil

import pytest

from minrl.__main__ import main
from minrl.config import OptimizerConfig
from minrl.optimizer import make_optimizer
from minrl.run.checkpoint import damage, newest_complete, save_checkpoint
from minrl.types import TrainState, UserError
from minrl.utils.files import require_writable
from tests.disks import files_up_to
from tests.test_stopping import FLAGS, NAME, ending

LONG = json.dumps({"note": "x" * 2048})  # more than a page
STEPS = ["--steps", "2", "--save-every", "1", "--chat-template-options", LONG]


@pytest.fixture
def start(sevens_model):
    """Runs train.py's main on `sevens` with a tiny model, in these two folders; the exit status."""

    def run(runs, kept, *more):
        flags = ["--task", "sevens", "--model-id", sevens_model, *FLAGS.split(), *STEPS]
        places = ["--runs-dir", str(runs), "--checkpoints-dir", str(kept)]
        return main(["train", *(flags if "--resume" not in more else []), *places, *more])

    return run


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    require_writable(tmp_path / "not" / "there" / "yet")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with files_up_to(100), pytest.raises(UserError, match=f"cannot write {tmp_path}: File too large"):
        require_writable(tmp_path)  # as on a disk that is full or read-only
    for folder in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UserError, match=f"cannot write {tmp_path}/file.*: a file is where a folder should be"):
            require_writable(folder)


def test_a_run_that_could_not_be_written_down_does_not_load_its_model(start, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    shutil.rmtree(tmp_path / "model")
    for places in ((tmp_path / "file", tmp_path / "kept"), (tmp_path / "runs", tmp_path / "file")):
        with pytest.raises((UserError, OSError), match=str(tmp_path / "file")):
            start(*places)
    pytest.importorskip("wandb")  # to whose server nobody is logged in
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"--logger wandb finds no key of W&B: log in with `wandb login`"):
        start(tmp_path / "runs", tmp_path / "kept", "--logger", "wandb")


def test_a_save_that_finds_no_room_leaves_the_checkpoint_before_and_nothing_else(policy, tmp_path):
    optimizer = make_optimizer(policy, OptimizerConfig())
    for weight in policy.model.parameters():
        weight.grad = weight * 0
    optimizer.step()
    before = save_checkpoint(tmp_path, policy, optimizer, TrainState(step=1), keep=1)
    # Every file's last byte is missing in turn, the smallest's first: what comes before it in the save is whole.
    for size in sorted({file.stat().st_size for file in before.rglob("*") if file.is_file()} - {0}):
        with files_up_to(size - 1), pytest.raises(UserError) as refused:
            save_checkpoint(tmp_path, policy, optimizer, TrainState(step=2), keep=1)
        assert str(refused.value).startswith(f"cannot write {tmp_path}/.step_000002.tmp")
        assert str(refused.value).endswith(": File too large") and "\n" not in str(refused.value)
        assert list(tmp_path.iterdir()) == [before] and damage(before) is None
    assert save_checkpoint(tmp_path, policy, optimizer, TrainState(step=2), keep=1) == newest_complete(tmp_path)


@pytest.mark.slow
def test_a_run_that_finds_no_room_ends_in_one_line_and_goes_on_when_there_is_some(start, tmp_path, capsys):
    assert start(tmp_path / "whole/runs", tmp_path / "whole/kept") == 0
    whole = ending(tmp_path / "whole")
    # Every file may grow up to the last byte but one of these, in the order in which they are written.
    names = ("config.json", "events*", "model.safetensors", "optimizer.safetensors")
    sizes = [max(path.stat().st_size for path in (tmp_path / "whole").rglob(name)) - 1 for name in names]
    assert sizes == sorted(sizes) and sizes[0] > 4096  # of which it is tried whether they can be written
    capsys.readouterr()
    for number, size in enumerate(sizes):
        folder = tmp_path / str(number)
        places = folder / "runs", folder / "kept"
        with files_up_to(size), pytest.raises(UserError, match=rf"cannot write {folder}/.*: File too large$"):
            start(*places)
        said = capsys.readouterr().err
        assert "Traceback" not in said and "Exception in thread" not in said and "Logging error" not in said
        last = newest_complete(places[1] / NAME)
        assert f"last checkpoint {last or 'none yet'}: python -m minrl train --resume {places[0] / NAME}" in said
        assert not list(places[1].rglob("*.tmp"))
        again = ["--resume", "latest"] if list(places[0].glob("*/config.json")) else []
        assert start(*places, *again) == 0
        assert ending(folder) == whole
