"""The part of a reward that goes by length: a penalty on long solutions, or a target."""

import gzip
import json
import math
import shutil
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minrl import train
from minrl.__main__ import main
from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.config import AlgorithmConfig, RolloutConfig, SamplingConfig, TrainerConfig
from minrl.rewards.length import with_length
from minrl.sampling import missing
from minrl.types import Reward, TrainState, UserError
from tests.killing import killed_at
from tests.say_sevens import SAY_SEVENS

SIGMOID_1 = math.e / (1 + math.e)


def config_of(group_size=4, max_tokens=64, task="a", task_max_tokens="", sampling=None, **algorithm):
    return TrainerConfig(
        rollout=RolloutConfig(
            task=task, group_size=group_size, max_tokens=max_tokens, task_max_tokens=task_max_tokens, prompts_per_step=1
        ),
        algorithm=AlgorithmConfig(**algorithm),
        sampling=sampling or SamplingConfig(),
    )


@pytest.fixture
def sampled(make_rollout):
    """Rollouts of given (length, reward)."""

    def make(*lengths_and_rewards, **changes):
        return [
            make_rollout([5], [6] * length, reward=Reward(reward) if isinstance(reward, float) else reward, **changes)
            for length, reward in lengths_and_rewards
        ]

    return make


def values(rollouts):
    return [one.reward and one.reward.value for one in rollouts]


def test_of_the_solutions_of_a_group_the_longer_lose_more_and_nothing_else_loses(sampled):
    # Solutions of 2 and 4 tokens: mean 3, std 1, so they lose 0.4 times the sigmoids of -1 and 1, which add up to 1.
    # A solution alone in its group is at the mean and loses 0.4 / 2. The lengths of failures do not enter.
    first = sampled((2, 1.0), (4, 1.0), (60, 0.0), (1, 0.25), (9, None))
    paid = with_length([*first, *sampled((50, 1.0), (1, 0.0), group=1)], config_of(length_penalty=0.4))
    lost = [0.4 * (1 - SIGMOID_1), 0.4 * SIGMOID_1, 0.0, 0.0]
    assert values(paid[:4]) == pytest.approx([1 - lost[0], 1 - lost[1], 0.0, 0.25], abs=1e-12)
    assert [one.reward.parts["length"] for one in paid[:4]] == pytest.approx([-share for share in lost], abs=1e-12)
    assert paid[4].reward is None
    assert values(paid[5:]) == pytest.approx([0.8, 0.0], abs=1e-12)
    assert [one.reward.solved for one in paid if one.reward] == [True, True, False, False, True, False]
    assert values(first) == [1.0, 1.0, 0.0, 0.25, None]  # what was given stays


def test_a_target_is_approached_from_both_sides_by_all_that_is_scored(sampled):
    # Half and twice the target are half of the longer one away, which costs half of 0.5, whatever is solved.
    rollouts = sampled((20, 1.0), (40, 0.5), (80, 0.0), (160, 1.0), (40, None))
    paid = with_length(rollouts, config_of(length_target=40))
    assert values(paid) == [0.75, 0.5, -0.25, 0.625, None]
    assert [one.reward.parts for one in paid[:3]] == [{"length": -0.25}, {"length": 0.0}, {"length": -0.25}]
    assert str(paid[1].reward.parts["length"]) == "0.0"
    assert [one.reward.solved for one in paid[:4]] == [True, False, False, True]
    assert values(with_length(rollouts[:1], config_of(length_target=40, length_target_weight=0.25))) == [0.875]


def test_a_target_is_the_same_for_tasks_of_other_limits(sampled):
    both = [*sampled((20, 1.0), task="a"), *sampled((20, 1.0), task="b", group=1)]
    config = config_of(task="a,b", task_max_tokens="b:128", length_target=40)
    assert values(with_length(both, config)) == [0.75, 0.75]


