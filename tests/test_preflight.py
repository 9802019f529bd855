"""What would go wrong is found before step 1, in one line each, with what to do."""

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from together import together

import minrl
from minrl.config import OptimizerConfig, TrainerConfig
from minrl.engines.torch_engine import TorchEngine
from minrl.optimizer import make_optimizer
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts
from minrl.run import preflight as module
from minrl.run.checkpoint import save_checkpoint
from minrl.run.preflight import (
    Sampled,
    answer_findings,
    checkpoint_bytes,
    context_findings,
    disk_findings,
    drawn,
    estimate,
    leave_out_unusable,
    memory_findings,
    preflight,
    rate_findings,
    require_room,
    sample_findings,
    sampled_as,
)
from minrl.tasks import Dataset, Task
from minrl.types import Example, Reward, TrainState, UserError
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


@pytest.mark.parametrize("prompt", [" ".join(["1"] * 400), " ".join(["1"] * 10), "", " \n", [], "1 \ud800"])
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
OWN = f'File "{Path(minrl.__file__).parent}/types.py", line 56, in __getitem__'
THEIRS = 'File "/mine/beads.py", line 7, in reward'
FOUND = {  # the completions with their rewards, the failure, the limit of the sample, and what is found
    "healthy": ([(ENDED, 0.0), (ENDED, 1.0)], "", 8, ""),
    "ended by a stop string": ([(OPEN, 0.0), (OPEN, 1.0)], "", 8, ""),
    "no end token": ([(CUT, 0.0), (CUT, 1.0)], "", 8, "no completion produced an end token [2] in 8 tokens: raise"),
    "equal": ([(ENDED, 0.1)] * 4, "", 8, "every completion was rewarded 0.1"),
    "a tenth cut off": ([(CUT, 0.0), *[(ENDED, 1.0)] * 9], "", 8, ""),
    "more": ([(CUT, 0.0), *[(ENDED, 1.0)] * 8], "", 8, "11% of the completions were cut off at 8 tokens"),
    "cut off by the sample's own limit": ([(CUT, 0.0)] * 3, "", 2, ""),
    "and ended": ([*[(CUT, 0.0)] * 3, (ENDED, 0.5)], "", 2, "every completion was rewarded 0.5"),
    "failed": (FAILED, "File", 8, "1 of 3 rewards failed, the first with: KeyError: 'answer'; fix"),
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
    task, config = Task(Dataset(lengths(1), lengths(2)), never), TrainerConfig(max_tokens=8)
    found = list(sample_findings(policy, None, "mine", task, played, limit, 0.0, config))
    assert len(found) == bool(expected) and all(expected in finding for finding in found)


def test_answers_that_need_more_tokens_than_a_completion_has_are_counted_with_what_they_need(policy):
    task = Task(Dataset(lengths(2, 5, 7), lengths(1)), never, shortest_answer=lambda example: example.prompt)
    found = partial(answer_findings, policy, "mine", task, task.dataset.train)  # each with an end token
    one_finding(found(5), "2 of 3 examples", "--max-tokens 8")
    assert not list(found(8)) and list(found(7))


def test_the_size_of_a_checkpoint_is_known_before_there_is_one(policy, tmp_path):
    trained = make_optimizer(policy, OptimizerConfig())
    weights = list(policy.model.parameters())
    for weight in weights:
        weight.grad = weight * 0
    trained.step()
    path = save_checkpoint(tmp_path, policy, trained, TrainState(step=1), keep=0)
    size = sum(file.stat().st_size for file in path.iterdir() if file.suffix == ".safetensors")
    assert checkpoint_bytes(policy, TrainerConfig()) == pytest.approx(size, rel=0.02)
    # 4 bytes for each weight that is saved, and of those that train two moments of 4 bytes, or of 1.
    for weight in weights[1:]:
        weight.requires_grad_(False)
    own, adapter = weights[0].numel(), TrainerConfig(lora_rank=4, lora_checkpoint="adapter", optimizer="adamw8bit")
    assert checkpoint_bytes(policy, adapter) == 4 * own + 2 * own


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 3),  # two that stay, and the one that is written before the oldest goes
        ({"keep_best": True, "steps": 4}, 3),  # after steps 2 and 4, and the best
        ({"keep_checkpoints": 0}, 3),  # after steps 2, 4 and 6
        ({"save_every": 0}, 1),  # after the last
    ],
)
def test_room_for_one_checkpoint_is_needed_and_for_all_is_advised(policy, tmp_path, monkeypatch, changes, count):
    settings = {"save_every": 2, "keep_checkpoints": 2, "keep_best": False, "steps": 6, **changes}
    config = TrainerConfig(checkpoints_dir=str(tmp_path), **settings)
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


