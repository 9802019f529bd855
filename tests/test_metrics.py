"""Numbers and samples land in TensorBoard, metrics.jsonl and metrics.csv alike, each step once."""

import csv
import html
import itertools
import json
import re
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.summary.writer import event_file_writer
from tensorboard.util.tensor_util import make_ndarray

from minrl.dataflow import SOLO
from minrl.run.folder import RunFolder
from minrl.tracking import writers
from minrl.tracking.samples import sample_rows
from minrl.tracking.writers import RunFiles, TensorBoard
from minrl.utils.files import read_packed


@pytest.fixture(autouse=True)
def names_in_order(monkeypatch):
    """Event files of one second and process are named in their order, so that no board waits for the next second."""
    numbers = itertools.count(100_000)
    monkeypatch.setattr(event_file_writer, "_global_uid", SimpleNamespace(get=lambda: next(numbers)))
    monkeypatch.setattr(writers, "time", SimpleNamespace(time=lambda: 0.0))


def events(folder, tag="reward/mean"):
    """Steps and values of a tag, as TensorBoard shows them."""
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, make_ndarray(event.tensor_proto).tolist()) for event in accumulator.Tensors(tag)]


def line(step=0, prompt="3 + 4", text="7", reward=1.0, **more):
    """A completion as an evaluation has it."""
    asked = {"example_id": prompt, "role": SOLO, "mode": "sampled", "prompt": prompt, "completion": text}
    parts = {"short_*": 0.5} if reward else {}
    return {**asked, "reward": reward, "solved": reward and reward == 1, "parts": parts, **more}


def write(folder, steps, cut_after=None):
    """What the logger writes of these steps."""
    files = RunFiles(folder, cut_after)
    board = TensorBoard(folder, ["countdown"], {}, cut_after)
    for step in steps:
        metrics = {"reward/mean": step / 4, "policy/entropy": 2.0 * step}
        files.metrics(step, metrics)
        files.rollouts(step, [{"text": "x"}])
        files.evaluation(step, [{"completion": "x"}])
        board.samples(step, "samples/train", sample_rows([line(step)]))
        board.scalars(step, metrics)
    files.flush()
    assert events(folder)[-1][0] == steps[-1]  # on disk before the file is closed
    board.close(0, finished=True)


def table_of(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_tag_that_comes_later_has_its_column_and_what_is_not_finite_is_empty(tmp_path):
    files = RunFiles(tmp_path)
    files.metrics(1, {"reward/mean": 1.0, "policy/loss": float("nan")})
    files.flush()
    files.metrics(2, {"reward/mean": float("inf"), "my/own": 0.5})
    files.rollouts(2, [{"logprobs": [-1.0, float("nan"), float("-inf")]}])
    files.flush()
    assert [(row["reward/mean"], row["my/own"]) for row in table_of(tmp_path)] == [("1.0", ""), ("", "0.5")]
    assert "NaN" not in (text := (tmp_path / "metrics.jsonl").read_text()) and "Infinity" not in text
    assert RunFolder(tmp_path).metrics == [{"step": 1, "reward/mean": 1.0}, {"step": 2, "my/own": 0.5}]
    (rollout,) = read_packed(tmp_path / "rollouts/step_000002.jsonl.gz")
    assert rollout["logprobs"] == [-1.0, None, None]


@pytest.mark.parametrize("cut_after", [-1, 2])
def test_the_same_numbers_are_in_all_files_and_what_lies_beyond_the_checkpoint_is_cut_away(tmp_path, cut_after):
    write(tmp_path, range(5))
    samples, own = tmp_path / "samples", tmp_path / "rollouts/step_000009.txt"
    samples.mkdir()
    for number in range(5):
        (samples / f"round_{number:03d}.jsonl").write_text("{}\n")  # of expert iteration
    own.touch()  # the user's
    write(tmp_path, [cut_after + 1, cut_after + 2], cut_after)
    steps = list(range(cut_after + 3))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": n, "reward/mean": n / 4, "policy/entropy": 2.0 * n} for n in steps]
    rows = [{tag: float(value) for tag, value in row.items()} for row in table_of(tmp_path)]
    assert rows == lines and events(tmp_path) == [(n, n / 4) for n in steps]
    for name in ("rollouts", "evaluations"):
        assert sorted(path.name[:11] for path in (tmp_path / name).glob("*.gz")) == [f"step_{n:06d}" for n in steps]
    assert sorted(path.name for path in samples.iterdir()) == [f"round_{n:03d}.jsonl" for n in range(cut_after + 1)]
    assert own.exists() and [step for step, _ in events(tmp_path, "samples/train/text_summary")] == steps


def test_wherever_a_kill_tore_the_files_each_step_is_there_once(tmp_path):
    write(tmp_path, [1, 2])
    (path,), metrics = sorted(tmp_path.glob("events*")), tmp_path / "metrics.jsonl"
    for torn in (path, metrics):
        torn.write_bytes(torn.read_bytes()[:-40])
    write(tmp_path, [2, 3], cut_after=1)
    assert [line["step"] for line in RunFolder(tmp_path).metrics] == [1, 2, 3]
    assert [step for step, _ in events(tmp_path, "policy/entropy")][-2:] == [2, 3]


NASTY = [
    "<think>a *b* __c__\n\n  d</think>\n<answer>7</answer>\n\n\n- e\n# f",
    "```python\nif a < b and c > d:\n    print('&lt;')\n```\n</code></pre><script>alert(1)</script><!-- g",
]


@pytest.mark.parametrize("text", NASTY)
def test_tensorboard_shows_a_completion_as_it_was_sampled(tmp_path, text):
    board = TensorBoard(tmp_path, ["countdown"], {"note": "*<b>*", "steps": 3}, None)
    board.samples(1, "samples/train", sample_rows([line(text=text), line(prompt=text, reward=None, text="")]))
    board.close(1, finished=True)
    assert "eval/countdown/pass@1_low" in str(events(tmp_path, "custom_scalars__config__"))
    tags = "settings/text_summary", "samples/train/text_summary"
    settings, shown = (markdown_to_safe_html(events(tmp_path, tag)[0][1][0]) for tag in tags)
    cells = re.findall("<td>(.*?)</td>", settings)
    assert list(map(html.unescape, cells)) == ["note", "*<b>*", "steps", "3"] and "<b>" not in "".join(cells)
    read = html.unescape(re.sub(r"<[^>]*>", "", shown))
    assert "<script" not in shown and shown.count("<code>") == 4
    parts = ["Prompt", "3 + 4", "Completion sampled, reward 1, solved (short_* 0.5)", text]
    parts += ["Prompt", text, "Completion sampled, not scored", "(empty)"]
    assert read.split() == "\n".join(parts).split()
    for row in text.split("\n"):
        assert f"\n{row}" in f"\n{read}"  # at the beginning of a line, with its spaces


def test_a_board_that_fails_costs_one_warning_and_the_other_has_every_step(tmp_path, monkeypatch, said):
    monkeypatch.setattr(writers, "Board", lambda *_: object())  # which can do nothing
    files = RunFiles(tmp_path)
    files.open_boards("wandb", [], {}, [])
    for step in range(3):
        files.show("scalars", step, {"reward/mean": 1.0})
    files.show("close", 3, True)
    assert [step for step, _ in events(tmp_path)] == [0, 1, 2]  # the other board has them all
    (warning,) = [one for one in said if "wandb" in one]
    assert "the run continues: AttributeError: 'object' object has no attribute 'scalars'" in warning
