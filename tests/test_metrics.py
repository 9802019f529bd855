"""Numbers land in TensorBoard, metrics.jsonl and metrics.csv alike, under documented tags, each step once."""

import csv
import gzip
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from loguru import logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG, SESSION_END_INFO_TAG, SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from minrl.record import metrics as metrics_module
from minrl.record.metrics import HISTOGRAMS, OPEN_PREFIXES, TAGS, MetricsLog, check_tags, cut_metrics, read_metrics
from minrl.record.rollout_metrics import markdown, rollout_metrics
from minrl.record.tensorboard import HEADERS, LEADING, page
from minrl.types import PlayedTurn, Reward
from minrl.utils.files import write_json
from minrl.viewer.lines import rollout_line

ROOT = Path(__file__).parent.parent


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: sorted((event.step, event.value) for event in accumulator.Scalars(tag)) for tag in tags}


def write(folder, steps, **options):
    log = MetricsLog(folder, **options)
    for step in steps:
        log.log(step, {"reward/mean": step / 4, "policy/entropy": 2.0 * step})
    log.close()


def test_tags_that_no_list_has_are_refused():
    check_tags({"reward/mean": 1.0, "reward/part/own": 1.0, "eval/hanoi/pass@1": 0.5, "baseline/policy": 0.1})
    with pytest.raises(AssertionError, match="reward/meen"):
        check_tags({"reward/meen": 1.0})


def test_every_tag_in_the_code_is_on_the_list():
    groups = {tag.split("/")[0] for tag in TAGS}
    pattern = re.compile(rf'"((?:{"|".join(sorted(groups))})/[a-z0-9_@]+)"')
    for path in [*ROOT.glob("minrl/**/*.py"), ROOT / "train.py"]:
        for tag in pattern.findall(path.read_text()):
            assert tag in (*TAGS, *HISTOGRAMS) or tag.startswith(OPEN_PREFIXES), f"{path}: {tag}"


def test_tags_are_listed_once():
    assert len(TAGS) == len(set(TAGS))


def test_the_same_numbers_are_in_tensorboard_jsonl_and_csv(tmp_path):
    write(tmp_path, [1, 2, 3])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": n, "reward/mean": n / 4, "policy/entropy": 2.0 * n} for n in (1, 2, 3)]
    expected = {"reward/mean": [(n, n / 4) for n in (1, 2, 3)], "policy/entropy": [(n, 2.0 * n) for n in (1, 2, 3)]}
    assert events(tmp_path) == expected
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], float(row["reward/mean"])) for row in rows] == [("1", 0.25), ("2", 0.5), ("3", 0.75)]


def test_a_step_can_be_looked_at_while_the_run_goes_on(tmp_path):
    log = MetricsLog(tmp_path)
    log.text("samples/train", "a sample", 1)  # on disk at once, long before the step ends
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [event.step for event in accumulator.Tensors("samples/train/text_summary")] == [1]
    log.log(1, {"reward/mean": 1.0})
    assert events(tmp_path) == {"reward/mean": [(1, 1.0)]}
    log.close()


def test_a_tag_that_comes_later_has_its_column(tmp_path):
    log = MetricsLog(tmp_path)
    log.log(1, {"reward/mean": 1.0})
    log.log(2, {"reward/mean": 1.0, "eval/sevens/pass@1": 0.5})
    log.close()
    with (tmp_path / "metrics.csv").open() as file:
        assert [row["eval/sevens/pass@1"] for row in csv.DictReader(file)] == ["", "0.5"]


