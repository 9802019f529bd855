"""--overlap: each step is sampled while the one before it is updated, and nothing else changes its numbers."""

import json
import os
import shutil
import signal
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from crew import crew

from minrl import trainer, update
from minrl.__main__ import main
from minrl.algorithms import choose_algorithm
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.dataflow import SOLO, LostEpisode, PlayedTurn, Reward, TrainState, UserError
from minrl.engines import make_engine
from minrl.optimizer import make_optimizer
from minrl.rollout import Plan, Rollouts, completion_seed, rollout
from minrl.run import setup
from minrl.run.checkpoint import AHEAD, load_ahead, load_state, save_ahead, save_state
from minrl.run.folder import RunFolder
from minrl.run.overlap import THREAD
from minrl.tracking import session
from tests.fake_vllm import FakeVllm
from tests.forked import Forked
from tests.killing import killed_at, signalled_at
from tests.own_copy import SERVERS, OwnCopy, stand_in
from tests.parsed import sized
from tests.runs import signal_when, until
from tests.say_sevens import SAY_SEVENS

SETTINGS = """--run-name run --prompts-per-step 4 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0
    --steps 5 --eval-every 2 --eval-examples 2 --eval-samples 1 --rollouts-every 2 --threads 1 --device cpu
    --no-preflight --entropy-coef 0.01 --curriculum --refill-rounds 1"""
FLAGS = [*SETTINGS.split(), *SERVERS, "--overlap"]
PLAN = Plan(group_size=4, max_tokens=6, temperature=1.0, seed=0, purpose="train", step=1)
MEASURED = ("time/", "speed/", "memory/", "system/", "overlap/")


@pytest.fixture
def start(sevens_model, tmp_path, monkeypatch):
    """Runs train.py's main on `sevens` in a folder of that name, with the stand-in for servers; the exit status."""
    monkeypatch.setattr(setup, "make_engine", stand_in)

    def run(folder, *more):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        flags = ["--task", "sevens", "--model-id", sevens_model, *FLAGS]
        return main(["train", *(flags if "--resume" not in more else []), *more])

    return run


def ending(folder):
    """The weights, the figures, and the numbers of each step in order."""
    summary = json.loads((folder / "runs/run/summary.json").read_text())
    figures = {name: summary[name] for name in ("weights_sha256", "eval_before", "eval_after", "steps")}
    return figures, [
        {tag: value for tag, value in line.items() if not tag.startswith(MEASURED)}
        for line in RunFolder(folder / "runs/run").metrics
    ]


def test_a_step_is_sampled_during_the_update_before_it_and_lags_by_one(start, tmp_path, monkeypatch):
    usual, trained, seeds = trainer.update_policy, [], []
    meeting = threading.Barrier(
        2, timeout=60
    )  # of the sampling and the update, at the beginning and at the end of both

    class Meeting(OwnCopy):
        def generate(self, *arguments, **named):
            if threading.current_thread().name != THREAD:
                return super().generate(*arguments, **named)
            meeting.wait()
            completions = super().generate(*arguments, **named)
            meeting.wait()
            return completions

    def updated(policy, optimizer, batch, *more):
        trained.append((policy.version, {one.weight_version for one in batch.rollouts}))
        seeds.append(batch.rollouts[0].seed)
        if len(trained) == 5:
            return usual(policy, optimizer, batch, *more)
        meeting.wait()
        done = usual(policy, optimizer, batch, *more)
        meeting.wait()
        return done

    monkeypatch.setattr(trainer, "update_policy", updated)
    monkeypatch.setattr(setup, "make_engine", lambda config, policy, *_: Meeting(policy))
    assert start("run", "--refill-rounds", "0") == 0
    assert trained == [(0, {0}), (1, {0}), (2, {1}), (3, {2}), (4, {3})]
    assert load_state(tmp_path / "run/checkpoints/run/step_000005").examples_drawn == 5 * 4  # each step others
    assert seeds == [completion_seed(0, "train", step, 0, 0, SOLO, 0) for step in range(1, 6)]
    lines = RunFolder(tmp_path / "run/runs/run").metrics[1:]
    assert [line["rollout/lag"] for line in lines] == [0, 1, 1, 1, 1]
    assert [line.get("overlap/rollout_s", 0) > 0 for line in lines] == [True, True, True, True, False]
    assert not any("speed/rollout_tokens_per_s" in line for line in lines)  # of the seconds of another step
    for line in lines:
        phases = [value for tag, value in line.items() if tag.startswith("time/") and tag != "time/step_s"]
        assert sum(phases) == pytest.approx(line["time/step_s"], rel=0.01)
    assert lines[0]["engine/logprob_gap_max"] < 1e-4  # rounding; what older weights sampled has larger gaps
    assert min(line["engine/logprob_gap_max"] for line in lines[1:]) > 1e-2


MOMENTS = {
    "while the next step is sampled": (trainer, "update_policy", 3),
    "before a step that was sampled": (trainer, "sample_groups", 4),
    "before it is saved": (session, "save_checkpoint", 2),
}


