"""What would go wrong is said before step 1, in one line each, with what to do."""

import pytest

from minrl.config import RolloutConfig, TrainerConfig
from minrl.preflight import memory_findings, preflight, rollout_findings
from minrl.tasks import Task
from minrl.types import Reward

END = 2


def findings(policy, rollouts, failures=()):
    return rollout_findings(rollouts, list(failures), policy, 8)


def test_a_healthy_run_has_no_findings(policy, make_rollout):
    rollouts = [make_rollout([1], [5, END], reward=Reward(value)) for value in (0.0, 1.0)]
    assert findings(policy, rollouts) == []


def test_truncated_completions_are_named_with_what_to_do(policy, make_rollout):
    cut = [make_rollout([1], [5, 6], reward=Reward(n / 8), finish_reason="length") for n in range(3)]
    (finding,) = findings(policy, [*cut, make_rollout([1], [5, END])])
    assert finding.startswith("75% of the completions were cut off at 8 tokens: raise --max-tokens")


def test_an_end_token_that_never_comes_is_named(policy, make_rollout):
    rollouts = [make_rollout([END], [5, 6], reward=Reward(v), finish_reason="length") for v in (0.0, 1.0)]
    (finding,) = findings(policy, rollouts)  # the end token in the prompt does not count
    assert "no completion produced an end token [2]" in finding and "--stop-strings" in finding


def test_equal_rewards_are_named(policy, make_rollout):
    (finding,) = findings(policy, [make_rollout([1], [5, END], reward=Reward(0.1))] * 4)
    assert "every completion was rewarded 0.1: nothing can be learned" in finding


def test_failing_rewards_are_named_with_the_last_line_of_the_first(policy, make_rollout):
    rollouts = [make_rollout([1], [5, END], reward=reward) for reward in (None, Reward(0.0), Reward(1.0))]
    (finding,) = findings(policy, rollouts, ["Traceback\n  File\nKeyError: 'answer'\n"])
    assert "1 of 3 rewards failed, the first with: KeyError: 'answer'" in finding


def test_memory_that_is_too_small_is_named(policy, monkeypatch):
    assert memory_findings(policy) == []
    monkeypatch.setattr(type(policy), "free_memory", lambda self: 1000)
    (finding,) = memory_findings(policy)
    assert "choose a smaller model" in finding
    monkeypatch.setattr(type(policy), "free_memory", lambda self: None)
    assert memory_findings(policy) == []


def test_slow_rewards_are_named(policy, engine, workers, sevens, monkeypatch):
    monkeypatch.setattr(workers, "take_seconds", lambda: 100.0)
    config = TrainerConfig(rollout=RolloutConfig(group_size=2, max_tokens=3))
    assert any("a reward takes" in finding for finding in preflight(policy, engine, workers, sevens, config))


@pytest.mark.parametrize("cheap", [True, False])
def test_a_raising_reward_is_found_before_step_1(policy, engine, workers, sevens, cheap):
    task = Task(sevens.dataset, unfinished, cheap=cheap)
    config = TrainerConfig(rollout=RolloutConfig(group_size=2, max_tokens=3))
    found = preflight(policy, engine, workers, task, config)
    assert any("NotImplementedError" in finding for finding in found)
    assert all("\n" not in finding for finding in found)


def test_training_samples_are_not_those_of_the_preflight(policy, engine, workers, sevens):
    seen = []
    task = Task(sevens.dataset, lambda text, example: seen.append(example.id) or Reward(0.0), cheap=True)
    preflight(policy, engine, workers, task, TrainerConfig(rollout=RolloutConfig(group_size=1, max_tokens=2)))
    assert set(seen) <= {example.id for example in sevens.dataset.train}


def unfinished(completion, example):
    raise NotImplementedError
