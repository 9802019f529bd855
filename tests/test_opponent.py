"""The frozen opponent: sampled by a model that does not learn, with seeds of its own, and never trained on."""

import shutil

import pytest
import torch

from minrl.dataflow import Completion, Example, Request, Reward, Turn, UserError
from minrl.engines import Sampling
from minrl.engines.torch_engine import EngineWithOpponent, TorchEngine
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.rollout import Plan, rollout
from minrl.tasks import Task
from minrl.tasks.task import split
from tests.chat_templates import tokenizer
from tests.conftest import CPU, save_small_model
from tests.runs import Run

SAMPLING = Sampling(0.9, frozenset({2}))


@pytest.fixture
def pair(make_policy):
    """A policy, another one that is frozen, and the engine over both."""
    policy, opponent = make_policy(0), make_policy(1)
    return policy, opponent, EngineWithOpponent(TorchEngine(policy), opponent, policy)


def requests(policy, *frozen):
    ids = policy.encode_prompt("numbers 1 2")
    return [Request(ids, seed, 6, is_frozen) for seed, is_frozen in enumerate(frozen)]


def test_each_request_is_sampled_by_its_own_model_and_reported_by_its_place(pair):
    policy, opponent, engine = pair
    mixed, ended = requests(policy, True, False, False, True, True), []
    completions = engine.generate(mixed, SAMPLING, on_end=ended.extend)
    by_policy, by_opponent = (TorchEngine(model).generate(mixed, SAMPLING) for model in (policy, opponent))
    chosen = [(by_opponent if request.frozen else by_policy)[i] for i, request in enumerate(mixed)]
    assert [c.ids for c in completions] == [c.ids for c in chosen]
    assert [c.ids for c in by_policy] != [c.ids for c in by_opponent]
    assert sorted(ended, key=lambda one: one[0]) == list(enumerate(completions))
    assert {index for index, _ in ended[:2]} == {1, 2}  # the policy's come first
    assert engine.cores == torch.get_num_threads() and engine.context_length == policy.context_length
    engine.opponent.context_length = 7
    assert engine.context_length == 7


def test_the_opponent_stays_what_it_was_while_the_policy_learns(pair):
    policy, opponent, engine = pair
    frozen = requests(policy, True, True)
    before = engine.generate(frozen, SAMPLING)
    assert not any(weight.requires_grad for weight in opponent.model.parameters())
    assert all(weight.requires_grad for weight in policy.model.parameters())
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    engine.sync(policy)
    assert engine.generate(frozen, SAMPLING) == before


CHATML = """{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


def dialogue(example, rng):
    """The policy and a frozen other, who answer each other in chats."""
    heard = []
    for _ in range(2):
        said = yield Turn("me", [{"role": "user", "content": " ".join(["numbers", *heard[-1:]])}])
        heard.append((yield Turn("other", [{"role": "user", "content": f"say {said}"}], frozen=True)))
    return {"me": Reward(float(heard[-1]))}


def test_an_opponent_with_another_tokenizer_plays_by_text(policy, processes, workers):
    own = tokenizer("bytes", CHATML, "<|system|> <|user|> <|assistant|> <|end|>", eos="<|end|>")
    stranger = as_policy(small_qwen3(own, 64, 2, 2, 0), own, CPU, processes)

    class Says(TorchEngine):
        def __init__(self, own, *texts):
            super().__init__(own)
            self.texts, self.calls = list(texts), []

        def generate(self, requests, sampling, **_):
            self.calls += [(self.policy.decode_all(one.ids), one.max_tokens, sampling) for one in requests]
            ids = self.policy.tokenizer(self.texts.pop(0))["input_ids"]
            return [Completion(ids, [0.0] * len(ids), "stop")]

    engine = EngineWithOpponent(Says(policy, "3 <end>", "5 <end>"), stranger, policy, temperature=0.7, max_tokens=3)
    engine.opponent = Says(stranger, "8<|end|>", "0.5<|end|>")
    examples = [Example("x", "numbers", {})]
    task = Task(split(examples, 0.0), None, episode=dialogue, cheap=True, frozen_opponent=True)
    sampled = rollout(policy, engine, workers, task, examples, Plan(1, 9, 1.0, 0, "test", 1, stop_strings=("yes",)))
    (one,) = sampled.rollouts
    assert (sampled.failures, one.reward) == ([], Reward(0.5))
    assert policy.decode_all(one.ids) == "<user> numbers <assistant> 3 <end> <user> numbers 8 <assistant> 5 <end>"
    assert [turn.text for turn in one.episode] == [None, "8", None, "0.5"]
    asked = "<|user|>say 3<|end|><|assistant|>"
    (first, second) = engine.opponent.calls
    assert first[0] == asked and second[0] == f"{asked}8<|end|><|user|>say 5<|end|><|assistant|>"
    ends = frozenset({stranger.tokenizer.eos_token_id})
    assert first[1:] == (3, Sampling(0.7, ends, ("yes",), policy.version))
    assert {call[1:] for call in engine.engine.calls} == {
        (9, Sampling(1.0, policy.stop_ids | policy.stop_tokens(["yes"]), ("yes",), policy.version))
    }
    engine.opponent.context_length = 7  # of other tokens
    assert engine.context_length == policy.context_length


@pytest.mark.slow
def test_a_run_is_resumed_against_the_same_opponent_only(tmp_path):
    for seed in (0, 1):
        # They know the free squares only, and say one word, so that many of their moves are legal.
        save_small_model(tmp_path / f"model{seed}", word_tokenizer("123456789"), 64, seed=seed)
    game, opponent = ["--task", "tictactoe", "--tictactoe.opponent", "frozen"], f"{tmp_path}/model1"
    flags = f"""--model-id {tmp_path}/model0 --opponent {opponent} --prompts-per-step 4 --group-size 4 --max-tokens 1
        --steps 1 --eval-every 0 --eval-examples 4 --eval-samples 1 --threads 1 --device cpu --quiet --no-preflight"""
    run = Run(tmp_path, [*game, *flags.split()])
    assert run.here() == 0
    shutil.rmtree(opponent)
    shutil.copytree(tmp_path / "model0", opponent)
    with pytest.raises(UserError, match=r"the opponent of run .* in .*model1 has other weights than when the run"):
        run.here("--resume", run.folder, "--steps", 2)
