"""Numbers land in TensorBoard, metrics.jsonl and metrics.csv alike, under documented tags, each step once."""

import csv
import gzip
import json
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minrl.metrics import OPEN_PREFIXES, TAGS, MetricsLog, check_tags, read_metrics, rollout_line, rollout_metrics
from minrl.types import Reward

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
            assert tag in TAGS or tag.startswith(OPEN_PREFIXES), f"{path}: {tag}"


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


def test_a_tag_that_comes_later_has_its_column(tmp_path):
    log = MetricsLog(tmp_path)
    log.log(1, {"reward/mean": 1.0})
    log.log(2, {"reward/mean": 1.0, "eval/sevens/pass@1": 0.5})
    log.close()
    with (tmp_path / "metrics.csv").open() as file:
        assert [row["eval/sevens/pass@1"] for row in csv.DictReader(file)] == ["", "0.5"]


def test_what_lies_beyond_the_checkpoint_is_cut_away(tmp_path):
    log = MetricsLog(tmp_path)
    for step in (0, 1, 2, 3, 4):
        log.log(step, {"reward/mean": float(step)})
        log.rollouts(step, [{"text": "x"}])
    log.close()
    write(tmp_path, [3, 4], cut_after=2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
    assert events(tmp_path)["reward/mean"] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 0.75), (4, 1.0)]
    assert sorted(path.name[:11] for path in (tmp_path / "rollouts").iterdir()) == [f"step_00000{n}" for n in (0, 1, 2)]


def test_a_run_that_starts_again_keeps_nothing(tmp_path):
    write(tmp_path, [0, 1, 2])
    write(tmp_path, [0, 1], cut_after=-1)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1]
    assert [step for step, _ in events(tmp_path)["reward/mean"]] == [0, 1]


def test_lines_and_events_that_were_being_written_at_the_kill_are_cut_away(tmp_path):
    write(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward/me')
    (path,) = tmp_path.glob("events*")
    path.write_bytes(path.read_bytes()[:-7])  # the last event is torn: policy/entropy of step 2
    write(tmp_path, [2, 3], cut_after=1)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert sorted(step for step, _ in events(tmp_path)["policy/entropy"]) == [1, 2, 3]


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
    metrics = rollout_metrics(rollouts)
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


def test_roles_have_a_mean_each_where_there_are_several(make_rollout):
    rollouts = [make_rollout([1], [2], role=role, reward=Reward(value)) for role, value in [("a", 1.0), ("b", 0.0)]]
    metrics = rollout_metrics(rollouts)
    assert metrics["reward/role/a"] == 1.0 and metrics["reward/role/b"] == 0.0
    assert not any(tag.startswith("reward/role") for tag in rollout_metrics(rollouts[:1]))