def table(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_checkpoint_adds_the_new_lines_to_the_table_and_reads_no_earlier_ones(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)
    log.log(1, {"reward/mean": 1.0, "policy/entropy": 2.0})
    log.flush()
    with monkeypatch.context() as patch:
        patch.setattr("minrl.record.metrics.read_metrics", lambda folder: pytest.fail("read"))
        log.log(2, {"reward/mean": math.nan, "policy/entropy": 3.0})
        log.log(3, {"reward/mean": 4.0})
        log.flush()
        log.flush()  # nothing is there twice
        assert [row["reward/mean"] for row in table(tmp_path)] == ["1.0", "", "4.0"]
    log.log(4, {"policy/loss": 5.0})
    log.flush()
    log.close()
    assert [(row["step"], row["policy/entropy"], row["policy/loss"]) for row in table(tmp_path)] == [
        ("1", "2.0", ""),
        ("2", "3.0", ""),
        ("3", "", ""),
        ("4", "", "5.0"),
    ]


def test_a_table_that_a_full_disk_cut_off_is_written_anew(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)
    log.log(1, {"reward/mean": 1.0})
    log.flush()

    def full(path, columns, rows):
        path.open("a").write("2,")
        raise OSError(28, "No space left on device", str(path))

    log.log(2, {"reward/mean": 2.0})
    with monkeypatch.context() as patch:
        patch.setattr("minrl.record.metrics.append_csv", full)
        with pytest.raises(OSError, match="No space"):
            log.flush()
    log.close()
    assert [row["reward/mean"] for row in table(tmp_path)] == ["1.0", "2.0"]


def test_the_table_of_a_resumed_run_has_each_step_once(tmp_path):
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.log(step, {"reward/mean": float(step)})
        log.flush()
    resumed = MetricsLog(tmp_path, cut_after=2)  # the first was killed
    resumed.log(3, {"reward/mean": 9.0})
    resumed.flush()
    (tmp_path / "metrics.csv").unlink()  # by hand
    resumed.log(4, {"reward/mean": 10.0})
    resumed.close()
    assert [row["reward/mean"] for row in table(tmp_path)] == ["1.0", "2.0", "9.0", "10.0"]


def test_what_lies_beyond_the_checkpoint_is_cut_away(tmp_path):
    log = MetricsLog(tmp_path)
    for step in (0, 1, 2, 3, 4):
        log.log(step, {"reward/mean": float(step)})
        log.rollouts(step, [{"text": "x"}])
        samples = tmp_path / "samples" / f"round_{step:03d}.jsonl"  # of expert iteration
        samples.parent.mkdir(exist_ok=True)
        samples.write_text("{}\n")
    log.close()
    write(tmp_path, [3, 4], cut_after=2)
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [f"round_00{n}.jsonl" for n in (0, 1, 2)]
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
    assert events(tmp_path)["reward/mean"] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 0.75), (4, 1.0)]
    assert sorted(path.name[:11] for path in (tmp_path / "rollouts").iterdir()) == [f"step_00000{n}" for n in (0, 1, 2)]


def test_a_run_that_starts_again_keeps_nothing(tmp_path):
    write(tmp_path, [0, 1, 2])
    write(tmp_path, [0, 1], cut_after=-1)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1]
    assert [step for step, _ in events(tmp_path)["reward/mean"]] == [0, 1]


def test_files_beside_the_rollouts_are_the_users(tmp_path):
    (tmp_path / "rollouts").mkdir()
    mine = [tmp_path / "rollouts" / name for name in ("step_notes.txt", "step_000009.txt", "step_x.jsonl.gz")]
    for path in (*mine, tmp_path / "rollouts/step_000009.jsonl.gz"):
        path.touch()
    MetricsLog(tmp_path, cut_after=2).close()
    assert sorted((tmp_path / "rollouts").iterdir()) == sorted(mine)


def test_lines_and_events_that_were_being_written_at_the_kill_are_cut_away(tmp_path):
    write(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward/me')
    (path,) = tmp_path.glob("events*")
    path.write_bytes(path.read_bytes()[:-7])  # the last event is torn: policy/entropy of step 2
    write(tmp_path, [2, 3], cut_after=1)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert sorted(step for step, _ in events(tmp_path)["policy/entropy"]) == [1, 2, 3]


@pytest.mark.parametrize("at", [0, 9, 14], ids=["length", "checksum of the length", "event"])
def test_what_comes_after_a_damaged_event_is_cut_away(tmp_path, at):
    write(tmp_path, [1, 2, 3])
    (path,) = tmp_path.glob("events*")
    data, starts = path.read_bytes(), [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 16 + int.from_bytes(data[starts[-1] : starts[-1] + 8], "little"))
    place = starts[-2] + at  # in the last event
    path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
    write(tmp_path, [3], cut_after=2)
    assert events(tmp_path)["reward/mean"][:2] == [(1, 0.25), (2, 0.5)]


def test_event_files_are_read_in_the_order_in_which_one_process_made_them(tmp_path, monkeypatch):
    monkeypatch.setattr("minrl.record.tensorboard.EventFile._numbers", itertools.count(8))
    monkeypatch.setattr("minrl.record.tensorboard.time.time", lambda: 1e9)  # within one second
    for step in (1, 2, 3, 4):
        write(tmp_path, [step])
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("reward/mean")] == [1, 2, 3, 4]


