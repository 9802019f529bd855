"""What an update taught is measured token by token; a wrong sign and a stale engine show."""

from dataclasses import replace

import pytest
import torch
from gradients import CPU, fixed_rollouts, settings, tiny_policy

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.dataflow import TrainState
from minrl.models.distributed import Processes
from minrl.tracking.diagnostics import UpdateDiagnostics, curves
from minrl.update import current_logprobs, update_policy

CONFIG = settings("grpo")
MARGIN = 0.15
"""Found: a right update 0.26 above chance, one of the wrong sign 0.33 below it."""


@pytest.fixture
def policy():
    return tiny_policy(Processes(CPU))


def sampled_by(policy, rollouts):
    """The rollouts as an engine with the policy's weights samples them."""
    values = iter(current_logprobs(policy, make_batch(rollouts, torch.zeros(len(rollouts))), CONFIG, 1.0).tolist())
    return [
        replace(one, rollout_logprobs=[next(values) if mask else 0.0 for mask in one.loss_mask]) for one in rollouts
    ]


def step(policy, rollouts, sign=1.0):
    """The movement in an update of the rollouts, and its curves. Followed are rollouts of other prompts."""
    algorithm = choose_algorithm(CONFIG)
    advantages = compute_advantages(rollouts, algorithm, CONFIG, TrainState()).values
    followed = [replace(one, ids=[(token + 7) % 40 + 3 for token in one.ids]) for one in fixed_rollouts()[:3]]
    movement = UpdateDiagnostics(policy, CONFIG, 1.0, followed)
    optimizer, batch = torch.optim.SGD(policy.model.parameters()), make_batch(rollouts, sign * advantages)
    update = update_policy(policy, optimizer, batch, algorithm, CONFIG, TrainState(step=1), needs_correction=False)
    return movement.measure(rollouts, advantages, update)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_right_update_moves_tokens_the_way_their_advantage_points_and_a_wrong_sign_is_seen(policy, sign):
    _, found = step(policy, sampled_by(policy, fixed_rollouts()), sign=float(sign))
    assert sign * (found["update/agreement"] - found["update/agreement_by_chance"]) > MARGIN
    assert sign * found["update/alignment"] > 0.5
    assert 0 < found["update/spill_over"] < 1 and found["update/change_mean"] > 0
    assert found["update/engine_lag"] < 1e-4
    stale = sampled_by(tiny_policy(policy.processes), fixed_rollouts())  # by the engine of a step before
    assert step(policy, stale)[1]["update/engine_lag"] > 0.3


def test_the_numbers_by_hand():
    moved = torch.tensor([0.2, -0.1, 0.1, 0.3, torch.nan, 0.0])
    advantages = torch.tensor([1.0, -1.0, -2.0, 0.0, 1.0, 1.0])
    # Trained and moved: +0.2 with +, -0.1 with -, +0.1 with -. Two of three agree; up 2/3, advantages above 0: 1/3.
    found = curves(moved, advantages, torch.tensor([0.1, -0.3]), torch.tensor([0.05, 0.0, -0.1, 9.0, 9.0, 0.05]))
    expected = {
        "update/agreement": 2 / 3,
        "update/agreement_by_chance": 2 / 3 * 1 / 3 + 1 / 3 * 2 / 3,
        "update/alignment": (0.2 + 0.1 - 0.2) / (0.2 + 0.1 + 0.2),
        "update/change_mean": 0.4 / 4,
        "update/engine_lag": 0.05 / 0.1,
        "update/spill_over": 0.2 / 0.1,
    }
    assert found == pytest.approx(expected, rel=1e-6)
    assert curves(torch.zeros(2), torch.ones(2), torch.ones(1), torch.zeros(2)) == {}
    assert "update/spill_over" not in curves(moved, advantages, torch.zeros(0), torch.zeros(6))
