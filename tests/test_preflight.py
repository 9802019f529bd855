"""What would go wrong is found before step 1, in one line each, with what to do."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import minrl
from minrl.dataflow import Example, Reward, UserError
from minrl.rollout import Rollouts
from minrl.run import preflight as module
from minrl.run.preflight import Sampled, disk_findings, held_bytes, leave_out_unusable, memory_findings, preflight
from minrl.tasks import Dataset, Task
from minrl.tasks.mixture import mixture
from tests.jobs import unfinished
from tests.parsed import sized

END = 2


def never(text, example):
    return Reward(0.0)


def lengths(*counts):
    """An example for each prompt of so many tokens."""
    return [Example(str(count), " ".join(["1"] * count), {}) for count in counts]


def one_finding(findings, *words):
    (finding,) = findings
    assert all(word in finding for word in words), finding


def test_examples_without_a_prompt_or_room_are_left_out_and_counted(policy, engine, said):
    policy.model.config.max_position_embeddings = 10
    dataset = Dataset([*lengths(3, 9, 10), Example("none", " \n", {})], lengths(5, 11))
    kept = leave_out_unusable(policy, engine, "mine", Task(dataset, never)).dataset
    assert ([e.id for e in kept.train], [e.id for e in kept.held_out]) == (["3", "9"], ["5"])
    one_finding(said, "mine: 3 of 6 examples are left out", "alone fill the 10 tokens")
    with pytest.raises(UserError, match="no training or no held-out example of mine leaves room"):
        leave_out_unusable(policy, engine, "mine", Task(Dataset(lengths(5), lengths(10)), never))


ENDED, CUT = ([5, END], "stop"), ([5, 6], "length")
FAILURE = f"""Traceback
  File "/mine/beads.py", line 7, in reward
  File "{Path(minrl.__file__).parent}/dataflow.py", line 56, in __getitem__
