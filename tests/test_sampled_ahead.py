"""--overlap: each step is sampled while the one before it is updated, and nothing else changes its numbers."""

import shutil
import signal
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crew import crew

from minrl import trainer
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import SOLO, LostEpisode, PlayedTurn, Reward, TrainState, UserError
from minrl.engines import make_engine
from minrl.rollout import Rollouts, completion_seed
from minrl.run import setup
from minrl.run.checkpoint import AHEAD, load_ahead, load_state, save_ahead, save_state
from minrl.run.folder import RunFolder
from minrl.run.overlap import THREAD
from tests.fake_vllm import FakeVllm
from tests.forked import Forked
from tests.killing import before, killed_at, signalled_at
from tests.own_copy import SERVERS, OwnCopy, stand_in
from tests.runs import Run, same_end, signal_when
from tests.say_sevens import SAY_SEVENS

SETTINGS = """--prompts-per-step 4 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0
    --steps 4 --eval-every 2 --eval-examples 2 --eval-samples 1 --rollouts-every 2 --threads 1 --device cpu
    --no-preflight --entropy-coef 0.01 --curriculum --refill-rounds 1"""
FLAGS = [*SETTINGS.split(), *SERVERS, "--overlap"]


@pytest.fixture
def run(sevens_model, tmp_path, monkeypatch):
    """A run on `sevens`, with the stand-in for servers."""
    monkeypatch.setattr(setup, "make_engine", stand_in)
    monkeypatch.chdir(tmp_path)  # a server's weights are in a folder there
    return Run(tmp_path / "run", ["--task", "sevens", "--model-id", sevens_model, *FLAGS])


@pytest.fixture
def whole(run, tmp_path):
    """The same, undisturbed and saved at each step."""
    whole = replace(run, place=tmp_path / "whole")
    assert whole.here("--save-every", 1) == 0
    return whole


def test_a_step_is_sampled_during_the_update_before_it_and_lags_by_one(run, monkeypatch):
    usual, trained, seeds = trainer.update_policy, [], []
    meeting = threading.Barrier(2, timeout=60)  # of sampling and update, as both begin and as both end

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
        meets = len(trained) < 4
        if meets:
            meeting.wait()
        done = usual(policy, optimizer, batch, *more)
        if meets:
            meeting.wait()
        return done

    monkeypatch.setattr(trainer, "update_policy", updated)
    monkeypatch.setattr(setup, "make_engine", lambda config, policy, *_: Meeting(policy))
    assert run.here("--refill-rounds", 0) == 0
    assert trained == [(0, {0}), (1, {0}), (2, {1}), (3, {2})]
    assert load_state(run.checkpoints / "step_000004").examples_drawn == 4 * 4  # each step others
    assert seeds == [completion_seed(0, "train", step, 0, 0, SOLO, 0) for step in range(1, 5)]
    lines = run.metrics[1:]
    assert [line["rollout/lag"] for line in lines] == [0, 1, 1, 1]
    assert [line.get("overlap/rollout_s", 0) > 0 for line in lines] == [True, True, True, False]
    assert not any("speed/rollout_tokens_per_s" in line for line in lines)  # of the seconds of another step
    for line in lines:
        phases = [value for tag, value in line.items() if tag.startswith("time/") and tag != "time/step_s"]
        assert sum(phases) == pytest.approx(line["time/step_s"], rel=0.01)
    assert lines[0]["engine/logprob_gap_max"] < 1e-4  # rounding; what older weights sampled has larger gaps
    assert min(line["engine/logprob_gap_max"] for line in lines[1:]) > 1e-2


def same_numbers(run, whole):
    """But for hashes of weights, which are those of steps that were saved."""
    found, expected = run.end(), whole.end()
    assert all(found[name] == expected[name] for name in expected.keys() - {"hashes"})


def test_neither_a_stop_nor_the_checkpoints_change_a_number(run, whole):
    with killed_at(trainer, "update_policy", 3):  # while the next step is sampled
        run.here("--save-every", 2)
    assert run.resume() == 0
    same_numbers(run, whole)