def test_several_processes_find_what_one_would(make_policy, sevens):
    def found(policy):
        rewards = Workers(1, deadline_s=120.0)
        rewards.take_seconds = lambda: 100.0 * policy.processes.rank  # only the last process waits for its rewards
        return list(preflight(policy, TorchEngine(policy), rewards, sevens, TrainerConfig(group_size=2, max_tokens=3)))

    alone = found(make_policy())
    seconds = 100.0 / (2 * min(8, len(sevens.dataset.train)))  # two completions of each of at most 8 examples
    assert alone
    for findings in together(2, lambda member: replace(make_policy(), processes=member), found):
        assert findings[:-1] == alone and findings[-1].startswith(f"a reward takes {seconds:.1f} s")


def test_a_reward_that_always_raises_ends_the_run_in_one_line_with_its_place(policy, engine, workers, sevens):
    task = Task(sevens.dataset, unfinished)
    line, count = unfinished.__code__.co_firstlineno, 2 * len(sevens.dataset.train)
    with pytest.raises(UserError, match=f"every reward .* failed in the preflight, {count} of {count}") as refused:
        list(preflight(policy, engine, workers, task, TrainerConfig(group_size=2, max_tokens=3)))
    assert "NotImplementedError" in str(refused.value) and "\n" not in str(refused.value)
    (place,) = re.findall(r"rewards\.py:(\d+)\)", str(refused.value))
    assert line < int(place) <= line + 3


def test_prompts_that_leave_a_completion_less_than_its_tokens_are_counted(policy, engine, workers):
    assert list(context_findings("mine", [3, 6], 4, 10)) == list(context_findings("mine", [], 4, 10)) == []
    one_finding(context_findings("mine", [3, 7, 8], 4, 10), "2 of 3 prompts", "has 8: set --max-tokens 2")
    # A preflight measures all prompts, and of episodes those that were played.
    policy.model.config.max_position_embeddings = 24
    many = [Example(f"{n}", " ".join(["1"] * (20 if n == 11 else 3)), {}) for n in range(12)]
    held_out = [Example(f"held out {n}", "1 1", {}) for n in range(20)]
    one_turn = Task(Dataset(many, held_out), lambda text, example: Reward(float(len(text) % 2)), cheap=True)
    played = replace(one_turn, episode=lambda example, _: one_turn._single_turn(example))
    for task, counted in ((one_turn, "1 of 32 prompts"), (played, "2 of 24 prompts")):
        found = preflight(policy, engine, workers, task, TrainerConfig(group_size=2, max_tokens=8))
        one_finding((one for one in found if "--max-tokens in the" in one), counted, "set --max-tokens 4")


@pytest.mark.parametrize(
    ("seconds", "held_out", "finding"),
    [
        (2.0, 20, ""),  # a second for each reward is not slow
        (2.4, 20, "a reward takes 1.2 s"),
        (2.0, 19, "countdown has 19 held-out examples"),
    ],
)
def test_examples_are_sampled_as_training_would_sample_them(
    policy, engine, workers, make_rollout, monkeypatch, seconds, held_out, finding
):
    asked, taken = [], iter([1000.0, seconds])  # what was waited for before is not the preflight's
    rollouts = [make_rollout([1], [5, END], reward=Reward(value)) for value in (0.0, 1.0)]
    monkeypatch.setattr(workers, "take_seconds", lambda: next(taken))
    monkeypatch.setattr(module, "rollout", lambda *given: asked.append(given[4:]) or Rollouts(rollouts, []))
    examples = [Example(str(n), str(n), {}) for n in range(20)]
    task = Task(Dataset(examples, [Example(f"held out {n}", "", {}) for n in range(held_out)]), never, cheap=True)
    config = TrainerConfig(group_size=3, max_tokens=5, temperature=0.7, stop_strings=("stop",), seed=9)
    found = list(preflight(policy, engine, workers, task, config))
    assert len(found) == bool(finding) and all(finding in one for one in found)
    plan = Plan(3, 5, 0.7, 9, "preflight", 0, stop_strings=("stop",))
    assert asked == [(drawn(examples, 20, 9), plan)]


SMALL = 135 * 10**6


