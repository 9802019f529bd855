"""Numbers land in TensorBoard, metrics.jsonl and metrics.csv alike, each step once."""

import csv
import gzip
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG
from tensorboard.summary.writer import event_file_writer
from tensorboard.util.tensor_util import make_ndarray

from minrl.run.folder import RunFolder
from minrl.tracking.writers import RunFiles, TensorBoard


@pytest.fixture(autouse=True)
def names_in_order(monkeypatch):
    """Event files of one second and process are named in their order, as those of several processes are."""
    numbers = itertools.count(100_000)
    monkeypatch.setattr(event_file_writer, "_global_uid", SimpleNamespace(get=lambda: next(numbers)))


def events(folder, tag="reward/mean"):
    """Steps and values of a tag, as TensorBoard shows them."""
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, make_ndarray(event.tensor_proto).tolist()) for event in accumulator.Tensors(tag)]


def write(folder, steps, cut_after=None, settings=()):
    """What the logger writes of these steps."""
    files = RunFiles(folder, cut_after)
    board = TensorBoard(folder, ["countdown"], dict(settings), cut_after)
    for step in steps:
        metrics = {"reward/mean": step / 4, "policy/entropy": 2.0 * step}
        files.metrics(step, metrics)
        files.rollouts(step, [{"text": "x"}])
        board.histogram(step, "reward/value", np.array([0.5, float(step)]))
        board.scalars(step, metrics)
    files.flush()
    if steps:  # they are on disk before the file is closed
        assert events(folder)[-1][0] == steps[-1]
    board.close(0, finished=True)


def table_of(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_tag_that_comes_later_has_its_column_and_what_is_not_finite_is_empty(tmp_path):
    files = RunFiles(tmp_path)
    files.metrics(1, {"reward/mean": 1.0, "policy/loss": float("nan")})
    files.flush()
    files.metrics(2, {"reward/mean": float("inf"), "my/own": 0.5})
    files.rollouts(2, [{"parts": {"speed": float("-inf")}, "logprobs": [-1.0, float("nan")]}])
    files.flush()
    assert [(row["reward/mean"], row["my/own"]) for row in table_of(tmp_path)] == [("1.0", ""), ("", "0.5")]
    assert "NaN" not in (text := (tmp_path / "metrics.jsonl").read_text()) and "Infinity" not in text
    assert RunFolder(tmp_path).metrics == [{"step": 1, "reward/mean": 1.0}, {"step": 2, "my/own": 0.5}]
    with gzip.open(tmp_path / "rollouts/step_000002.jsonl.gz", "rt") as file:
        rollout = json.loads(file.read())
    assert rollout["parts"] == {"speed": None} and rollout["logprobs"] == [-1.0, None]


@pytest.mark.parametrize("cut_after", [-1, 2])
def test_the_same_numbers_are_in_all_files_and_what_lies_beyond_the_checkpoint_is_cut_away(tmp_path, cut_after):
    write(tmp_path, range(5))
    samples, others = tmp_path / "samples", ("rollouts/step_notes.txt", "rollouts/step_000009.txt")
    samples.mkdir()
    for number in range(5):
        (samples / f"round_{number:03d}.jsonl").write_text("{}\n")  # of expert iteration
    for name in others:
        (tmp_path / name).touch()  # the user's
    write(tmp_path, [cut_after + 1, cut_after + 2], cut_after)
    steps = list(range(cut_after + 3))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": n, "reward/mean": n / 4, "policy/entropy": 2.0 * n} for n in steps]
    rows = [{tag: float(value) for tag, value in row.items()} for row in table_of(tmp_path)]
    assert rows == lines and events(tmp_path) == [(n, n / 4) for n in steps]
    assert events(tmp_path, "policy/entropy") == [(n, 2.0 * n) for n in steps]
    assert sorted(path.name[:11] for path in (tmp_path / "rollouts").glob("*.gz")) == [f"step_{n:06d}" for n in steps]
    assert sorted(path.name for path in samples.iterdir()) == [f"round_{n:03d}.jsonl" for n in range(cut_after + 1)]
    assert all((tmp_path / name).exists() for name in others)
    assert [step for step, _ in events(tmp_path, "reward/value")] == steps


@pytest.mark.parametrize("torn", [0, 39, 200])
def test_wherever_a_kill_tore_the_files_each_step_is_there_once(tmp_path, torn):
    write(tmp_path, [1, 2])
    (path,), metrics = sorted(tmp_path.glob("events*")), tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - torn])
    metrics.write_bytes(metrics.read_bytes()[: -1 - torn % 40])
    write(tmp_path, [2, 3], cut_after=1)
    assert [line["step"] for line in RunFolder(tmp_path).metrics] == [1, 2, 3]
    assert [step for step, _ in events(tmp_path, "policy/entropy")][-2:] == [2, 3]


def test_steps_that_were_lost_from_the_metrics_are_reported_at_a_resume(tmp_path, said):
    write(tmp_path, [1, 4, 5, 6])
    write(tmp_path, [6], cut_after=5)
    assert f"{tmp_path}/metrics.jsonl has no line of step 2, 3\n" in said


def summaries(folder, tag):
    """The values of a tag in the event files, in order."""
    for path in sorted(folder.glob("events*")):
        for data in RawEventFileLoader(str(path)).Load():
            yield from (value for value in Event.FromString(data).summary.value if value.tag == tag)


def test_tensorboard_opens_on_the_four_curves_that_matter(tmp_path):
    TensorBoard(tmp_path, ["countdown"], {}, None).close(1, finished=True)
    (value,) = summaries(tmp_path, CONFIG_SUMMARY_TAG)
    first, *others = Layout.FromString(value.tensor.string_val[0]).category
    tags = [list(chart.multiline.tag) for chart in first.chart]
    assert tags[:2] == [["^eval/.*/pass@1$"], ["^reward/mean$"]] and "^rollout/limit_frac$" in tags[2]
    (series,) = others[-1].chart[0].margin.series
    bounds = [f"eval/countdown/pass@1{end}" for end in ("", "_low", "_high")]
    assert [series.value, series.lower, series.upper] == bounds