def test_an_event_that_is_in_two_files_is_kept_once(tmp_path):
    write(tmp_path, [1, 2])
    (path,) = tmp_path.glob("events*")
    path.with_name(path.name + ".resumed").write_bytes(path.read_bytes())  # killed before the first was removed
    write(tmp_path, [3], cut_after=2)
    assert [step for step, _ in events(tmp_path)["reward/mean"]] == [1, 2, 3]


def test_a_line_that_is_no_json_is_cut_away_and_said(tmp_path):
    said, path = [], tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n\0\0\n{"step": 2}\n')
    sink = logger.add(said.append, format="{message}")
    cut_metrics(tmp_path, 2)
    logger.remove(sink)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert said == [r"a line of metrics.jsonl is no JSON and is cut away: '\x00\x00'" + "\n"]


def test_a_kill_while_events_are_cut_does_not_double_them(tmp_path, monkeypatch):
    write(tmp_path, [1, 2, 3])

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # the new file is written, and the old one not yet removed
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            MetricsLog(tmp_path, cut_after=2)
    assert len(list(tmp_path.glob("events*"))) == 2
    write(tmp_path, [3], cut_after=2)
    assert [step for step, _ in events(tmp_path)["reward/mean"]] == [1, 2, 3]


def test_rollouts_are_compressed_lines_with_a_schema(tmp_path, make_rollout):
    rollout = make_rollout([1, 2], [3, 4], reward=Reward(0.5, {"format": 1.0}), seed=2**62 + 1)
    log = MetricsLog(tmp_path)
    log.rollouts(10, [rollout_line(rollout, "train", "shown", 1.5, [-0.5, -0.25])])
    log.close()
    with gzip.open(tmp_path / "rollouts/step_000010.jsonl.gz", "rt") as file:
        (line,) = map(json.loads, file)
    expected = {
        "schema": 2, "step": 10, "purpose": "train", "prompt": "shown", "ids": [1, 2, 3, 4],
        "loss_mask": [0, 0, 1, 1], "rollout_logprobs": [0.0, 0.0, -1.0, -1.0], "logprobs": [-0.5, -0.25],
        "advantage": 1.5, "seed": 2**62 + 1, "role": "policy", "group": 0, "turns": [[2, 4]], "reward": 0.5,
        "parts": {"format": 1.0}, "solved": False, "finish_reason": "stop",
    }  # fmt: skip
    assert {key: line[key] for key in expected} == expected


class Noted:
    """A board that notes what it is told."""

    def __init__(self, *given):
        self.given, self.told = given, []

    def __getattr__(self, name):
        return lambda *what: self.told.append((name, *what))


def test_every_board_is_told_everything(tmp_path, monkeypatch):
    write(tmp_path / "run", [1, 2])
    monkeypatch.setitem(metrics_module.LOGGERS, "noted", (Noted, Noted))
    log = MetricsLog(tmp_path / "run", 1, ["countdown"], {"steps": 3}, "noted")
    earlier = [{"step": 1, "reward/mean": 0.25, "policy/entropy": 2.0}]
    values = np.ones(2)
    log.log(2, {"reward/mean": 1.0})
    log.text("samples/train", "text", 2)
    log.histograms(2, {"reward/value": values, "rollout/completion_tokens": np.array([])})
    log.close()
    told = [
        ("scalars", 2, {"reward/mean": 1.0}),
        ("text", "samples/train", "text", 2),
        ("histogram", "reward/value", values, 2),
        ("flush",),
        ("close", False),
    ]
    for board in log._boards:
        assert board.given == (tmp_path / "run", ["countdown"], {"steps": 3}, earlier)
        assert board.told == told
    log.close(finished=True)
    assert log._boards[1].told[-1] == ("close", True)