KeyError: 'answer'"""
FOUND = {  # the completions with their rewards, the failure, and what is found
    "healthy": ([(ENDED, 0.0), (ENDED, 1.0)], "", ""),
    "no end token": ([(CUT, 0.0), (CUT, 1.0)], "", "no completion produced an end token [2] in 8 tokens: raise"),
    "equal but for rounding": ([(ENDED, 0.3), (ENDED, 0.1 + 0.2)], "", "every completion was rewarded 0.3"),
    "more": ([(CUT, 0.0), *[(ENDED, 1.0)] * 8], "", "11% of the completions were cut off at 8 tokens"),
    "some fail": ([(ENDED, None), (ENDED, 0.0), (ENDED, 1.0)], FAILURE, "KeyError: 'answer' (/mine/beads.py:7); fix"),
}


@pytest.mark.parametrize(("completions", "failure", "expected"), FOUND.values(), ids=FOUND)
def test_what_completions_and_their_rewards_show(policy, make_rollout, completions, failure, expected):
    """Of completions of at most 8 tokens. The end token in the prompt does not count."""
    rollouts = [
        make_rollout([END], ids, reward=None if value is None else Reward(value), finish_reason=end)
        for (ids, end), value in completions
    ]
    found = list(module.sample_findings(policy, "mine", Rollouts(rollouts, [failure] * bool(failure)), 8))
    assert len(found) == bool(expected) and all(expected in finding for finding in found)


def test_one_prompt_is_shown_with_its_best_and_its_worst_completion(policy, make_rollout):
    prompt, (best, other) = policy.encode_prompt("numbers 3 7"), ([7, END], [8, END])
    rollouts = [
        make_rollout([5], best, group=0, reward=Reward(0.5)),  # of a group without a difference
        make_rollout(prompt, other, group=1, reward=Reward(0.2)),
        make_rollout(prompt, best, group=1, reward=Reward(0.9, {"form": 0.1, "right": 0.8})),
        make_rollout(prompt, other, group=1, reward=None),
    ]
    shown = [text.strip() for text in module.best_and_worst(policy, "mine", rollouts)]
    assert shown[1::2] == [policy.decode_all(ids) for ids in (prompt, best, other)]
    assert "reward 0.9 (form 0.1, right 0.8)" in shown[2] and "reward 0.2" in shown[4]
    long = list(module.best_and_worst(policy, "mine", [make_rollout(prompt, [7] * 5000, reward=Reward(0.5))]))
    assert max(map(len, long)) < 250 and "worst" not in "".join(long)
    assert module.best_and_worst(policy, "mine", rollouts[-1:]) == []


def test_room_for_the_checkpoints_that_are_kept_is_advised(policy, tmp_path, monkeypatch):
    """Two that stay, the one that is written before the oldest goes, and the best."""
    config = sized(checkpoints_dir=str(tmp_path), save_every=2, keep_checkpoints=2, keep_best=True, steps=6)
    free = [4 * (4 + 8) * policy.num_weights + 1]  # float32 weights and both moments
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[-1]))
    assert list(disk_findings(policy, config)) == []
    free.append(free[0] - 1)
    one_finding(disk_findings(policy, config), "4 checkpoints take about", "--keep-checkpoints")


def test_a_reward_that_always_raises_ends_the_run_in_one_line_with_its_place(policy, engine, workers, sevens):
    task, place = Task(sevens.dataset, unfinished), rf"jobs\.py:{unfinished.__code__.co_firstlineno + 1}\)"
    said = rf"^every reward .* failed in the preflight, 6 of 6.* NotImplementedError \(.*{place}.*$"
    with pytest.raises(UserError, match=said):
        list(preflight(policy, engine, workers, task, sized(prompts_per_step=3, group_size=2, max_tokens=3)))


def test_a_learning_rate_that_suits_another_size_is_named():
    for rate, said in ((2e-5, "2e-05, where 1e-06 is usual: the model may"), (1e-5, ""), (1e-8, "little will be")):
        config = sized(model_id="some/model", learning_rate=rate)
        found = list(module.rate_findings(SimpleNamespace(num_weights=10**9), config))
        assert len(found) == bool(said) and all(said in finding for finding in found)


def test_training_needs_gradients_moments_and_activations_beside_what_is_loaded(policy, monkeypatch):
    weights = list(policy.model.parameters())
    for weight in weights[1:]:
        weight.requires_grad_(False)
    policy._activation_growth = (100.0, 0.0)
    # A gradient of 4 bytes and the moments for each weight that trains; activations of 2 x 3 x 9 tokens.
    more = (4 + 8) * weights[0].numel() + 54 * 100
    config = sized(prompts_per_step=2, group_size=3, max_tokens=9, activation_checkpointing="never")
    monkeypatch.setattr(type(policy), "free_memory", lambda self: more + 1)
    assert list(memory_findings(policy, config)) == []
    monkeypatch.setattr(type(policy), "free_memory", lambda self: more)
    one_finding(memory_findings(policy, config), "beside the loaded weights", "choose a smaller model")
    assert list(memory_findings(policy, config.with_settings(micro_batch_tokens=53))) == []
    assert held_bytes(policy, config, 10**6)["activations"] == config.micro_batch_tokens * 100  # of one at a time


@pytest.mark.parametrize(("sharding", "shards"), [("none", 1), ("full", 8), ("hybrid", 4)])
def test_eight_processes_on_two_machines_hold_shards_each(policy, monkeypatch, sharding, shards):
    half = SimpleNamespace(count=8, local_count=4, dtype=torch.bfloat16, device=torch.device("cuda"))
    monkeypatch.setattr(policy, "processes", half)
    monkeypatch.setattr(type(policy), "free_memory", lambda self: 10)  # so little that activations are recomputed
    policy._activation_growth, held = (100.0, 0.0), policy.num_weights
    expected = {"gradients": 4 * held / shards, "moments": 8 * held / shards, "casts": 2 * held / shards}
    assert held_bytes(policy, sized(sharding=sharding), 7) == {**expected, "activations": 700}


def test_the_time_and_memory_of_a_run_follow_from_the_sample_and_the_weights_of_its_tasks(
    policy, make_rollout, monkeypatch
):
    """Two tasks of weights 3 and 1: a step of 8 prompts has 6 of one and 2 of the other. Of each a group of 4 was
    sampled, in 2 s and in 10 s; a forward pass takes 0.2 s for a completion of 3 tokens.
    """
    monkeypatch.setattr(module, "forward_s", lambda policy, rollouts, config: 0.2 * len(rollouts))
    monkeypatch.setattr(module, "held_bytes", lambda policy, config, tokens: {"activations": tokens * 2**20})
    sizes = {"prompts_per_step": 8, "group_size": 4, "eval_every": 5, "eval_samples": 2, "steps": 10}
    task = Task(Dataset(lengths(99), lengths(*range(10))), never)
    sampled = {
        name: Sampled(1, [make_rollout([1], [5, 6])] * 4, s) for name, s in (("countdown", 2.0), ("hanoi", 10.0))
    }
    config = sized(task="countdown:3,hanoi:1", **sizes)
    line = module.estimate(policy, dict.fromkeys(sampled, task), sampled, config, 2**29)
    # 6 (2 + 3 x 0.8) + 2 (10 + 3 x 0.8) = 51.2 s. Of 10 x 3 held-out completions of each: 30 / 4 x (2 + 10) = 90 s.
    # 10 steps and 3 evaluations are 782 s. 8 x 4 x 3 tokens of 1 MiB beside 512.
    assert line == "about 0:00:52 a step, 0:01:30 an evaluation, 0:13:02 in all, and 0.6 GiB of memory"


def test_each_of_several_tasks_is_sampled_and_named_in_its_findings(policy, engine, workers, sevens):
    few = Task(Dataset(sevens.dataset.train, lengths(1, 2)), never, cheap=True, solution=lambda _: "1 2 3")
    config = sized(task="countdown:1,hanoi:9", prompts_per_step=2, group_size=2, max_tokens=3)
    both = mixture({"countdown": few, "hanoi": sevens}, config.task_weights)
    found = [one for one in preflight(policy, engine, workers, both, config) if "countdown" in one]
    assert found[0].startswith("countdown has 2 held-out examples: with fewer than 20")
    count = len(sevens.dataset.train) + 2  # one line of both splits
    assert found[1].startswith(f"{count} of {count} examples of countdown have no answer of 3 tokens or less")
    assert found[-1].startswith("countdown: every completion was rewarded 0: nothing can be learned")
