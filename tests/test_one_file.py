"""docs/one_file.py computes what the package computes: GRPO's loss and gradient, with one update and with two."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gradients import CPU, tiny_policy
from transformers import AutoModelForCausalLM

from minrl.algorithms import ALGORITHMS, compute_advantages
from minrl.batch import make_batch
from minrl.dataflow import Example, Reward, TrainState
from minrl.models.distributed import Processes
from minrl.tasks.countdown import reward
from minrl.update import update_policy
from tests.parsed import sized


@pytest.fixture(scope="module")
def one_file():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parent.parent / "docs/one_file.py")))


PROMPTS = [[5, 6, 7], [8, 9]]
COMPLETIONS = [[[10, 11, 2], [12, 2], [13, 14, 15, 16]], [[10, 2], [17, 18, 19, 2], [20, 21, 2]]]
REWARDS = [[1.0, 0.0, 0.1], [0.0, 1.0, 1.0]]


def batch_of(one_file):
    """The same sequences as a padded batch."""
    wide, long = max(map(len, PROMPTS)), max(len(one) for group in COMPLETIONS for one in group)
    rows = []
    for prompt, group in zip(PROMPTS, COMPLETIONS, strict=True):
        for said in group:
            left, right = wide - len(prompt), long - len(said)
            rows.append(([0] * left + prompt + said + [0] * right, [0] * left + [1] * len(prompt + said) + [0] * right,
                         [0] * wide + [1] * len(said) + [0] * right))  # fmt: skip
    return one_file.Batch(*(torch.tensor(part) for part in zip(*rows, strict=True)))


@pytest.mark.parametrize("updates", [1, 2])
def test_its_updates_are_those_of_the_package(one_file, make_rollout, updates):
    policy = tiny_policy(Processes(CPU))
    model = AutoModelForCausalLM.from_config(policy.model.config).to(torch.float64).eval()
    model.load_state_dict(policy.model.state_dict())
    settings = {"passes_per_step": updates, "learning_rate": 0.3, "warmup_steps": 0, "schedule": "constant"}
    config = sized(algorithm="grpo", max_grad_norm=1.0, **settings)
    sampled = [
        make_rollout(prompt, completion, group=group, sample=sample, reward=Reward(REWARDS[group][sample]))
        for group, prompt in enumerate(PROMPTS)
        for sample, completion in enumerate(COMPLETIONS[group])
    ]
    advantages = compute_advantages(sampled, ALGORITHMS["grpo"], config, TrainState())
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.3)
    made = make_batch(sampled, advantages.values)
    metrics = update_policy(policy, optimizer, made, ALGORITHMS["grpo"], config, TrainState(step=1), False).metrics

    own = one_file.advantages_of(torch.tensor(REWARDS, dtype=torch.float64))
    assert own.tolist() == pytest.approx(advantages.values.tolist(), abs=1e-6)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    losses = one_file.update(model, torch.optim.SGD(model.parameters(), lr=0.3), batch_of(one_file), own, updates)
    assert sum(losses) / updates == pytest.approx(metrics["policy/loss"], abs=1e-6)
    expected = dict(policy.model.named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=0, msg=name)
    assert max(float((weight.detach() - before[name]).abs().max()) for name, weight in model.named_parameters()) > 1e-3


def test_its_reward_is_that_of_the_task_and_no_numbers_are_on_both_sides(one_file):
    for said, value in (("7 + 5 - 3", 1.0), ("3 + 5 + 7", 0.1), ("3 ** 5 + 7", 0.0), ("3 + 5", 0.0)):
        assert one_file.reward(f"<answer> {said} </answer>", (3, 5, 7), 9) == value
        own = reward(f"<answer> {said} </answer>", Example("", "", {"numbers": [3, 7, 5], "target": 9}))
        assert own.value == value or "**" in said  # which the task reads
    train, held_out = ({numbers for numbers, _ in side} for side in one_file.problems())
    assert train.isdisjoint(held_out) and held_out