def test_a_run_that_was_never_begun_has_no_lines_and_its_folder_is_made(tmp_path):
    assert read_metrics(tmp_path / "nowhere") == []
    write(tmp_path / "runs" / "name", [1])
    write(tmp_path / "runs" / "name", [2])
    assert [line["step"] for line in read_metrics(tmp_path / "runs" / "name")] == [1, 2]


def test_a_rollouts_line_says_what_was_played_and_rounds_what_the_engine_said(make_rollout):
    turn = PlayedTurn("first", 7, "stop", "a move")
    rollout = make_rollout([1], [2], rollout_logprobs=[0.0, -0.123456789], episode=[turn], reward=Reward(1.0))
    line = rollout_line(rollout, "train", "", None, None)
    assert line["rollout_logprobs"] == [0.0, -0.123457]
    assert line["episode"] == [{"role": "first", "seed": 7, "finish_reason": "stop", "text": "a move", "shown_by": ""}]
    assert line["solved"] is True and line["advantage"] is None


def test_an_unscorable_rollout_is_written_as_such(make_rollout):
    line = rollout_line(make_rollout([1], [2], reward=None), "train", "", 0.0, None)
    assert line["reward"] is None and line["solved"] is None and line["logprobs"] is None


def test_rollout_metrics_by_hand(make_rollout):
    rollouts = [
        make_rollout([1, 2], [3, 4], reward=Reward(1.0, {"format": 1.0})),
        make_rollout([1, 2], [3], reward=Reward(0.0, {"format": 0.0}), finish_reason="length"),
        make_rollout([1, 2], [3, 4, 5], reward=Reward(0.2, {"format": 1.0})),
        make_rollout([1, 2, 3, 4], [5, 6], reward=None),
    ]
    metrics = rollout_metrics(rollouts, 4)
    # Of the three scored: mean 1.2 / 3 = 0.4, variance (0.36 + 0.16 + 0.04) / 3, one of three solved.
    assert metrics["reward/mean"] == pytest.approx(0.4)
    assert metrics["reward/std"] == pytest.approx((0.56 / 3) ** 0.5)
    assert metrics["reward/solved_frac"] == pytest.approx(1 / 3)
    assert metrics["reward/part/format"] == pytest.approx(2 / 3)
    # Of all four: one unscorable, one truncated; 2 + 1 + 3 + 2 = 8 tokens, each sampled at log-probability -1.
    assert metrics["reward/unscorable_frac"] == 0.25
    assert metrics["rollout/truncated_frac"] == 0.25
    assert metrics["rollout/completion_tokens_mean"] == 2.0
    assert metrics["rollout/completion_tokens_max"] == 3.0
    assert metrics["rollout/prompt_tokens_mean"] == 2.5
    assert metrics["rollout/entropy"] == 1.0
    check_tags(metrics)


def headers(folder):
    """What the event files say of the whole run, in order."""
    found = []
    for path in sorted(folder.glob("events*")):
        for data in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(data)
            found += [(value.tag, value) for value in event.summary.value if value.tag in HEADERS]
    return found


def page_of(folder):
    (value,) = [value for tag, value in headers(folder) if tag == CONFIG_SUMMARY_TAG]
    return Layout.FromString(value.tensor.string_val[0])


def test_tensorboard_opens_on_the_four_curves_that_matter(tmp_path):
    log = MetricsLog(tmp_path, tasks=["countdown", "hanoi"])
    log.log(1, {**dict.fromkeys(TAGS, 0.5), "eval/countdown/pass@1": 0.5, "eval/hanoi/pass@1": 0.5})
    log.close()
    first, *others = page_of(tmp_path).category
    reward, *held_out, length, gap = first.chart
    assert not first.closed and all(row.closed for row in others)
    assert list(reward.multiline.tag) == ["^reward/mean$", "^reward/solved_frac$"]
    for task, chart in zip(("countdown", "hanoi"), held_out, strict=True):
        assert chart.title.startswith(f"{task}: ")
        intervals = [(s.value, s.lower, s.upper) for s in chart.margin.series]
        assert intervals == [(f"eval/{task}/pass@1", f"eval/{task}/pass@1_low", f"eval/{task}/pass@1_high")]
    assert list(length.multiline.tag) == ["^rollout/(limit|truncated)_frac$"]
    assert "^engine/logprob_gap_mean$" in gap.multiline.tag and "^policy/ref_kl$" in gap.multiline.tag


