"""Numbers and samples land in TensorBoard, metrics.jsonl and metrics.csv alike, each step once."""

import csv
import gzip
import html
import itertools
import json
import re
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG
from tensorboard.summary.writer import event_file_writer
from tensorboard.util.tensor_util import make_ndarray

from minrl.dataflow import SOLO
from minrl.run.folder import RunFolder
from minrl.tracking import writers
from minrl.tracking.samples import COMPLETIONS, LONGEST, PROMPTS, sample_rows
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


def line(step=0, prompt="3 + 4", text="7", reward=1.0, **more):
    """A completion as an evaluation has it."""
    asked = {"example_id": prompt, "role": SOLO, "mode": "sampled", "prompt": prompt, "completion": text}
    parts = {"short_*": 0.5} if reward else {}
    return {**asked, "reward": reward, "solved": reward and reward == 1, "parts": parts, **more}


def write(folder, steps, cut_after=None, settings=()):
    """What the logger writes of these steps."""
    files = RunFiles(folder, cut_after)
    board = TensorBoard(folder, ["countdown"], dict(settings), cut_after)
    for step in steps:
        metrics = {"reward/mean": step / 4, "policy/entropy": 2.0 * step}
        files.metrics(step, metrics)
        files.rollouts(step, [{"text": "x"}])
        files.evaluation(step, [{"completion": "x"}])
        board.samples(step, "samples/train", sample_rows([line(step)]))
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
    for name in ("rollouts", "evaluations"):
        assert sorted(path.name[:11] for path in (tmp_path / name).glob("*.gz")) == [f"step_{n:06d}" for n in steps]
    assert sorted(path.name for path in samples.iterdir()) == [f"round_{n:03d}.jsonl" for n in range(cut_after + 1)]
    assert all((tmp_path / name).exists() for name in others)
    assert [step for step, _ in events(tmp_path, "samples/train/text_summary")] == steps


@pytest.mark.parametrize("torn", [0, 39, 200])
def test_wherever_a_kill_tore_the_files_each_step_is_there_once(tmp_path, torn):
    write(tmp_path, [1, 2])
    (path,), metrics = sorted(tmp_path.glob("events*")), tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - torn])
    metrics.write_bytes(metrics.read_bytes()[: -1 - torn % 40])
    write(tmp_path, [2, 3], cut_after=1)
    assert [line["step"] for line in RunFolder(tmp_path).metrics] == [1, 2, 3]
    assert [step for step, _ in events(tmp_path, "policy/entropy")][-2:] == [2, 3]


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


def read_as_text(folder, rows):
    """What TensorBoard's tab shows of samples, without its HTML."""
    board = TensorBoard(folder, [], {"note": "*<b>*", "steps": 3}, None)
    board.samples(1, "samples/train", rows)
    board.close(1, finished=True)
    ((_, (text,)),) = events(folder, "samples/train/text_summary")
    shown = markdown_to_safe_html(text)
    return html.unescape(re.sub(r"<[^>]*>", "", shown)), shown


NASTY = [
    "<think>a *b* __c__\n\n  d</think>\n<answer>7</answer>\n\n\n- e\n# f",
    "```python\nif a < b and c > d:\n    print('&lt;')\n```\n~~~\n| a | b |\n|---|---|",
    "</code></pre><script>alert(1)</script><!-- g",
    "<![CDATA[ h ]]> <?i <!j &amp; \\* [k](l) ![m](n) `o",
]


@pytest.mark.parametrize("text", NASTY)
def test_tensorboard_shows_a_completion_as_it_was_sampled(tmp_path, text):
    rows = sample_rows([line(text=text), line(prompt=text, reward=None, text="")])
    read, shown = read_as_text(tmp_path, rows)
    assert "<script" not in shown and shown.count("<code>") == 4
    parts = ["Prompt", "3 + 4", "Completion sampled, reward 1, solved (short_* 0.5)", text]
    parts += ["Prompt", text, "Completion sampled, not scored", "(empty)"]
    assert read.split() == "\n".join(parts).split()
    for row in text.split("\n"):
        assert f"\n{row[:100]}" in f"\n{read}"  # at the beginning of a line, with its spaces
    assert max(map(len, read.split("\n"))) <= 120
    (settings,) = (texts for _, (texts,) in events(tmp_path, "settings/text_summary"))
    cells = re.findall("<td>(.*?)</td>", markdown_to_safe_html(settings))
    assert list(map(html.unescape, cells)) == ["note", "*<b>*", "steps", "3"] and "<b>" not in "".join(cells)


def test_samples_are_a_few_short_texts():
    long = "\x1b" + "a" * LONGEST + "z"
    lines = [line(prompt=[{"role": "user", "content": f"{n} {long}"}], example_id=str(n)) for n in range(9)]
    rows = sample_rows(one for one in lines for _ in range(9))
    assert len(rows) == PROMPTS * COMPLETIONS and rows[0] == rows[3] != rows[4]
    prompt, *_ = rows[0]
    assert prompt.startswith("user: 0 \\x1baaa") and prompt.endswith("aaz")
    assert len(prompt) < LONGEST + 40 and "[... 13 characters ...]" in prompt


class Broken:
    """A board that can do nothing."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}\nhere")


def test_a_board_that_fails_costs_one_warning_and_the_other_has_every_step(tmp_path, monkeypatch, said):
    monkeypatch.setattr(writers, "Board", lambda *_: Broken())
    files = RunFiles(tmp_path)
    files.open_boards("wandb", [], {}, [])
    for step in range(3):
        files.show("scalars", step, {"reward/mean": 1.0})
    files.show("close", 3, True)
    assert [step for step, _ in events(tmp_path)] == [0, 1, 2]  # the other board has them all
    (warning,) = [one for one in said if "wandb" in one]
    assert warning.endswith("the run continues: RuntimeError: no scalars here\n")
