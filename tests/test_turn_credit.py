"""The advantage of each turn, against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch

from minrl.__main__ import main
from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.dataflow import SOLO, Reward, TrainState, Turn, TurnReward, UserError
from minrl.rollout import Rollouts
from minrl.run.folder import RunFolder
from minrl.tasks import BUILT_IN, TASK_DEFINITIONS, Task
from minrl.tracking.metrics import step_metrics
from minrl.utils.files import read_packed
from tests.conftest import SMALL_RUN
from tests.parsed import sized

BY_TURN = [name for name, row in ALGORITHMS.items() if row.ratio_level == "token" and name not in ("gdpo", "distill")]


@pytest.fixture
def group(make_rollout):
    """Three episodes of three, two and one turn, with 1, 2 and 3 tokens each, and one that could not be scored.

    earned      returned   what a turn and the later ones earn
    0.5 0.25 0     1       1.75 1.25 1
    0 0.25         0       0.25 0.25
    0.5            0.5     1
    """
    bounds = [[(1, 2), (3, 5), (6, 9)], [(1, 2), (3, 5)], [(1, 2)], [(1, 2), (3, 5)]]
    earned, values = [[0.5, 0.25, 0.0], [0.0, 0.25], [0.5], []], [1.75, 0.25, 1.0, None]
    return [
        replace(
            make_rollout([5], [6] * (turns[-1][1] - 1)),
            turns=turns,
            loss_mask=[any(start <= place < end for start, end in turns) for place in range(turns[-1][1])],
            turn_rewards=of_turns,
            reward=None if value is None else Reward(value, maximum=2.0),
            sample=sample,
        )
        for sample, (turns, of_turns, value) in enumerate(zip(bounds, earned, values, strict=True))
    ]


def compared(rollouts, name, state=None, **changes):
    config = sized(algorithm=name, max_tokens=64, **changes)
    return compute_advantages(rollouts, choose_algorithm(config), config, state or TrainState())


# First turns: 1.75, 0.25, 1, of mean 1 and unbiased variance 2 (3/4)^2 / 2. Second turns: 1.25, 0.25, of mean 3/4 and
# unbiased variance 2 (1/2)^2 / 1. A third turn has no peer.
Z = 0.75 / 0.7501, 0.5 / (0.5**0.5 + 1e-4)
# All six: mean 5.5 / 6, squares 3.0625 + 0.0625 + 1 + 1.5625 + 0.0625 + 1 = 6.75.
MEAN, STD = 5.5 / 6, ((6.75 - 5.5**2 / 6) / 5) ** 0.5 + 1e-4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dr_grpo", [[0.75, 0.5, 0], [-0.75, -0.5, 0], [0, 0, 0], [0, 0, 0]]),
        ("grpo", [[Z[0], Z[1], 0], [-Z[0], -Z[1], 0], [0, 0, 0], [0, 0, 0]]),
        # n / (n - 1): 3/2 and 2.
        ("rloo", [[1.125, 1, 0], [-1.125, -1, 0], [0, 0, 0], [0, 0, 0]]),
        # Three groups of turns, of which the third has no spread: 3/2.
        ("gpg", [[1.125, 0.75, 0], [-1.125, -0.75, 0], [0, 0, 0], [0, 0, 0]]),
        ("reinforce_no_baseline", [[1.75, 1.25, 1], [0.25, 0.25, 0], [1, 0, 0], [0, 0, 0]]),
        (
            "reinforce_pp",
            [
                [(1.75 - MEAN) / STD, (1.25 - MEAN) / STD, (1 - MEAN) / STD],
                [(0.25 - MEAN) / STD, (0.25 - MEAN) / STD, 0],
                [(1 - MEAN) / STD, 0, 0],
                [0, 0, 0],
            ],
        ),
    ],
)
def test_a_turn_is_compared_by_what_it_and_later_ones_earn_with_the_same_turn_of_the_group(name, expected, group):
    found = compared(group, name, turn_credit="turn")
    torch.testing.assert_close(found.values, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)
    assert found.metrics["reward/zero_spread_group_frac"] == pytest.approx(1 / 3)
    tokens = make_batch(group, found.values).advantages
    # 1, 2 and 3 tokens of the first, 1 and 2 of the second, and of the fourth; 1 of the third.
    places = [(0, 0), *[(0, 1)] * 2, *[(0, 2)] * 3, (1, 0), *[(1, 1)] * 2, (2, 0), (3, 0), *[(3, 1)] * 2]
    assert tokens.tolist() == [found.values[place].item() for place in places]


def test_with_the_credit_of_the_episode_all_its_tokens_have_one_advantage(group):
    found = compared(group, "dr_grpo").values
    assert found.tolist() == [0.75, -0.75, 0, 0]
    batch = make_batch(group, found)
    assert batch.advantages.tolist() == [0.75] * 6 + [-0.75] * 3 + [0] * 4
    assert batch.have_advantage.tolist() == [True, True, False, False]


def test_a_moving_average_is_of_the_role_and_the_turn(group):
    state = TrainState(baselines={SOLO: 0.5})
    found = compared(group, "reinforce", state, turn_credit="turn")
    assert found.values.tolist() == [[1.25, 1.25, 1], [-0.25, 0.25, 0], [0.5, 0, 0], [0, 0, 0]]
    expected = {SOLO: 0.95 * 0.5 + 0.05, f"{SOLO}/turn/2": 0.05 * 0.75, f"{SOLO}/turn/3": 0.05}
    assert state.baselines == pytest.approx(expected)


def test_an_overlong_turn_costs_itself_and_those_before_it(group):
    # Of at most 64 tokens the last 16 cost 1/16 each: 56 tokens cost 1/2.
    long = [replace(group[0], turns=[(1, 2), (3, 59), (60, 61)]), *group[1:]]
    found = compared(long, "reinforce_no_baseline", turn_credit="turn", overlong_buffer=16)
    assert found.values[0].tolist() == [1.25, 0.75, 1]


@pytest.mark.parametrize("name", BY_TURN)
def test_episodes_of_one_turn_have_the_same_advantages_to_the_bit(name, make_rollout):
    values = [[1.0, 0.1, None, 0.3], [0.7] * 4, [0.0, 1.0, 0.5, 0.25]]
    rollouts = [
        make_rollout([5], [6] * (sample + 1), group=group, sample=sample, reward=None if v is None else Reward(v))
        for group, of_group in enumerate(values)
        for sample, v in enumerate(of_group)
    ]
    episode, turn = TrainState(baselines={SOLO: 0.3}), TrainState(baselines={SOLO: 0.3})
    by_episode = compared(rollouts, name, episode, overlong_buffer=62)
    by_turn = compared(rollouts, name, turn, overlong_buffer=62, turn_credit="turn")
    assert by_turn.values.squeeze(1).tolist() == by_episode.values.tolist()
    assert (by_turn.metrics, turn) == (by_episode.metrics, episode)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gspo", {}, "gspo weighs whole sequences, and --turn-credit turn turns: choose another"),
        ("vespo", {}, "vespo weighs whole sequences"),
        ("gdpo", {"reward_parts": "answer"}, "gdpo compares parts of an episode's reward"),
        ("distill", {"teacher_id": "model"}, "length_target and turn_credit"),
    ],
)
def test_an_algorithm_that_cannot_tell_turns_apart_is_refused_in_one_line(name, settings, message):
    with pytest.raises(UserError) as refused:
        choose_algorithm(sized(algorithm=name, turn_credit="turn", **settings))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_the_first_turns_have_curves_of_what_they_earn(group, make_rollout):
    scored = step_metrics(Rollouts(group, []), {"": 8})
    found = {tag: value for tag, value in scored.items() if tag.startswith("reward/turn/")}
    assert found == pytest.approx({"reward/turn/1": 1 / 3, "reward/turn/2": 0.25, "reward/turn/3": 0.0})
    unrewarded = replace(group[2], turn_rewards=[])  # an episode of the same task that rewarded no turn
    assert step_metrics(Rollouts([group[1], unrewarded], []), {"": 8})["reward/turn/1"] == 0.0
    many = replace(group[0], turns=[(0, 1)] * 9, turn_rewards=[1.0] * 9)
    assert "reward/turn/9" not in step_metrics(Rollouts([many], []), {"": 8})
    assert "reward/turn/1" not in step_metrics(Rollouts([make_rollout([5], [6])], []), {"": 8})


def twice(example, rng):
    """Say 7 in one turn or two: each 7 is a reward of its turn."""
    for shown in (example.prompt, "no"):
        said = (yield Turn(SOLO, shown)).split()
        yield TurnReward(SOLO, said.count("7") / 4)
        if rng.random() < 0.5:
            break
    return {SOLO: Reward(float(said[-1:] == ["7"]))}


@pytest.mark.slow
def test_a_run_with_rewards_of_turns_resumes_exactly(sevens_model, sevens, tmp_path, monkeypatch):
    for rows in (TASK_DEFINITIONS, BUILT_IN):
        monkeypatch.setitem(rows, "twice", Task(sevens.dataset, None, episode=twice))
    monkeypatch.chdir(tmp_path)
    flags = [*SMALL_RUN, "--task", "twice", "--algorithm", "reinforce", "--turn-credit", "turn"]
    assert main(["train", *flags, "--run-name", "whole"]) == 0
    assert main(["train", *flags, "--run-name", "parts", "--steps", "2"]) == 0
    assert main(["train", "--resume", "runs/parts", "--steps", "3"]) == 0
    whole, parts = (RunFolder.open(name) for name in ("whole", "parts"))
    assert parts.summary["weights_sha256"] == whole.summary["weights_sha256"]
    hashes = [{step: line["advantages"] for step, line in run.fingerprints.items() if step} for run in (whole, parts)]
    assert hashes[0] == hashes[1] and len(hashes[0]) == 3
    lines = [one for one in read_packed(whole.rollouts[3]) if one["purpose"] == "train"]
    assert all(len(one["advantage"]) == len(one["turn_rewards"]) == len(one["turns"]) for one in lines)
    assert {len(one["turns"]) for one in lines} == {1, 2}
    assert any(len({*one["advantage"]}) > 1 for one in lines)