def test_a_chart_appears_with_its_first_data(tmp_path):
    def charts():
        *_, (_, value) = [one for one in headers(tmp_path) if one[0] == CONFIG_SUMMARY_TAG]
        rows = Layout.FromString(value.tensor.string_val[0]).category
        return {tuple(c.multiline.tag) or c.margin.series[0].value for row in rows for c in row.chart}

    log = MetricsLog(tmp_path, tasks=["countdown"])
    assert not [tag for tag, _ in headers(tmp_path) if tag == CONFIG_SUMMARY_TAG]
    log.log(0, {"eval/countdown/pass@1": 0.1})
    assert charts() == {"eval/countdown/pass@1"}
    for step in (1, 2, 3):
        later = {"reward/solved_frac": 0.1} if step > 1 else {}  # on a chart that is shown already
        log.log(step, {"reward/mean": 0.1, "policy/learning_rate": 0.1, **later})
    expected = {"eval/countdown/pass@1", ("^reward/mean$", "^reward/solved_frac$"), ("^policy/learning_rate$",)}
    assert charts() == expected
    assert len([tag for tag, _ in headers(tmp_path) if tag == CONFIG_SUMMARY_TAG]) == 2  # not at each step
    log.close()
    MetricsLog(tmp_path, cut_after=1, tasks=["countdown"]).close()  # what earlier steps measured is shown at once
    assert charts() == expected


def test_samples_are_broken_into_lines_that_a_screen_holds_and_nothing_is_lost():
    text = "word " * 50 + "x" * 250 + "\n\n  indented\tline\n" + "<think> " * 30
    one = {"reward": 1.0, "parts": {}, "advantage": None, "loss_mask": [1], "finish_reason": "stop", "role": "policy"}
    shown = markdown([{**one, "prompt": "say", "text": text}]).split("\n")
    block = [line.removeprefix("    ") for line in shown if line.startswith("    ")]
    assert max(map(len, block)) <= 100
    assert "".join(block) == "say--------" + text.replace("\n", "")
    assert "" in block and "  indented\tline" in block


def test_every_chart_shows_tags_that_there_are():
    examples = {
        "reward/part/": "reward/part/format",
        "reward/role/": "reward/role/first",
        "eval/": "eval/x/unscorable_frac",
        "task/": "task/x/reward/mean",
    }
    tags = [*TAGS, *(examples.get(prefix, f"{prefix}x") for prefix in OPEN_PREFIXES)]
    for row in page(["countdown"]).category:
        for chart in row.chart:
            for pattern in chart.multiline.tag:
                assert any(re.match(pattern, tag) for tag in tags), f"{chart.title}: {pattern}"


def test_hyperparameters_say_the_config_and_whether_the_run_ended(tmp_path):
    settings = {"learning_rate": 3e-4, "algorithm": "grpo", "curriculum": False, "stop_strings": ["a", "b"]}
    settings |= {f"other_{number}": number for number in range(LEADING)}
    log = MetricsLog(tmp_path, tasks=["countdown"], settings=settings)
    log.log(1, {"reward/mean": 0.5})
    log.close(finished=True)
    plugin = {
        tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for tag, value in headers(tmp_path)
        if tag != CONFIG_SUMMARY_TAG
    }
    given = plugin[SESSION_START_INFO_TAG].session_start_info.hparams
    assert given["learning_rate"].number_value == 3e-4 and given["algorithm"].string_value == "grpo"
    assert given["curriculum"].string_value == "False" and given["stop_strings"].string_value == "['a', 'b']"
    infos = plugin[EXPERIMENT_TAG].experiment.hparam_infos
    assert [info.name for info in infos if info.differs] == list(settings)[:LEADING]
    shown = [info.name.tag for info in plugin[EXPERIMENT_TAG].experiment.metric_infos]
    assert shown == ["reward/mean", "eval/countdown/pass@1"]
    assert plugin[SESSION_END_INFO_TAG].session_end_info.status == Status.STATUS_SUCCESS