@pytest.mark.parametrize("moment", [n if "while" in n else pytest.param(n, marks=pytest.mark.slow) for n in MOMENTS])
def test_neither_a_stop_nor_the_checkpoints_change_a_number(start, tmp_path, moment):
    assert start("whole", "--save-every", "1") == 0
    with killed_at(*MOMENTS[moment]):
        start("killed", "--save-every", "2")
    assert start("killed", "--resume", "run") == 0
    assert ending(tmp_path / "killed") == ending(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_is_told_to_stop_or_not_saved_or_not_overlapped(start, tmp_path):
    assert start("whole", "--save-every", "1") == 0
    assert start("once", "--save-every", "100") == 0
    assert ending(tmp_path / "once") == ending(tmp_path / "whole")
    with signalled_at(trainer, "update_policy", 3):
        assert start("stopped", "--save-every", "0") == 143
    assert start("stopped", "--resume", "run") == 0
    assert ending(tmp_path / "stopped") == ending(tmp_path / "whole")
    assert start("in-turn", "--no-overlap") == 0  # else equal numbers would prove nothing
    assert ending(tmp_path / "in-turn")[0]["weights_sha256"] != ending(tmp_path / "whole")[0]["weights_sha256"]


@pytest.mark.slow
def test_a_step_that_was_sampled_ahead_is_repeated(start, tmp_path, capsys):
    assert start("run", "--save-every", "1", "--keep-checkpoints", "0", "--save-moments", "last") == 0
    assert main(["verify", "run", "--step", "5"]) == 0
    assert "ids the same, rewards the same" in capsys.readouterr().out
    # The last step has no next one, and from the first three no run resumes any more.
    assert [path.parent.name for path in (tmp_path / "run/checkpoints").rglob(AHEAD)] == ["step_000004"]


@pytest.mark.slow
def test_a_run_that_is_killed_continues_to_the_same_numbers(tmp_path):
    flags = ["train", *SAY_SEVENS, *FLAGS, "--save-every", "1", "--keep-checkpoints", "0"]
    program = [sys.executable, str(Path(__file__).with_name("own_copy.py"))]

    def begin(folder, *words):
        (tmp_path / folder).mkdir(exist_ok=True)
        output = (tmp_path / f"{folder}.txt").open("a")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        return Forked([*program, *words], cwd=tmp_path / folder, env=environment, stdout=output, stderr=output)

    assert begin("whole", *flags).wait(timeout=300) == 0, (tmp_path / "whole.txt").read_text()
    words = flags
    for step in (1, 3):
        process = begin("killed", *words)
        saved = tmp_path / f"killed/checkpoints/run/step_00000{step}"
        assert signal_when(process, saved.exists) == -signal.SIGKILL
        words = ["train", "--resume", "run"]
    assert begin("killed", *words).wait(timeout=300) == 0, (tmp_path / "killed.txt").read_text()
    assert ending(tmp_path / "killed") == ending(tmp_path / "whole")


def in_a_process(folder, *flags):
    os.chdir(folder)
    setup.make_engine = stand_in
    return main(["train", *flags])


@pytest.mark.slow
def test_several_processes_sample_what_one_does_and_resume_to_it(start, sevens_model, tmp_path):
    assert start("alone") == 0
    (tmp_path / "both").mkdir()
    flags = ["--task", "sevens", "--model-id", sevens_model, *FLAGS, "--save-every", "2"]
    assert crew(2, in_a_process, tmp_path / "both", *flags) == [0, 0]
    alone, both = (RunFolder(tmp_path / name / "runs/run").fingerprints for name in ("alone", "both"))
    assert [both[step]["ids"] for step in range(1, 6)] == [alone[step]["ids"] for step in range(1, 6)]
    for step in (4, 5):
        shutil.rmtree(tmp_path / f"both/checkpoints/run/step_00000{step}")
    assert crew(2, in_a_process, tmp_path / "both", "--resume", "run") == [0, 0]
    assert RunFolder(tmp_path / "both/runs/run").fingerprints == both


@pytest.fixture
def served(policy, start, monkeypatch):
    """Runs with the engine of servers and one that acts as the function says while a step is sampled ahead."""
    with closing(FakeVllm(policy)) as server:

        def made(config, policy, *more):
            server.config = config
            return make_engine(config, policy, *more)

        def run(act):
            usual = trainer.update_policy

            def begun(*arguments):
                server.act = lambda path, body: act(server) if "seed" in body else None
                return usual(*arguments)

            monkeypatch.setattr(trainer, "update_policy", begun)
            monkeypatch.setattr(setup, "make_engine", made)
            few = str.split("--steps 2 --prompts-per-step 2 --refill-rounds 0 --no-eval-first --save-every 1")
            return start("run", "--engine-urls", server.url, *few)

        yield run


def test_servers_sample_ahead(served, tmp_path):
    assert served(lambda server: None) == 0
    lines = RunFolder(tmp_path / "run/runs/run").metrics
    assert [line["rollout/lag"] for line in lines] == [0, 1]
    assert lines[1]["engine/logprob_gap_max"] > 1e-2


def test_a_server_that_is_gone_ends_the_run_after_the_update_in_one_line(served, tmp_path):
    with pytest.raises(UserError, match=r"http://127.0.0.1:.*: no connection .*; start it with: ") as caught:
        served(lambda server: server.die())
    assert "\n" not in str(caught.value)
    assert RunFolder(tmp_path / "run/runs/run").metrics == []  # of a step whose next one cannot be sampled


def test_what_stops_an_update_ends_the_sampling_beside_it(served, monkeypatch):
    held, released = threading.Event(), threading.Event()

    def interrupted(*_):
        assert held.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "update_policy", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            served(lambda server: held.set() or (released.wait(60) and None))
        until(lambda: not any(thread.name == THREAD for thread in threading.enumerate()))
    finally:
        released.set()


def test_the_gradient_weighs_each_token_by_the_policy_over_the_older_one_that_sampled(
    make_policy, sevens, workers, monkeypatch
):
    """d/dw of -sum_t (1 / (N |o|)) min(pi / mu, 2) A log pi, pi the policy and mu the one an update before it."""
    policy, config = make_policy(0), sized(device="cpu", threads=1)
    engine = OwnCopy(policy)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    before = replace(policy, model=engine.policy.model)
    rollouts = rollout(before, engine, workers, sevens, sevens.dataset.train[:3], PLAN).rollouts
    values = torch.linspace(-1, 1, len(rollouts), dtype=torch.float64)

    weights, loss = [], torch.zeros(())
    for one, advantage in zip(rollouts, values.tolist(), strict=True):
        ids = torch.tensor([one.ids])
        said = policy.model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        said = said[one.prompt_length - 1 :]
        weight = (said.detach() - torch.tensor(one.rollout_logprobs[one.prompt_length :])).exp()
        weights += weight.tolist()
        loss = loss - (weight.clamp(max=2.0) * advantage * said).sum() / (len(rollouts) * len(said))
    parameters = [weight for weight in policy.model.parameters() if weight.requires_grad]
    expected = torch.autograd.grad(loss, parameters)
    assert min(weights) < 0.8 and max(weights) > 2.0

    found = []
    monkeypatch.setattr(update, "clipped_step", lambda *_: found.extend(p.grad.clone() for p in parameters) or 1.0)
    algorithm, state = choose_algorithm(config), TrainState(step=2)
    batch, optimizer = make_batch(rollouts, values), make_optimizer(policy, config)
    update.update_policy(policy, optimizer, batch, algorithm, config, state, engine.needs_correction)
    torch.testing.assert_close(found, list(expected), atol=1e-6, rtol=1e-4)


def test_what_was_sampled_ahead_is_saved_as_it_is(make_rollout, tmp_path):
    turns = {"turns": [(2, 4), (5, 6)], "loss_mask": [False, False, True, True, False, True], "weight_version": 7}
    played = [PlayedTurn("a", 3, "stop", "text", "tool"), PlayedTurn("b", 4, "length")]
    rollouts = [
        make_rollout([1, 2], [3, 4, 5, 6], **turns, message=[{"role": "user", "content": "\u00e9"}], episode=played),
        make_rollout([1], [2], rollout_logprobs=[0.0, -1 / 3], reward=Reward(0.1, {"x": 1e-30}, 2.0, np.bool_(True))),
        make_rollout([1], [2], reward=None, finish_reason="length", text='"', max_tokens=9),
    ]
    sampled = Rollouts(rollouts, ["why"], [None, "why"], [LostEpisode("id", "role", "task")])
    save_ahead(sampled, tmp_path)
    save_state(TrainState(step=3), tmp_path, tmp_path)
    assert repr(load_ahead(tmp_path)) == repr(sampled)  # with its NaN


REFUSED = {
    "overlap is read only with --engine vllm-server": {"engine": "torch", "engine_urls": "", "engine_weights_dir": ""},
    "overlap trains on what older weights sampled, and importance_cap 0": {"importance_cap": 0.0},
    "overlap samples a step before the rewards are known that target_reward_std": {"target_reward_std": 0.2},
}


@pytest.mark.parametrize("expected", REFUSED)
def test_what_does_not_go_with_overlap_is_refused(expected):
    given = {"engine": "vllm-server", "engine_urls": "http://127.0.0.1:1", "engine_weights_dir": "w", "overlap": True}
    with pytest.raises(UserError, match=expected) as caught:
        TrainerConfig(**{**given, **REFUSED[expected]})
    assert "\n" not in str(caught.value)


def test_an_environment_is_not_played_beside_an_update(start, tmp_path):
    (tmp_path / "game.py").write_text("""class Game:
    def reset(self): return "Go."
    def go(self) -> str:
        "Go."
    def get_reward(self): return 1.0
""")
    with pytest.raises(UserError, match="Game plays in the main thread, which with --overlap updates at the same"):
        start("run", "--task", f"{tmp_path}/game.py:Game")


def test_a_frozen_role_is_not_sampled_beside_an_update(start):
    with pytest.raises(UserError, match="samples the frozen role itself, and with --overlap trains at the same time"):
        start("run", "--task", "tictactoe", "--tictactoe.opponent", "frozen")