@pytest.mark.parametrize(
    ("weights", "rate", "rank", "said"),
    [
        (10**9, 2e-5, 0, "all 1B weights are trained at a learning rate of 2e-05, where 1e-06 is usual: the model may"),
        (10**9, 1e-5, 0, ""),
        (10**9, 1e-7, 0, ""),
        (10**9, 1e-8, 0, "little will be learned; raise it, such as to --learning-rate 1e-06"),
        (10**9, 1e-3, 8, ""),
        (10**9, 2e-3, 8, "adapters of a model of 1B weights are trained at a learning rate of 0.002, where 1e-05 is"),
    ],
)
def test_a_learning_rate_that_suits_another_size_or_other_weights_is_named(weights, rate, rank, said):
    config = TrainerConfig(model_id="some/model", learning_rate=rate, lora_rank=rank)
    found = list(rate_findings(SimpleNamespace(num_weights=weights), config))
    assert len(found) == bool(said) and all(said in finding for finding in found)


@pytest.mark.parametrize(("optimizer", "moments"), [("adamw", 8), ("adamw8bit", 2)])
def test_training_needs_gradients_moments_and_activations_beside_what_is_loaded(
    policy, monkeypatch, optimizer, moments
):
    weights = list(policy.model.parameters())
    for weight in weights[1:]:
        weight.requires_grad_(False)
    # A gradient of 4 bytes and the moments for each weight that trains; for each of 2 x 3 x 9 tokens the inputs of two
    # layers of 64 in 4 bytes, and twice the 40 x 64 + 16 x (1 x 32) + 16 x 192 bytes that one layer keeps.
    more = (4 + moments) * weights[0].numel() + 54 * (2 * 64 * 4 + 2 * (40 * 64 + 16 * 32 + 16 * 192))
    config = TrainerConfig(prompts_per_step=2, group_size=3, max_tokens=9, optimizer=optimizer)
    monkeypatch.setattr(type(policy), "free_memory", lambda self: more + 1)
    assert list(memory_findings(policy, config)) == []
    monkeypatch.setattr(type(policy), "free_memory", lambda self: more)
    one_finding(memory_findings(policy, config), "weights needs about", "choose a smaller model")
    assert list(memory_findings(policy, config.with_settings(micro_batch_tokens=53))) == []


@pytest.mark.parametrize(
    ("weights", "settings", "cheap", "sampled"),
    [
        (10**6, {}, True, (48, 8, 192)),  # a step
        (10**6, {}, False, (8, 8, 192)),  # whose rewards take time
        (SMALL, {"prompts_per_step": 4, "max_tokens": 64}, True, (4, 8, 64)),  # a default step: 2,048 tokens
        (SMALL, {"max_tokens": 1024}, True, (2, 8, 128)),  # as many tokens, in completions of at most twice its limit
        (SMALL, {"group_size": 64, "max_tokens": 64}, True, (1, 32, 64)),
    ],
)
def test_no_more_is_sampled_than_in_a_default_step(policy, monkeypatch, weights, settings, cheap, sampled):
    monkeypatch.setattr(type(policy), "num_weights", weights)
    task = Task(Dataset(lengths(*range(1, 99)), lengths(99)), never, cheap=cheap)
    examples, plan = sampled_as(policy, "mine", task, TrainerConfig(**settings), 1)
    assert (len(examples), plan.group_size, plan.max_tokens) == sampled


def test_the_time_and_memory_of_a_run_follow_from_the_sample(policy, make_rollout, monkeypatch):
    """Four completions in 2 s, of which one, cut off, may be twice as long: 5 / 4 of it each. A forward pass of them
    takes 0.8 s.
    """
    monkeypatch.setattr(module, "forward_s", lambda policy, rollouts, _: 0.2 * len(rollouts))
    monkeypatch.setattr(module, "expected_bytes", lambda policy, config, tokens: tokens * 2**30)
    rollouts = [make_rollout([1], [5, 6], finish_reason=end) for end in ("stop", "stop", "stop", "length")]
    sizes = {"prompts_per_step": 2, "group_size": 4, "max_tokens": 4, "eval_every": 5, "eval_samples": 2}
    task = Task(Dataset(lengths(99), lengths(*range(10))), never)
    sampled = {"mine": Sampled(rollouts, 2, 2.0)}
    line = estimate(policy, {"mine": task}, sampled, TrainerConfig(steps=10, **sizes), 2**29)
    # Of 8 completions: 8 / 4 x 5 / 4 x (2 + 3 x 0.8) s. Of 10 x 3 held-out ones: 30 / 4 x 5 / 4 x 2 s, three times.
    # 10 steps of 11 s and 3 evaluations of 18.75 s are 166 s. 8 / 4 x 5 / 4 x (4 x 3) tokens.
    assert line == "about 11 s a step, 19 s an evaluation, 3 min in all, and 30.5 GiB of memory"
