"""The same numbers in trackio, each step once, with the real package in a folder of its own."""

from importlib.util import find_spec

import pytest

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


def test_a_run_that_goes_on_has_each_step_once_and_another_of_its_name_is_another(tmp_path):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    def logged():
        runs = list(trackio.Api().runs("minrl"))
        return runs, [SQLiteStorage.get_logs("minrl", run.name, run_id=run.id) for run in runs]

    folder = tmp_path / "sevens-grpo-seed0"
    write(folder, [0, 1, 2, 3])
    earlier = [{"step": n, "reward/mean": n / 4} for n in range(3)]  # those of metrics.jsonl up to the checkpoint
    write(folder, [3, 4, 5], cut_after=2, earlier=earlier, learning_rate=3e-4)
    (run,), (values,) = logged()
    assert [(one["step"], one["reward/mean"]) for one in values] == [(n, n / 4) for n in range(6)]
    assert run.name == "sevens-grpo-seed0" and run.config["learning_rate"] == 3e-4
    write(folder, [0, 1])
    assert [len(values) for values in logged()[1]] == [6, 2]
