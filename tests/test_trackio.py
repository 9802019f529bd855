"""The same numbers in trackio, each step once, with the real package in a folder of its own."""

from importlib.util import find_spec

import pytest

from minrl.tracking.samples import COLUMNS
from minrl.tracking.writers import Board

pytestmark = pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    from trackio import sqlite_storage, utils

    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    for module in (utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path)


def write(folder, steps, cut_after=None, earlier=(), **settings):
    board = Board("trackio", folder, ["sevens"], settings, cut_after, earlier)
    for step in steps:
        board.scalars(step, {"reward/mean": step / 4})
    board.close(0, finished=True)


def logged():
    """The project's runs, and the values of each in order."""
    import trackio
    from trackio import sqlite_storage

    runs = list(trackio.Api().runs("minrl"))
    return runs, [sqlite_storage.SQLiteStorage.get_logs("minrl", run.name, run_id=run.id) for run in runs]


def test_a_run_that_goes_on_has_each_step_once_and_another_of_its_name_is_another(tmp_path):
    folder = tmp_path / "sevens-grpo-seed0"
    write(folder, [0, 1, 2, 3])
    earlier = [{"step": n, "reward/mean": n / 4} for n in range(3)]  # those of metrics.jsonl up to the checkpoint
    write(folder, [3, 4, 5], cut_after=2, earlier=earlier, learning_rate=3e-4)
    (run,), (values,) = logged()
    assert [(one["step"], one["reward/mean"]) for one in values] == [(n, n / 4) for n in range(6)]
    assert run.name == "sevens-grpo-seed0" and run.config["learning_rate"] == 3e-4
    write(folder, [0, 1])
    assert [len(values) for values in logged()[1]] == [6, 2]


def test_samples_are_a_table_of_their_step(tmp_path):
    board = Board("trackio", tmp_path / "run", [], {}, None, [])
    rows = [("3 + 4", "sampled", "7 <b>\n", 1.0, True, "short 0.5"), ("3 + 4", "sampled", "", None, None, "")]
    board.samples(2, "samples/train", rows)
    board.close(2, finished=False)
    _, ((values,),) = logged()
    table = values["samples/train"]
    assert values["step"] == 2 and table["_type"] == "trackio.table"
    assert table["_value"] == [dict(zip(COLUMNS, row, strict=True)) for row in rows]