def test_a_run_that_goes_on_has_its_headers_once_and_as_they_are_now(tmp_path):
    for cut_after, steps in ((-1, 2), (0, 3)):
        log = MetricsLog(tmp_path, cut_after, ["countdown"], {"steps": steps})
        log.log(0, {"reward/mean": 0.5})
        log.close(finished=True)
    tags = [tag for tag, _ in headers(tmp_path)]
    assert sorted(tags) == sorted(HEADERS)
    (begun,) = [value for tag, value in headers(tmp_path) if tag == SESSION_START_INFO_TAG]
    data = HParamsPluginData.FromString(begun.metadata.plugin_data.content)
    assert data.session_start_info.hparams["steps"].number_value == 3


def test_distributions_and_samples_land_in_tensorboard_once(tmp_path):
    for cut_after in (-1, 1):
        log = MetricsLog(tmp_path, cut_after)
        for step in (1, 2)[max(0, cut_after) :]:
            log.histograms(step, {"engine/importance_weight": np.array([0.5, 1.0, 2.0]), "reward/value": np.array([])})
            log.text("samples/train", f"step {step}", step)
        log.close()
    accumulator = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0, "tensors": 0})
    accumulator.Reload()
    assert accumulator.Tags()["histograms"] == ["engine/importance_weight"]
    spread = accumulator.Histograms("engine/importance_weight")
    assert [event.step for event in spread] == [1, 2]
    assert (spread[0].histogram_value.min, spread[0].histogram_value.max) == (0.5, 2.0)
    texts = accumulator.Tensors("samples/train/text_summary")
    assert [event.tensor_proto.string_val[0] for event in texts] == [b"step 1", b"step 2"]
    with pytest.raises(AssertionError, match="does not list"):
        MetricsLog(tmp_path).histograms(1, {"reward/vlaue": np.ones(1)})


def test_roles_have_a_mean_each_where_there_are_several(make_rollout):
    rollouts = [make_rollout([1], [2], role=role, reward=Reward(value)) for role, value in [("a", 1.0), ("b", 0.0)]]
    metrics = rollout_metrics(rollouts, 4)
    assert metrics["reward/role/a"] == 1.0 and metrics["reward/role/b"] == 0.0
    assert not any(tag.startswith("reward/role") for tag in rollout_metrics(rollouts[:1], 4))


def strict(text):
    """What a parser makes of it that knows no NaN."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_null_in_the_files_and_absent_to_their_readers(tmp_path):
    log = MetricsLog(tmp_path)
    log.log(1, {"policy/loss": float("nan"), "policy/grad_norm": float("inf"), "reward/mean": 0.5})
    log.rollouts(1, [{"parts": {"speed": float("-inf")}, "logprobs": [-1.0, float("nan")]}])
    log.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert strict(line) == {"step": 1, "policy/loss": None, "policy/grad_norm": None, "reward/mean": 0.5}
    assert read_metrics(tmp_path) == [{"step": 1, "reward/mean": 0.5}]
    with gzip.open(tmp_path / "rollouts/step_000001.jsonl.gz", "rt") as file:
        rollout = strict(file.read())
    assert rollout["parts"] == {"speed": None} and rollout["logprobs"] == [-1.0, None]
    MetricsLog(tmp_path, cut_after=1).close()
    assert (tmp_path / "metrics.jsonl").read_text() == line + "\n"
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "policy/loss": NaN}\n')  # as it was once written
    assert read_metrics(tmp_path) == [{"step": 1}]


def test_a_summary_is_json_whatever_it_holds(tmp_path):
    write_json(tmp_path / "summary.json", {"loss": float("nan"), "rounds": ({"kept": float("inf")},)})
    assert strict((tmp_path / "summary.json").read_text()) == {"loss": None, "rounds": [{"kept": None}]}


@pytest.mark.slow
def test_what_few_runs_need_is_imported_when_it_is_used():
    record = "minrl.record.metrics, minrl.record.rollout_metrics, minrl.report.charts, minrl.evaluation"
    rewards = "minrl.rewards.completions, minrl.rewards.judge, minrl.rewards.workers"
    rest = "minrl.utils.console, minrl.utils.console, minrl.utils.files"
    rare = {"tensorboard", "torch.utils.tensorboard", "wandb", "openai", "matplotlib", "minrl.record.wandb"}
    code = f"import sys, {record}, {rewards}, {rest}; sys.exit(', '.join({rare} & set(sys.modules)) or 0)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
