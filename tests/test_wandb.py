"""The same numbers in W&B, each step once; offline, with the real package."""

import builtins
import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("wandb")

from wandb.proto.wandb_internal_pb2 import Record

from minrl.record.metrics import LOGGERS, MetricsLog
from minrl.record.wandb import require_wandb
from minrl.types import UserError

ROOT = Path(__file__).parent.parent


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
    rows = []
    for record in records(folder):
        if record.HasField("history"):
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            rows.append((record.history.step.num, {key: row[key] for key in row if not key.startswith("_")}))
    return rows


def write(folder, steps, **options):
    log = MetricsLog(folder, logger="wandb", tasks=["sevens"], **options)
    for step in steps:
        log.log(step, {"reward/mean": step / 4})
    log.close(finished=True)


@pytest.mark.slow
def test_a_run_lands_in_wandb_and_in_tensorboard(tmp_path):
    folder = tmp_path / "sevens-grpo-seed0"
    write(folder, [0, 1, 2], settings={"learning_rate": 3e-4})
    assert history(folder) == [(n, {"reward/mean": n / 4}) for n in (0, 1, 2)]
    (run,) = [record.run for record in records(folder) if record.HasField("run")]
    assert (run.project, run.display_name) == ("minrl", "sevens-grpo-seed0")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["learning_rate"] == 3e-4
    assert list(folder.glob("events*")) and (folder / "metrics.jsonl").exists()


def test_a_run_that_goes_on_has_each_step_once(tmp_path):
    write(tmp_path, [0, 1, 2, 3, 4])
    identity = (tmp_path / "wandb_id.txt").read_text()
    write(tmp_path, [3, 4, 5], cut_after=2)
    assert history(tmp_path) == [(n, {"reward/mean": n / 4}) for n in range(6)]
    (run,) = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert run.run_id == identity


def shown(folder):
    """By step and tag, a text's file and a distribution's counts and edges."""
    found = {}
    for step, row in history(folder):
        for tag in (name.removesuffix("/_type") for name in row if name.endswith("/_type")):
            if row[f"{tag}/_type"] == "histogram":
                found[step, tag] = row[f"{tag}/values"], row[f"{tag}/bins"]
            else:
                (path,) = folder.glob(f"wandb/offline-run-*/files/{row[f'{tag}/path']}")
                found[step, tag] = path.read_text()
    return found


def test_samples_and_distributions_of_a_run_that_goes_on_are_not_lost(tmp_path):
    def write_shown(steps, **options):
        log = MetricsLog(tmp_path, logger="wandb", **options)
        for step in steps:
            log.text("samples/train", f"said in step {step}", step)
            log.histograms(step, {"reward/value": np.array([0.0, float(step)])})
            log.log(step, {"reward/mean": 1.0})
        log.close(finished=True)

    write_shown([1, 2, 3])
    with (tmp_path / "wandb_media.jsonl").open("ab") as file:
        file.write(b"\0\xff\n" + b'{"step": 3, "ta')  # what a power failure leaves
    write_shown([3], cut_after=2)
    found = shown(tmp_path)
    assert set(found) == {(n, tag) for n in (1, 2, 3) for tag in ("samples/train", "reward/value_spread")}
    for step in (1, 2, 3):
        assert f"said in step {step}" in found[step, "samples/train"]
        counts, edges = found[step, "reward/value_spread"]
        assert counts == [1, *[0] * 62, 1] and (edges[0], edges[-1]) == (0.0, float(step))
    assert len((tmp_path / "wandb_media.jsonl").read_text().splitlines()) == 6


def test_samples_are_shown_as_text(tmp_path):
    log = MetricsLog(tmp_path, logger="wandb")
    log.text("samples/train", "<script>alert(1)</script>", 1)
    log.log(1, {"reward/mean": 1.0})
    log.close()
    (path,) = tmp_path.glob("wandb/offline-run-*/files/media/html/samples/*.html")
    assert "&lt;script&gt;" in path.read_text() and "<script>" not in path.read_text()


def test_a_missing_package_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--logger wandb needs the package wandb: `make setup EXTRA=wandb`"):
        require_wandb()


def test_a_folder_that_is_called_wandb_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb")
    with pytest.raises(UserError, match="needs the package wandb"):
        require_wandb()


def test_nobody_logged_in_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UserError, match=r"W&B did not begin the run: .*set WANDB_MODE=offline"):
        MetricsLog(tmp_path / "run", logger="wandb")


def test_without_wandb_nothing_of_it_is_imported(tmp_path, monkeypatch):
    imported = builtins.__import__

    def refuse(name, *more):
        assert name.split(".")[0] != "wandb"
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    log = MetricsLog(tmp_path)
    log.log(1, {"reward/mean": 1.0})
    log.close()
    assert set(LOGGERS) == {"tensorboard", "wandb"}


IMPORTS = """
import sys
from pathlib import Path
import numpy as np
from minrl.record.metrics import HISTOGRAMS, LOGGERS, MetricsLog

for logger in sorted(LOGGERS):  # the files of tensorboard are written with either: its own imports come first
    log = MetricsLog(Path(sys.argv[1], logger), logger=logger)
    before = set(sys.modules)
    log.text("samples/train", "**reward 1**", 1)
    log.histograms(1, {tag: np.arange(9.0) for tag in HISTOGRAMS})
    log.log(1, {"reward/mean": 1.0})
    print(logger, *sorted(set(sys.modules) - before))
    log.close()
"""


@pytest.mark.slow
def test_a_step_pays_for_no_import(tmp_path):
    """Neither pandas, which W&B imports with the first text, nor the part of numpy that chooses a number of bars."""
    command = [sys.executable, "-c", IMPORTS, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "tensorboard\nwandb\n"), ended.stdout + ended.stderr