@pytest.mark.parametrize(("maximum", "lost"), [(10.0, 2.5), (1.0, 0.25), (-4.0, 1.0), (0.0, 0.25)])
def test_what_is_lost_is_a_share_of_the_highest_reward(sampled, maximum, lost):
    reward = Reward(maximum, {"own": 3.0}, maximum)
    for settings in ({"length_penalty": 0.5}, {"length_target": 32, "length_target_weight": 0.5}):
        (paid,) = with_length(sampled((64, reward)), config_of(**settings))  # alone, or twice the target: half
        assert (paid.reward.value, paid.reward.maximum, paid.reward.solved) == (maximum - lost, maximum, True)
        assert paid.reward.parts == {"own": 3.0, "length": -lost}


def test_solved_is_what_the_task_says(sampled):
    short_of = Reward(0.6, maximum=1.0, full=True)
    failed = Reward(1.0, maximum=1.0, full=False)
    paid = with_length(sampled((4, short_of), (4, failed)), config_of(length_penalty=0.5))
    assert values(paid) == [0.6 - 0.25, 1.0]
    assert [one.reward.solved for one in paid] == [True, False]


def test_only_the_tokens_that_the_policy_sampled_count(make_rollout):
    # Two turns of 8 and 8 tokens, between them 100 that a tool printed.
    mask = [False] + [True] * 8 + [False] * 100 + [True] * 8
    episode = make_rollout([5], [6] * 116, loss_mask=mask, turns=[(1, 9), (109, 117)])
    assert values(with_length([episode], config_of(length_target=16))) == [1.0]


def test_without_a_setting_rewards_stay_as_they_are(sampled):
    rollouts = sampled((2, 1.0), (4, 0.0))
    assert all(new is old for new, old in zip(with_length(rollouts, config_of()), rollouts, strict=True))


def test_a_part_of_the_same_name_is_refused(sampled):
    with pytest.raises(UserError, match=r"has a part 'length' of its own.*give the task's another name") as refused:
        with_length(sampled((2, Reward(1.0, {"length": 12.0}))), config_of(length_penalty=0.5))
    assert "\n" not in str(refused.value)


def test_a_group_of_solutions_of_different_lengths_teaches_and_is_not_replaced(sampled):
    groups = [*sampled((2, 1.0), (4, 1.0)), *sampled((3, 1.0), (3, 1.0), group=1)]
    for penalty, left in ((0.0, 2), (0.4, 1)):
        config = config_of(2, length_penalty=penalty)
        paid = with_length([replace(one) for one in groups], config)
        assert missing("", ["", ""], paid) == left
    # 0.4 (2 sigmoid(1) - 1) lies between the two, and dr_grpo compares with the mean.
    config = config_of(2, algorithm="dr_grpo")
    advantages = compute_advantages(paid, choose_algorithm(config), config, TrainState()).values
    half = 0.2 * (2 * SIGMOID_1 - 1)
    assert advantages.tolist() == pytest.approx([half, -half, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length_penalty": -0.1}, r"length_penalty must be 0 \(off\), or above 0 and below 1, got -0.1"),
        ({"length_penalty": 1.0}, "length_penalty must be .* below 1, got 1.0"),
        ({"length_penalty": math.nan}, "length_penalty must be .*, got nan"),
        ({"length_target": -1}, r"length_target must be 0 \(off\), or at least 1, got -1"),
        ({"length_target": 65}, r"length_target \(65\) must be at most max_tokens \(64\)"),
        ({"length_target": 32, "task": "a,b", "task_max_tokens": "b:16"}, r"\(32\) must be at most max_tokens \(16\)"),
        (
            {"length_target": 8, "length_target_weight": 0.0},
            "length_target_weight must be above 0 and below 1, got 0.0",
        ),
        ({"length_target": 8, "length_target_weight": 1.0}, "length_target_weight must be .* below 1, got 1.0"),
        ({"length_target_weight": 0.25}, "length_target_weight is read only with --length-target: give that too"),
        ({"length_penalty": 0.2, "length_target": 8}, "length_penalty 0.2 and length_target 8 .*: leave one out"),
        ({"length_penalty": 0.2, "group_size": 1, "algorithm": "reinforce"}, "group_size must be at least 2, got 1"),
        ({"length_penalty": 0.2, "algorithm": "distill", "teacher_id": "x"}, "leave out .*length_penalty and"),
        ({"length_target": 8, "algorithm": "distill", "teacher_id": "x"}, "leave out .*length_penalty and"),
    ],
)
def test_wrong_values_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as refused:
        choose_algorithm(config_of(**settings))
    assert "\n" not in str(refused.value)


