"""The advantage of each turn, against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch

from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.dataflow import SOLO, Reward, TrainState, UserError
from minrl.rollout import Rollouts
from minrl.tracking.metrics import step_metrics
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


def test_a_moving_average_is_of_the_role_and_the_turn(group):
    state = TrainState(baselines={SOLO: 0.5})
    found = compared(group, "reinforce", state, turn_credit="turn")
    assert found.values.tolist() == [[1.25, 1.25, 1], [-0.25, 0.25, 0], [0.5, 0, 0], [0, 0, 0]]
    expected = {SOLO: 0.95 * 0.5 + 0.05, f"{SOLO}/turn/2": 0.05 * 0.75, f"{SOLO}/turn/3": 0.05}
    assert state.baselines == pytest.approx(expected)


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


def test_an_algorithm_that_cannot_tell_turns_apart_is_refused_in_one_line():
    with pytest.raises(UserError, match="gspo weighs whole sequences, and --turn-credit turn turns: choose") as refused:
        choose_algorithm(sized(algorithm="gspo", turn_credit="turn"))
    assert "\n" not in str(refused.value)


def test_the_first_turns_have_curves_of_what_they_earn(group):
    scored = step_metrics(Rollouts(group, []), {"": 8})
    found = {tag: value for tag, value in scored.items() if tag.startswith("reward/turn/")}
    assert found == pytest.approx({"reward/turn/1": 1 / 3, "reward/turn/2": 0.25, "reward/turn/3": 0.0})