@pytest.mark.slow
def test_a_run_that_is_told_to_stop_or_not_overlapped_and_a_step_that_is_repeated(run, whole, tmp_path, capsys):
    with signalled_at(trainer, "update_policy", 3):
        assert run.here("--save-every", 0, "--keep-checkpoints", 0, "--save-moments", "last") == 143
    assert run.resume() == 0
    same_numbers(run, whole)
    assert main(["verify", str(run.folder), "--step", "4"]) == 0
    assert "ids the same, rewards the same" in capsys.readouterr().out
    # The last step has no next one.
    assert [path.parent.name for path in run.checkpoints.rglob(AHEAD)] == ["step_000003"]
    in_turn = replace(run, place=tmp_path / "in turn")
    assert in_turn.here("--no-overlap") == 0  # else equal numbers would prove nothing
    assert in_turn.summary["weights_sha256"] != whole.summary["weights_sha256"]


@pytest.mark.slow
def test_a_run_that_is_killed_continues_to_the_same_numbers(tmp_path):
    whole, killed = (Run(tmp_path / name, [*SAY_SEVENS, *FLAGS, "--save-every", "1"]) for name in ("whole", "killed"))
    program = [sys.executable, str(Path(__file__).with_name("own_copy.py"))]

    def begin(run, *more):
        run.place.mkdir(exist_ok=True)
        return Forked([*program, *run.words(*more)], stderr=(run.place / "stderr.txt").open("a"))

    assert begin(whole).wait(timeout=300) == 0, (tmp_path / "whole/stderr.txt").read_text()
    more = "--keep-checkpoints", 0
    for step in (1, 3):
        process = begin(killed, *more)
        assert signal_when(process, (killed.checkpoints / f"step_00000{step}").exists) == -signal.SIGKILL
        more = "--resume", "latest"
    assert begin(killed, *more).wait(timeout=300) == 0, (tmp_path / "killed/stderr.txt").read_text()
    same_end(killed, whole)


def in_a_process(words):
    setup.make_engine = stand_in
    return main(words)


@pytest.mark.slow
def test_several_processes_sample_what_one_does_and_resume_to_it(run, whole, tmp_path):
    assert crew(2, in_a_process, run.words("--save-every", 2)) == [0, 0]
    both, alone = (RunFolder(one.folder).fingerprints for one in (run, whole))
    assert [both[step]["ids"] for step in range(1, 5)] == [alone[step]["ids"] for step in range(1, 5)]
    shutil.rmtree(run.checkpoints / "step_000004")
    assert crew(2, in_a_process, run.words("--resume", "latest")) == [0, 0]
    assert RunFolder(run.folder).fingerprints == both


def test_servers_sample_ahead_and_one_that_is_gone_ends_the_run_after_the_update_in_one_line(policy, run, monkeypatch):
    with closing(FakeVllm(policy)) as server:

        def made(config, *more):
            server.config = config
            return make_engine(config, *more)

        monkeypatch.setattr(setup, "make_engine", made)
        few = ["--group-size", "2", "--refill-rounds", "0", "--no-eval-first", "--eval-every", "0"]
        die = lambda path, body: server.die() if "seed" in body else None  # noqa: E731
        dying = before(trainer, "update_policy", 3, lambda: setattr(server, "act", die))
        with dying, pytest.raises(UserError, match=r"http://127.0.0.1:.*: no connection .*; start it with: ") as caught:
            run.here("--engine-urls", server.url, *few)
    assert "\n" not in str(caught.value)
    lines = run.metrics  # without that of a step whose next one cannot be sampled
    assert [line["rollout/lag"] for line in lines] == [0, 1]
    assert lines[1]["engine/logprob_gap_max"] > 1e-2


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


def test_what_does_not_go_with_overlap_is_refused(run):
    with pytest.raises(UserError, match="overlap is read only with --engine vllm-server"):
        TrainerConfig(overlap=True, engine="torch")
    with pytest.raises(UserError, match="samples the frozen role itself, and with --overlap trains at the same time"):
        run.here("--task", "tictactoe", "--tictactoe.opponent", "frozen")