def test_a_target_may_be_the_limit_itself():
    assert choose_algorithm(config_of(length_target=64))


FLAGS = """--prompts-per-step 4 --group-size 8 --steps 3 --save-every 1 --eval-every 0 --eval-examples 4
    --eval-samples 1 --rollouts-every 1 --threads 1 --device cpu --quiet"""


def run_in(folder, *flags):
    """Train, or go on; the run's folder."""
    assert main(["train", *flags, "--runs-dir", f"{folder}/runs"]) == 0
    (summary,) = (folder / "runs").glob("*/summary.json")
    return summary.parent


@pytest.mark.parametrize(
    "priced", [["--length-target", "3"], pytest.param(["--length-penalty", "0.5"], marks=pytest.mark.slow)]
)
def test_a_run_shows_the_part_and_goes_on_to_the_same_weights(tmp_path, priced):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = [*SAY_SEVENS, *FLAGS.split(), *priced]
    run = run_in(whole, *flags, "--checkpoints-dir", f"{whole}/checkpoints")
    for base in (whole / "checkpoints").glob("base-*"):
        shutil.copytree(base, killed / "checkpoints" / base.name)
    with killed_at(train, "update_policy", 2):
        main(["train", *flags, "--checkpoints-dir", f"{killed}/checkpoints", "--runs-dir", f"{killed}/runs"])
    ends = [json.loads((one / "summary.json").read_text()) for one in (run, run_in(killed, "--resume", "latest"))]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [line["reward/part/length"] for line in lines[1:]]
    board = EventAccumulator(str(run), size_guidance={"scalars": 0})
    board.Reload()
    assert [event.value for event in board.Scalars("reward/part/length")] == pytest.approx(curve)
    assert not any("length" in tag for line in lines for tag in line if tag.startswith("eval/"))
    with gzip.open(run / "rollouts/step_000003.jsonl.gz", "rt") as file:
        rollouts = [json.loads(line) for line in file]
    trained = [one for one in rollouts if one["purpose"] == "train"]
    paid = [one["parts"]["length"] for one in trained]
    assert len(set(paid)) > 1
    assert sum(paid) / len(paid) == pytest.approx(curve[-1])
    assert not any("length" in one["parts"] for one in rollouts if one["purpose"] != "train")
    if "--length-target" in priced:  # 1 to 4 tokens
        assert paid == [{1: -1 / 3, 2: -1 / 6, 3: 0.0, 4: -1 / 8}[sum(one["loss_mask"])] for one in trained]


@pytest.mark.slow
@pytest.mark.learns
def test_completions_come_to_the_length_of_the_target_and_stay_right(tmp_path):
    # Any number of sevens is right. The demonstrations have one or two, and so has a run without a target.
    flags = """--max-tokens 16 --base-steps 40 --prompts-per-step 8 --group-size 16 --steps 40
        --learning-rate 3e-3 --eval-every 0 --save-every 0 --rollouts-every 0 --threads 1 --device cpu --quiet"""
    given = [*SAY_SEVENS, *flags.split(), "--checkpoints-dir", f"{tmp_path}/checkpoints"]
    plain = run_in(tmp_path / "plain", *given)
    aimed = run_in(tmp_path / "aimed", *given, "--length-target", "8")
    ends = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in (plain, aimed)]
    assert ends[0]["eval/sevens/completion_tokens_mean"] < 5 < 7 < ends[1]["eval/sevens/completion_tokens_mean"] < 9.5
    assert ends[1]["eval/sevens/pass@1"] > 0.8
