"""The frozen opponent: sampled by a model that does not learn, with seeds of its own, and never trained on."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minrl import trainer
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import Request, UserError
from minrl.engines import Engine, Sampling
from minrl.engines.torch_engine import EngineWithOpponent, TorchEngine
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.run import setup
from minrl.run.checkpoint import save_policy
from tests.conftest import CPU
from tests.killing import killed_at

SAMPLING = Sampling(1.0, frozenset({2}))


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
    completions = engine.generate(mixed, SAMPLING, ended=ended.extend)
    by_policy, by_opponent = (TorchEngine(model).generate(mixed, SAMPLING) for model in (policy, opponent))
    chosen = [(by_opponent if request.frozen else by_policy)[i] for i, request in enumerate(mixed)]
    assert [c.ids for c in completions] == [c.ids for c in chosen]
    assert [c.ids for c in by_policy] != [c.ids for c in by_opponent]
    assert sorted(ended, key=lambda one: one[0]) == list(enumerate(completions))
    assert {index for index, _ in ended[:2]} == {1, 2}  # the policy's come first
    assert isinstance(engine, Engine) and not engine.needs_correction


def test_the_opponent_stays_what_it_was_while_the_policy_learns(pair, make_policy):
    policy, opponent, engine = pair
    frozen = requests(policy, True, True)
    before = engine.generate(frozen, SAMPLING)
    assert not any(weight.requires_grad for weight in opponent.model.parameters())
    assert all(weight.requires_grad for weight in policy.model.parameters())
    engine.sleep()
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    engine.wake()
    engine.sync(policy)
    assert engine.generate(frozen, SAMPLING) == before
    learned = make_policy(2)
    engine.sync(learned)  # another policy reaches the policy's engine
    free = requests(policy, False)
    assert engine.generate(free, SAMPLING)[0].ids == TorchEngine(learned).generate(free, SAMPLING)[0].ids
    engine.close()


def test_an_opponent_that_reads_other_ids_is_refused(policy, processes):
    tokenizer = word_tokenizer(["a", "b"])
    stranger = as_policy(small_qwen3(tokenizer, 64, 2, 2, 0), tokenizer, CPU, processes)
    with pytest.raises(UserError, match="tokenizer is not the policy's"):
        EngineWithOpponent(TorchEngine(policy), stranger, policy)


@pytest.fixture
def run_flags(processes, tmp_path):
    """Tic-tac-toe against a frozen opponent with a tiny model, and another model to play against. They know the free
    squares only, and say one word, so that many of their moves are legal.
    """
    for seed in (0, 1):
        tokenizer = word_tokenizer("123456789")
        model = as_policy(small_qwen3(tokenizer, 64, 2, 2, seed), tokenizer, CPU, processes)
        save_policy(model, tmp_path / f"model{seed}")
    return (
        f"--task tictactoe --tictactoe.opponent frozen --model-id {tmp_path}/model0 --prompts-per-step 8 "
        "--group-size 4 --max-tokens 1 --steps 4 --eval-every 0 --eval-examples 4 --eval-samples 1 --save-every 1 "
        "--rollouts-every 1 --threads 1 --device cpu --quiet --no-preflight --learning-rate 1e-2 "
        f"--warmup-steps 0 --algorithm spiral --runs-dir {tmp_path}/runs --checkpoints-dir {tmp_path}/ckpt"
    ).split()


def weights_of(runs, name):
    return json.loads((runs / name / "summary.json").read_text())["weights_sha256"]


@pytest.mark.slow
def test_a_run_against_a_frozen_opponent_resumes_to_the_same_weights(run_flags, tmp_path):
    assert main(["train", *run_flags]) == 0
    with killed_at(trainer, "update_policy", 3):
        main(["train", *run_flags])
    runs = tmp_path / "runs"
    first, second = sorted(path.name for path in runs.iterdir())
    assert second == f"{first}-2"
    assert main(["train", "--resume", str(runs / second), "--runs-dir", str(runs)]) == 0
    whole, resumed = weights_of(runs, first), weights_of(runs, second)
    assert whole == resumed
    # Another opponent makes another run: it is the opponent's moves that were learned from.
    assert main(["train", *run_flags, "--opponent", str(tmp_path / "model1")]) == 0
    (third,) = {path.name for path in runs.iterdir()} - {first, second}
    assert "opponent=model1" in third and weights_of(runs, third) != whole
    # And the run goes on against the same one only.
    shutil.rmtree(tmp_path / "model1")
    shutil.copytree(tmp_path / "model0", tmp_path / "model1")
    with pytest.raises(UserError, match=r"the opponent of run .* in .*model1 has other weights than when the run"):
        main(["train", "--resume", str(runs / third), "--steps", "5"])


def test_an_opponent_for_nobody_is_refused(tmp_path):
    flags = ["--opponent", "x", "--task", "countdown", "--model-id", "x", "--runs-dir", str(tmp_path)]
    with pytest.raises(UserError, match="no role of countdown is frozen"):
        main(["train", *flags, "--device", "cpu"])
    with pytest.raises(UserError, match="no role of countdown is frozen"):
        main(["evaluate", "--opponent", "x", "--task", "countdown", "--checkpoint", "x"])


def test_an_engine_is_closed_when_its_opponent_is_refused(policy, monkeypatch):
    closed = []

    def refused(*_):
        raise UserError("another vocabulary")

    engine = SimpleNamespace(close=lambda: closed.append("engine"))
    stand_ins = {"make_engine": lambda *_: engine, "load_policy": lambda *_: policy, "note_model": lambda *_: None}
    stand_ins |= {"known_model": lambda *_: "model", "EngineWithOpponent": refused}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(setup, name, stand_in)
    run = SimpleNamespace(config=TrainerConfig())
    with pytest.raises(UserError, match="another vocabulary"):
        setup._engine(run, {"duel": SimpleNamespace(frozen_opponent=True)}, policy, None)
    assert closed == ["engine"]


@pytest.mark.slow
def test_evaluate_plays_against_the_opponent_that_is_named(run_flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = ["--task", "tictactoe", "--tictactoe.opponent", "frozen", "--checkpoint", f"{tmp_path}/model0"]
    sizes = ["--examples", "4", "--samples", "1", "--max-tokens", "6", "--device", "cpu"]
    for more, played in (([], "model0"), (["--opponent", f"{tmp_path}/model1"], "model1")):
        assert main(["evaluate", *task, *sizes, *more, "--output", "result.json"]) == 0
        assert json.loads(Path("result.json").read_text())["opponent"] == f"{tmp_path}/{played}"
