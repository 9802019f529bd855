"""The same numbers in W&B, each step once; offline, with the real package."""

import json
import struct
import time
from importlib.util import find_spec

import pytest

from minrl.tracking.samples import COLUMNS
from minrl.tracking.writers import Board

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: make setup EXTRA=wandb")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)


def records(folder):
    """The records of a finished run, which W&B's own process may still be writing."""
    deadline = time.monotonic() + 60
    while not any(record.HasField("exit") for record in written(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return list(written(folder))


def written(folder):
    """What the offline run's file holds: LevelDB's log format after a header of 7 bytes, in which a record is cut into
    pieces (checksum 4 bytes, length 2, kind 1: whole, first, middle, last) that never cross a block of 32 KiB.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, pieces = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        pieces = (b"" if kind in (1, 2) else pieces) + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(pieces)


def history(folder):
    """Each step's values, as they would be uploaded."""
    for record in records(folder):
        if record.HasField("history"):
            row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
            yield record.history.step.num, {key: row[key] for key in row if not key.startswith("_")}


def write(folder, steps, earlier=(), cut_after=None, **settings):
    folder.mkdir(exist_ok=True)
    board = Board("wandb", folder, ["sevens"], settings, cut_after, earlier)
    for step in steps:
        board.scalars(step, {"reward/mean": step / 4})
    board.close(0, finished=True)


@pytest.mark.slow
def test_a_run_that_goes_on_has_each_step_once_and_its_name_settings_and_identity(tmp_path):
    folder = tmp_path / "sevens-grpo-seed0"
    write(folder, [0, 1, 2, 3, 4])
    identity = (folder / "wandb_id.txt").read_text()
    earlier = [{"step": n, "reward/mean": n / 4} for n in (0, 1, 2)]  # those of metrics.jsonl up to the checkpoint
    write(folder, [3, 4, 5], earlier, cut_after=2, learning_rate=3e-4)
    assert list(history(folder)) == [(n, {"reward/mean": n / 4}) for n in range(6)]
    (run,) = [record.run for record in records(folder) if record.HasField("run")]
    assert (run.project, run.display_name, run.run_id) == ("minrl", "sevens-grpo-seed0", identity)
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["learning_rate"] == 3e-4


def test_samples_are_a_table_of_their_step(tmp_path):
    board = Board("wandb", tmp_path, ["sevens"], {}, None, [])
    rows = [("3 + 4", "sampled", "7 <b>\n", 1.0, True, "short 0.5"), ("3 + 4", "sampled", "", None, None, "")]
    board.samples(2, "samples/train", rows)
    board.scalars(2, {"reward/mean": 0.5})
    board.close(2, finished=False)
    ((step, values),) = history(tmp_path)  # the table and the numbers of a step are one row
    assert step == 2 and values["reward/mean"] == 0.5 and values["samples/train/nrows"] == 2
    (path,) = tmp_path.glob(f"wandb/offline-run-*/files/{values['samples/train/path']}")
    assert json.loads(path.read_text()) == {"columns": list(COLUMNS), "data": list(map(list, rows))}
