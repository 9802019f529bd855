"""What would go wrong is found before step 1, in one line each, with what to do."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import minrl
from minrl.dataflow import Example, Reward, UserError
from minrl.rollout import Rollouts
from minrl.run import preflight as module
from minrl.run.preflight import (
    Sampled,
    checkpoint_bytes,
    disk_findings,
    estimate,
    held_bytes,
    leave_out_unusable,
    memory_findings,
    preflight,
    rate_findings,
    require_room,
    sample_findings,
    sampled_as,
)
from minrl.tasks import Dataset, Task
from tests.parsed import sized
from tests.rewards import unfinished

END = 2


def never(text, example):
    return Reward(0.0)


def lengths(*counts):
    """An example for each prompt of so many tokens."""
    return [Example(str(count), " ".join(["1"] * count), {}) for count in counts]


def one_finding(findings, *words):
    (finding,) = findings
    assert all(word in finding for word in words), finding


@pytest.mark.parametrize("prompt", [" ".join(["1"] * 10), " \n", "1 \ud800"])
def test_examples_without_a_prompt_or_room_are_left_out_and_counted(prompt, policy, engine, said):
    policy.model.config.max_position_embeddings = 10
    dataset = Dataset([*lengths(3, 9), Example("none", prompt, {})], lengths(5, 11))
    kept = leave_out_unusable(policy, engine, "mine", Task(dataset, never)).dataset
    assert ([e.id for e in kept.train], [e.id for e in kept.held_out]) == (["3", "9"], ["5"])
    assert "1 of 3 training examples" in said[0] and "1 of 2 held-out examples" in said[1]
    with pytest.raises(UserError, match="no held-out example of mine"):
        leave_out_unusable(policy, engine, "mine", Task(Dataset(lengths(5), lengths(10)), never))


ENDED, OPEN, CUT = ([5, END], "stop"), ([5, 6], "stop"), ([5, 6], "length")
FAILED = [(ENDED, None), (ENDED, 0.0), (ENDED, 1.0)]
OWN = f'File "{Path(minrl.__file__).parent}/dataflow.py", line 56, in __getitem__'
THEIRS = 'File "/mine/beads.py", line 7, in reward'
FOUND = {  # the completions with their rewards, the failure, the limit of the sample, and what is found
    "healthy": ([(ENDED, 0.0), (ENDED, 1.0)], "", 8, ""),
    "no end token": ([(CUT, 0.0), (CUT, 1.0)], "", 8, "no completion produced an end token [2] in 8 tokens: raise"),
    "equal": ([(ENDED, 0.1)] * 4, "", 8, "every completion was rewarded 0.1"),
    "more": ([(CUT, 0.0), *[(ENDED, 1.0)] * 8], "", 8, "11% of the completions were cut off at 8 tokens"),
    "cut off by the sample's own limit": ([(CUT, 0.0)] * 3, "", 2, ""),
    "failed in the task": (FAILED, f"{THEIRS}\n  {OWN}", 8, "KeyError: 'answer' (/mine/beads.py:7); fix"),
}


@pytest.mark.parametrize(("completions", "failure", "limit", "expected"), FOUND.values(), ids=FOUND)
def test_what_completions_and_their_rewards_show(policy, make_rollout, completions, failure, limit, expected):
    """Of completions of at most `limit` tokens, in a run of completions of at most 8. The end token in the prompt does
    not count.
    """
    rollouts = [
        make_rollout([END], ids, reward=None if value is None else Reward(value), finish_reason=end)
        for (ids, end), value in completions
    ]
    played = Rollouts(rollouts, [f"Traceback\n  {failure}\nKeyError: 'answer'\n"] * bool(failure))
    task, config = Task(Dataset(lengths(1), lengths(2)), never), sized(max_tokens=8)
    found = list(sample_findings(policy, None, "mine", task, played, limit, 0.0, config))
    assert len(found) == bool(expected) and all(expected in finding for finding in found)


def test_one_prompt_is_shown_with_its_best_and_its_worst_completion(policy, make_rollout):
    prompt, (best, *others) = policy.encode_prompt("numbers 3 7"), ([7, END], [8, END], [9, 9])
    rollouts = [
        make_rollout([5], best, group=0, reward=Reward(0.5)),  # of a group without a difference
        *(make_rollout(prompt, ids, group=1, reward=Reward(0.2)) for ids in others),
        make_rollout(prompt, best, group=1, reward=Reward(0.9, {"form": 0.1, "right": 0.8})),
        make_rollout(prompt, others[1], group=1, reward=None),
    ]
    (title, shown, first, said, second, other) = module.best_and_worst(policy, "mine", rollouts)
    assert title == "a prompt of mine as the model sees it, 3 tokens:" and shown == f"    {policy.decode_all(prompt)}"
    assert first == "the best of its 3 completions, reward 0.9 (form 0.1, right 0.8):"
    assert said == f"    {policy.decode_all(best)}" and policy.decode_all([END]) in said
    assert second == "the worst of its 3 completions, reward 0.2:" and other == f"    {policy.decode_all(others[0])}"
    long = make_rollout(prompt, [7] * 5000, reward=Reward(0.5))
    lines = module.best_and_worst(policy, "mine", [long])
    assert len(lines) == 6 and max(map(len, lines)) < 250 and "worst" not in "".join(lines)
    assert module.best_and_worst(policy, "mine", rollouts[-1:]) == []


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 3),  # two that stay, and the one that is written before the oldest goes
        ({"keep_best": True, "steps": 4}, 3),  # after steps 2 and 4, and the best
    ],
)
def test_room_for_one_checkpoint_is_needed_and_for_all_is_advised(policy, tmp_path, monkeypatch, changes, count):
    settings = {"save_every": 2, "keep_checkpoints": 2, "keep_best": False, "steps": 6, **changes}
    config = sized(checkpoints_dir=str(tmp_path), **settings)
    one, free = checkpoint_bytes(policy, config), []
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[-1]))
    free.append(count * one + 1)
    assert list(disk_findings(policy, config)) == []
    free.append(count * one)
    one_finding(disk_findings(policy, config), f"{count} checkpoints take about", "--keep-checkpoints")
    free.append(one + 1)
    require_room(policy, config, tmp_path / "run")
    free.append(one)
    with pytest.raises(UserError, match=r"a checkpoint takes about .* free: make room there"):
        require_room(policy, config, tmp_path / "run")


def test_a_reward_that_always_raises_ends_the_run_in_one_line_with_its_place(policy, engine, workers, sevens):
    task = Task(sevens.dataset, unfinished)
    line, count = unfinished.__code__.co_firstlineno, 2 * len(sevens.dataset.train)
    with pytest.raises(UserError, match=f"every reward .* failed in the preflight, {count} of {count}") as refused:
        list(preflight(policy, engine, workers, task, sized(group_size=2, max_tokens=3)))
    assert "NotImplementedError" in str(refused.value) and "\n" not in str(refused.value)
    (place,) = re.findall(r"rewards\.py:(\d+)\)", str(refused.value))
    assert line < int(place) <= line + 3


SMALL = 135 * 10**6


@pytest.mark.parametrize(
    ("weights", "rate", "rank", "said"),
    [
        (10**9, 2e-5, 0, "all 1B weights are trained at a learning rate of 2e-05, where 1e-06 is usual: the model may"),
        (10**9, 1e-5, 0, ""),
        (10**9, 1e-8, 0, "little will be learned; raise it, such as to --learning-rate 1e-06"),
    ],
)
def test_a_learning_rate_that_suits_another_size_or_other_weights_is_named(weights, rate, rank, said):
    config = sized(model_id="some/model", learning_rate=rate, lora_rank=rank)
    found = list(rate_findings(SimpleNamespace(num_weights=weights), config))
    assert len(found) == bool(said) and all(said in finding for finding in found)


def test_training_needs_gradients_moments_and_activations_beside_what_is_loaded(policy, monkeypatch):
    weights = list(policy.model.parameters())
    for weight in weights[1:]:
        weight.requires_grad_(False)
    policy._activation_growth = (100.0, 2.0)  # bytes of a token, and of each token that it sees
    # A gradient of 4 bytes and the moments for each weight that trains; activations of 2 x 3 x 9 tokens.
    more = (4 + 8) * weights[0].numel() + 54 * (100 + 2 * 9)
    config = sized(prompts_per_step=2, group_size=3, max_tokens=9, activation_checkpointing="never")
    monkeypatch.setattr(type(policy), "free_memory", lambda self: more + 1)
    assert list(memory_findings(policy, config)) == []
    monkeypatch.setattr(type(policy), "free_memory", lambda self: more)
    one_finding(memory_findings(policy, config), "beside the loaded weights", "choose a smaller model")
    assert list(memory_findings(policy, config.with_settings(micro_batch_tokens=53))) == []
    assert (
        held_bytes(policy, config, 10**6)["activations"] == config.micro_batch_tokens * 118
    )  # no more than a micro-batch


@pytest.mark.parametrize(
    ("sharding", "shards"), [("none", 1), ("full", 8), ("hybrid", 4)], ids=["none", "full", "hybrid"]
)
def test_eight_processes_on_two_machines_hold_shards_each(policy, monkeypatch, sharding, shards):
    half = SimpleNamespace(count=8, local_count=4, dtype=torch.bfloat16)
    monkeypatch.setattr(policy, "processes", half)
    monkeypatch.setattr(type(policy), "free_memory", lambda self: 10)  # so little that activations are recomputed
    policy._activation_growth = (100.0, 0.0)
    held, config = policy.num_weights, sized(sharding=sharding)
    found = held_bytes(policy, config, 7)
    assert found == {"gradients": 4 * held / shards, "moments": 8 * held / shards, "casts": 2 * held / shards} | {
        "activations": 700
    }


@pytest.mark.parametrize(
    ("weights", "settings", "cheap", "sampled"),
    [
        (10**6, {}, True, (48, 8, 192)),  # a step
        (SMALL, {"max_tokens": 1024}, True, (2, 8, 128)),  # as many tokens, in completions of at most twice its limit
    ],
)
def test_no_more_is_sampled_than_in_a_default_step(policy, monkeypatch, weights, settings, cheap, sampled):
    monkeypatch.setattr(type(policy), "num_weights", weights)
    task = Task(Dataset(lengths(*range(1, 99)), lengths(99)), never, cheap=cheap)
    examples, plan = sampled_as(policy, "mine", task, sized(**settings), 1)
    assert (len(examples), plan.group_size, plan.max_tokens) == sampled


def test_the_time_and_memory_of_a_run_follow_from_the_sample(policy, make_rollout, monkeypatch):
    """Four completions in 2 s, of which one, cut off, may be twice as long: 5 / 4 of it each. A forward pass of them
    takes 0.8 s.
    """
    monkeypatch.setattr(module, "forward_s", lambda policy, rollouts, _: 0.2 * len(rollouts))
    monkeypatch.setattr(module, "held_bytes", lambda policy, config, tokens: {"activations": tokens * 2**30})
    rollouts = [make_rollout([1], [5, 6], finish_reason=end) for end in ("stop", "stop", "stop", "length")]
    sizes = {"prompts_per_step": 2, "group_size": 4, "max_tokens": 4, "eval_every": 5, "eval_samples": 2}
    task = Task(Dataset(lengths(99), lengths(*range(10))), never)
    sampled = {"mine": Sampled(rollouts, 2, 2.0)}
    line = estimate(policy, {"mine": task}, sampled, sized(steps=10, **sizes), 2**29)
    # Of 8 completions: 8 / 4 x 5 / 4 x (2 + 3 x 0.8) s. Of 10 x 3 held-out ones: 30 / 4 x 5 / 4 x 2 s, three times.
    # 10 steps of 11 s and 3 evaluations of 18.75 s are 166 s. 8 / 4 x 5 / 4 x (4 x 3) tokens.
    assert line == "about 11 s a step, 19 s an evaluation, 3 min in all, and 30.5 GiB of memory"
