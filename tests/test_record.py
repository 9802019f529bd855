"""The memory of a run, step by step: what is written and shown of what was sampled, learned and evaluated."""

import json
import re
import time
from dataclasses import replace

import pytest
import torch
from loguru import logger

from minrl.algorithms import Advantages
from minrl.config import EvaluationConfig, LoggingConfig, RolloutConfig, TrainerConfig
from minrl.draw import every, require_rewards
from minrl.engines import require_exact
from minrl.optimizer import make_optimizer
from minrl.record import session
from minrl.record.metrics import MetricsLog, read_metrics
from minrl.record.session import Session
from minrl.rollout import Rollouts
from minrl.run.checkpoint import save_checkpoint, step_name
from minrl.run.parts import Parts
from minrl.run.run import Run
from minrl.scoring import LARGEST_GAP
from minrl.statistics.evaluation import Evaluation
from minrl.tasks import TASK_DEFINITIONS
from minrl.terminal.commands import as_typed
from minrl.terminal.screen import Screen
from minrl.types import LostEpisode, Reward, TrainState, UserError
from minrl.update import Update
from minrl.viewer.build import PAGE, packed_steps

OPTIONS = {name: definition.options() for name, definition in TASK_DEFINITIONS.items()}


@pytest.fixture
def told():
    """What is logged, also what is for the file only."""
    return []


@pytest.fixture
def make_record(policy, engine, workers, sevens, tmp_path, told):
    """A record of a run of `sevens`, which is called countdown here, with a screen of its own."""

    def make(state=None, steps=4, stored=None, **evaluation):
        config = TrainerConfig(
            steps=steps,
            rollout=RolloutConfig(task="countdown", max_tokens=4, max_unscorable_frac=0.5),
            evaluation=EvaluationConfig(**{"eval_every": 2, **evaluation}),
            logging=LoggingConfig(runs_dir=str(tmp_path / "runs"), checkpoints_dir=str(tmp_path / "kept")),
        )
        folders = tmp_path / "runs" / "run", tmp_path / "kept" / "run"
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        found = folders[1] / step_name(state.step) if stored and state and state.step else None
        run = Run("run", config, OPTIONS, *folders, checkpoint=found, stored=stored or {})
        optimizer = make_optimizer(policy, config.optimizer)
        screen = Screen(quiet=True)
        logger.add(lambda message: told.append(message.record["message"]), level="INFO")
        state = state or TrainState()
        parts = Parts(run, config, {"countdown": sevens}, policy, engine, workers, optimizer, state, screen)
        return Session(parts, time.perf_counter())

    yield make
    logger.remove()


def evaluated(value, rollouts=()):
    return Evaluation(value, (0.0, 1.0), 4, 2, value, value, 3.0, 0.0, rollouts=rollouts)


def saving(monkeypatch, watch):
    """Have `watch` called with what a checkpoint is saved of, before it is."""
    monkeypatch.setattr(session, "save_checkpoint", lambda *given: (watch(*given), save_checkpoint(*given))[1])


def ends(monkeypatch, evaluate):
    """Have the evaluation at the end done by `evaluate`."""
    monkeypatch.setattr(Parts, "evaluate", lambda parts: evaluate())


def lines_of(record):
    return read_metrics(record.run.folder)


def sampled(make_rollout, *values):
    """Rollouts of two tokens with these rewards, and a lost episode where nothing is given."""
    rollouts = [make_rollout([5], [6, 7], reward=None if v is None else Reward(v)) for v in values if v != "lost"]
    return Rollouts(rollouts, ["why"] * (None in values), [], [LostEpisode("example")] * values.count("lost"))


def test_something_happens_every_so_many_steps_and_never_for_0():
    found = {steps: [step for step in range(1, 7) if every(steps, step)] for steps in (0, 1, 3)}
    assert found == {0: [], 1: [1, 2, 3, 4, 5, 6], 3: [3, 6]}


def test_a_step_is_a_line_of_everything_that_was_measured(make_record, make_rollout, monkeypatch):
    record = make_record()
    with record:
        record.begin()
        record.state.step = 1
        with record.recorder.timed("time/rollout_s"):
            pass
        monkeypatch.setattr(record.parts.workers, "take_seconds", lambda: 0.0)
        record.recorder.rollouts(sampled(make_rollout, 1.0, 0.0, 0.5, "lost"))
        with record.recorder.timed("time/update_s"):
            record.parts.policy.version, record.parts.policy.skipped_steps = 7, 2
        metrics = {"policy/loss": 0.5, "engine/logprob_gap_mean": 0.0, "update/computed_tokens": 9}
        record.recorder.update(Advantages(torch.zeros(3), {"policy": 0.25}, 0.125), Update(metrics, torch.zeros(6)))
        record.end_step()
        record.state.step = 2
        record.recorder.measured({"sft/loss": 0.1})
        record.end_step()
    first, second = lines_of(record)
    assert first["step"] == 1 and first["reward/mean"] == 0.5
    assert first["reward/unscorable_frac"] == 1 - 3 / 4  # the lost episode counts
    assert (first["policy/loss"], first["reward/zero_spread_group_frac"], first["baseline/policy"]) == (
        0.5,
        0.125,
        0.25,
    )
    assert first["speed/tokens_per_s"] == pytest.approx(6 / first["time/step_s"])
    assert first["speed/update_tokens_per_s"] == pytest.approx(9 / first["time/update_s"])
    assert "memory/peak_gib" in first and "time/log_s" in first
    state = record.state
    assert (state.sampled_tokens, state.policy_version, state.skipped_steps) == (6, 7, 2)
    # Nothing of a step is left in the next.
    assert second["sft/loss"] == 0.1 and not [tag for tag in second if tag.startswith(("reward/", "policy/", "speed/"))]


@pytest.mark.parametrize(
    ("own", "others", "weaker"),
    [("bubblewrap", "limits", "limits"), ("namespaces", "bubblewrap", "namespaces"), ("", "", "")],
)
def test_all_processes_of_a_run_have_the_same_walls(make_record, monkeypatch, own, others, weaker):
    record = make_record()
    processes = type(record.parts.policy.processes)
    monkeypatch.setattr(processes, "count", 2)
    monkeypatch.setattr(processes, "gather", lambda self, items: [*items, others if items == [own] else False])
    monkeypatch.setenv("MINRL_SANDBOX_LEVEL", own)
    with record:
        if not own:
            record.begin()  # none of them runs programs
            return
        message = f"different levels of the sandbox, .* start all of them with MINRL_SANDBOX_LEVEL={weaker},"
        with pytest.raises(UserError, match=message) as refused:
            record.begin()
    assert "\n" not in str(refused.value) and own in str(refused.value) and others in str(refused.value)


def test_the_waiting_for_rewards_is_a_phase_of_its_own(make_record, make_rollout, monkeypatch):
    record = make_record()
    with record:
        record.begin()
        record.state.step = 1
        with record.recorder.timed("time/rollout_s"):
            time.sleep(0.02)
        monkeypatch.setattr(record.parts.workers, "take_seconds", lambda: 0.01)
        record.recorder.rollouts(sampled(make_rollout, 1.0))
        record.end_step()
    (line,) = lines_of(record)
    assert line["time/reward_s"] == pytest.approx(0.01) and line["time/rollout_s"] >= 0.01


def test_the_seconds_of_a_run_are_those_before_it_went_on_and_since(make_record):
    record = make_record(TrainState(step=1, seconds=100.0))
    record.end_step()
    assert 100 < record.state.seconds < 160


@pytest.mark.parametrize(
    ("values", "stops"), [((1.0, None), False), ((1.0, None, None), True), ((1.0, 0.0, None), False)]
)
def test_a_run_stops_where_more_than_the_limit_cannot_be_rewarded(values, stops, make_record, make_rollout, told):
    given = sampled(make_rollout, *values)
    make_record().recorder.rollouts(given)
    if stops:
        with pytest.raises(UserError, match=r"67% of the rollouts of step 3 .* max_unscorable_frac \(50%\)"):
            require_rewards(given, 0.5, step=3)
    else:
        require_rewards(given, 0.5, step=3)
    assert told[-1] == "1 episodes could not be rewarded as they were played, the first because:\nwhy"


def test_a_step_without_a_rollout_stops_the_run(make_record):
    make_record().recorder.rollouts(Rollouts([], []))
    with pytest.raises(UserError, match="no episode of step 0 came to its first turn"):
        require_rewards(Rollouts([], []), 0.5, step=0)


@pytest.mark.parametrize(
    ("gap", "exact", "stops"), [(0.011, True, True), (0.011, False, False), (LARGEST_GAP, True, False)]
)
def test_an_engine_that_says_it_is_exact_must_be(gap, exact, stops, policy, engine):
    engine.exact, metrics = exact, {"engine/logprob_gap_mean": gap}
    if stops:
        with pytest.raises(UserError, match=r"by 0.011 nats on average, more than rounding \(0.01\): Qwen3ForCausalLM"):
            require_exact(engine, policy, metrics, step=3)
    else:
        require_exact(engine, policy, metrics, step=3)


def test_what_engine_and_workers_did_outside_a_step_is_not_the_steps(make_record, make_rollout, monkeypatch):
    record = make_record()
    reuse, workers = record.parts.engine._reuse, record.parts.workers
    with record:
        reuse.add(80, 20)  # a preflight
        monkeypatch.setattr(workers, "_seconds", 0.005)
        record.begin()
        for record.state.step in (1, 2):
            with record.recorder.timed("time/rollout_s"):
                time.sleep(0.01)
                if record.state.step == 2:
                    reuse.add(80, 40)  # the step's own
            record.recorder.rollouts(sampled(make_rollout, 1.0))
            reuse.add(80, 20)  # an evaluation
            workers._seconds = 0.005
            record.end_step()
    first, second = lines_of(record)
    assert "engine/prompt_reuse_frac" not in first and second["engine/prompt_reuse_frac"] == 0.5
    assert not {"time/reward_s"} & {*first, *second}


def test_evaluations_are_written_said_and_kept_for_the_end(make_record, make_rollout, told):
    record, rollouts = make_record(steps=2), [make_rollout([5], [6])]
    with record:
        record.begin()
        record.recorder.evaluation({"countdown": evaluated(0.25, rollouts)})
        assert record.recorder.evaluations["countdown"].rollouts == ()
        record.end_step()
        record.state.step = 2
        last = replace(evaluated(0.5, rollouts), failures=["a reward"])
        record.recorder.evaluation({"countdown": last})
        assert record.recorder.evaluations["countdown"].rollouts == rollouts  # some are shown at the end
        record.end_step()
    assert [line["eval/countdown/pass@1"] for line in lines_of(record)] == [0.25, 0.5]
    before = json.loads((record.run.folder / "eval_before.json").read_text())
    assert before == {"countdown": evaluated(0.25).to_json()}
    assert "step 0: countdown held-out pass@1 25.0% (0.0% to 100.0%), greedy 25.0%" in told
    assert (
        "1 held-out episodes of countdown could not be rewarded as they were played, the first because:\na reward"
        in told
    )


def test_an_evaluation_makes_the_page_of_what_was_written_so_far(make_record, make_rollout):
    record, rollouts = make_record(), [make_rollout([5], [6, 7])]
    with record:
        record.begin()
        record.state.step = 1
        record.recorder.save_rollouts(
            rollouts, torch.ones(1, dtype=torch.float64), Update({}, torch.full((2,), -1.0)), []
        )
        assert not (record.run.folder / PAGE).exists()
        record.recorder.evaluation({"countdown": evaluated(0.5)})
        assert list(packed_steps(record.run.folder / PAGE)) == [1]


def test_rollouts_are_written_with_the_followed_ones_and_nothing_where_no_file_is_open(make_record, make_rollout):
    record, rollouts = make_record(), [make_rollout([5], [6, 7])]
    given = rollouts, torch.ones(1, dtype=torch.float64), Update({}, torch.full((2,), -1.0)), [make_rollout([5], [8])]
    record.recorder.save_rollouts(*given)
    with record:
        record.begin()
        record.state.step = 10
        record.recorder.save_rollouts(*given)
        log = record.recorder._log
        assert [path.name for path in (log.folder / "rollouts").iterdir()] == ["step_000010.jsonl.gz"]
        with record.recorder.timed("time/eval_s"):
            record.end_step()
    assert any(record.run.folder.glob("events*"))


@pytest.mark.parametrize(("step", "metrics", "held_out", "note"), [
    (0, {"reward/mean": 0.5}, None, ""),
    (1, {"reward/mean": 0.5}, 0.754, "reward 0.50  held-out 75 %"),
    (1, {"sft/loss": 0.12345}, 0.5, "loss 0.123  held-out 50 %"),
    (1, {}, float("nan"), ""),
    (0, {}, 0.391, "held-out 39 %"),
])  # fmt: skip
def test_what_stands_beside_the_bar(step, metrics, held_out, note, make_record):
    record = make_record(TrainState(step=step))
    record.recorder._metrics = metrics
    record.recorder.evaluations = {} if held_out is None else {"countdown": evaluated(held_out)}
    assert record.recorder._note() == note


def test_the_bar_is_told_each_step(make_record):
    record, shown = make_record(TrainState(step=1)), []
    with record:
        record.begin()
        record.recorder._report = lambda *what: shown.append(what)
        record.state.step = 2
        record.recorder.measured({"reward/mean": 0.25})
        record.end_step()
    ((step, note, left_s),) = shown
    assert step == 2 and re.fullmatch(r"reward 0\.25  \S+ s/step", note) and left_s > 0


def test_the_time_left_counts_the_evaluations_to_come(make_record):
    record = make_record(TrainState(step=2), steps=9)  # evaluated after every second step, and after the last
    assert record.recorder._left_s() is None  # before the first step
    record.recorder._step_s, record.recorder._evaluation_s = [2.0, 4.0], [50.0, 150.0]
    assert record.recorder._left_s() == 7 * 3.0 + 4 * 100.0  # after steps 4, 6, 8 and 9


def test_the_seconds_of_an_evaluation_are_not_the_steps(make_record):
    record = make_record()
    with record:
        record.begin()
        for record.state.step in (0, 1):
            record.recorder.evaluated_at = record.state.step
            record.recorder._clock.seconds["time/eval_s"] = 100.0
            record.recorder._clock._begun -= 100.0
            record.recorder.end_step()
    assert record.recorder._evaluation_s == [100.0, 100.0]
    assert len(record.recorder._step_s) == 1 and record.recorder._step_s[0] < 100.0


def test_a_run_that_begins_says_where_it_is_and_from_where_it_goes_on(make_record, told, monkeypatch):
    notes = ["generated"]
    record = make_record()
    object.__setattr__(record.parts.tasks["countdown"], "notes", lambda: notes)
    with record:
        record.begin()
    assert f"run {record.run.folder}" in told and "countdown: generated" in told
    with make_record(TrainState(step=2), stored={"minrl_run": "run"}) as again:
        again.begin()
    assert f"run {record.run.folder}, going on after step 2" in told
    assert "run" in (record.run.folder / "log.txt").read_text()


def test_only_a_run_that_goes_on_cuts_what_lies_beyond_its_checkpoint(make_record):
    with make_record() as record:
        record.begin()
        for record.state.step in (0, 1, 2):
            record.end_step()
    with make_record(TrainState(step=1)) as new:
        new.begin()
    assert [line["step"] for line in lines_of(record)] == [0, 1, 2]
    with make_record(TrainState(step=1), stored={"minrl_run": "run"}) as resumed:
        resumed.begin()
    assert [line["step"] for line in lines_of(record)] == [0, 1]
    with make_record(TrainState(step=0), stored={"minrl_run": "run"}) as from_the_start:
        from_the_start.begin()
    assert lines_of(record) == []


def test_a_checkpoint_is_saved_after_what_belongs_to_its_step_and_is_noted(make_record, monkeypatch):
    record, order = make_record(TrainState(step=2)), []
    saving(monkeypatch, lambda *given: order.append(given[4]))
    with record:
        record.begin()
        flush = record.recorder._log.flush
        record.recorder._log.flush = lambda: order.append("flush") or flush()
        record.save()
    last = record.run.checkpoints / "step_000002"
    assert order[:2] == ["flush", record.parts.config.logging.keep_checkpoints] and record._saved == last
    assert json.loads((record.run.folder / "last_checkpoint.json").read_text()) == {"step": 2, "path": str(last)}


def test_a_run_at_its_end_is_saved_evaluated_once_and_summed_up(make_record, told, monkeypatch):
    record, evaluations = make_record(TrainState(step=4, seconds=50.0)), []
    ends(monkeypatch, lambda: evaluations.append(1) or {"countdown": evaluated(0.5)})
    with record:
        record.begin()
        status = record.finish({"rounds": 3})
    assert status == 0 and evaluations == [1]
    found = json.loads((record.run.folder / "summary.json").read_text())
    assert (found["steps"], found["rounds"], found["eval_after"]["pass@1"]) == (4, 3, 0.5)
    assert 50 < found["seconds"] < 110
    assert (record.run.checkpoints / "step_000004").is_dir()
    assert told[-1].startswith("4 steps in 5") and "step_000004" in told[-1]
    assert f"report: {as_typed('python -m minrl.report')} {record.run.folder}" in told[-2].splitlines()


def test_what_is_evaluated_and_saved_already_is_not_again(make_record, monkeypatch):
    record, saved = make_record(TrainState(step=4)), []
    saving(monkeypatch, lambda *given: saved.append(given))
    ends(monkeypatch, lambda: pytest.fail("evaluated again"))
    with record:
        record.begin()
        record.recorder.evaluation({"countdown": evaluated(0.5)})
        record.save()
        assert record.finish() == 0
    assert len(saved) == 1


def test_a_run_that_was_told_to_stop_ends_with_the_signals_status_and_says_how_to_go_on(make_record, told, monkeypatch):
    record = make_record(TrainState(step=1))
    ends(monkeypatch, lambda: pytest.fail("evaluated"))
    with record:
        record.begin()
        record._signals._came = 15
        assert not record.interrupted
        record.end_step()
        assert record.interrupted
        status = record.finish()
    assert status == 128 + 15
    assert told[-1] == f"saved {record.run.checkpoints}/step_000001; go on with: {record.run.resume_command}"
    assert not (record.run.folder / "summary.json").exists()
    before = make_record()
    with before:
        before.begin()
        before._signals._came = 2
        before.end_step()
        assert before.finish() == 130
    assert told[-1].startswith("nothing to save before the first step; go on with: ")


def test_a_signal_after_the_last_evaluation_does_not_keep_a_run_from_its_end(make_record, monkeypatch):
    record = make_record(TrainState(step=4))
    with record:
        record.begin()
        record.recorder.evaluation({"countdown": evaluated(0.5)})
        record.end_step()
        saving(monkeypatch, lambda *given: setattr(record._signals, "_came", 15))
        record.save()
        assert record.finish() == 0
    assert json.loads((record.run.folder / "summary.json").read_text())["eval_after"]["pass@1"] == 0.5


def test_an_evaluation_that_was_left_out_is_owed_by_the_run_that_goes_on(make_record):
    record = make_record(TrainState(step=2))
    with record:
        record.begin()
        record._signals._came = 2
        record.recorder.measured({"policy/loss": 0.5, "time/update_s": 3.0})
        record.evaluate(lambda: pytest.fail("evaluated"))  # the run is to stop
        record.end_step()
    assert lines_of(record) == []  # its line waits for the evaluation
    left = record.state.unfinished
    assert left["policy/loss"] == 0.5
    again = make_record(TrainState(step=2, unfinished=left), stored={"minrl_run": "run"})
    with again:
        again.begin()
        assert again.recorder.owed
        again.evaluate(lambda: again.recorder.evaluation({"countdown": evaluated(0.5)}))
        again.end_step()
    (line,) = lines_of(record)
    assert (line["step"], line["policy/loss"], line["eval/countdown/pass@1"]) == (2, 0.5, 0.5)
    assert line["time/update_s"] == left["time/update_s"] >= 3.0  # the seconds of both count
    assert line["time/step_s"] > left["time/step_s"] and line["memory/peak_gib"] < 1000
    assert again.state.unfinished == {}


def test_an_evaluation_that_is_done_leaves_nothing_owed(make_record):
    record = make_record(TrainState(step=2))
    with record:
        record.begin()
        record.evaluate(lambda: record.recorder.evaluation({"countdown": evaluated(0.5)}))
        record.end_step()
    assert [line["step"] for line in lines_of(record)] == [2] and record.state.unfinished == {}
    kept = make_record(TrainState(step=2, unfinished={"policy/loss": 0.5}), stored={"minrl_run": "run"})
    with kept:
        kept.begin()  # the line is there: a kill came between it and the checkpoint
        assert not kept.recorder.owed


@pytest.mark.parametrize(
    ("error", "logged"),
    [(UserError("mend it"), "UserError: mend it"), (RuntimeError("bug"), "RuntimeError: bug")],
)
def test_a_run_that_ends_by_an_error_says_what_there_is_and_how_to_go_on(error, logged, make_record, told):
    record = make_record(TrainState(step=2))
    with pytest.raises(type(error)), record:
        record.begin()
        raise error
    assert told[-2:] == [
        logged,
        f"stopped at step 2; last checkpoint none yet: {record.run.resume_command}",
    ]
    written = (record.run.folder / "log.txt").read_text()
    assert ("Traceback" in written) == isinstance(error, RuntimeError)


def test_a_run_that_ends_before_it_began_says_nothing_of_going_on(make_record, told):
    with pytest.raises(RuntimeError), make_record():
        raise RuntimeError
    assert told == []


def test_preflight_findings_are_said_a_line_each(make_record, told):
    record = make_record()
    record.preflight(["slow", "small"])
    record.preflight([])
    assert told == ["preflight: slow", "preflight: small", "preflight: no problems found"]


def test_the_end_is_shown_where_the_trained_task_was_evaluated(make_record, make_rollout, monkeypatch):
    record, shown = make_record(TrainState(step=4)), []
    monkeypatch.setattr(Screen, "before_and_after", lambda self, *tables: shown.append(tables))
    monkeypatch.setattr(Screen, "samples", lambda self, texts: shown.append(texts))
    rollouts = [make_rollout([5], [6])]
    after, last = evaluated(0.5, rollouts), record.run.checkpoints / "step_000004"
    record._show_results({}, {"countdown": after}, last)
    text = record.parts.policy.decode_all([5, 6])
    assert shown == [{True: text}, ({}, {"countdown": after.to_json()})]
    record._show_results({}, {}, last)
    assert len(shown) == 2


def test_an_error_is_told_although_the_files_cannot_be_closed(make_record, monkeypatch):
    record = make_record()
    with pytest.raises(KeyError), record:
        record.begin()
        monkeypatch.setattr(record.recorder._log, "close", lambda finished: (_ for _ in ()).throw(OSError("full")))
        raise KeyError
    with pytest.raises(OSError, match="full"), make_record(TrainState(step=1)) as other:
        other.begin()
        monkeypatch.setattr(other.recorder._log, "close", lambda finished: (_ for _ in ()).throw(OSError("full")))


def test_the_files_are_told_whether_the_run_came_to_its_end(make_record, monkeypatch):
    ended = []
    ends(monkeypatch, lambda: {"countdown": evaluated(0.5)})
    monkeypatch.setattr(MetricsLog, "close", lambda self, finished=False: ended.append(finished))
    with make_record() as record:
        record.begin()
    with make_record(TrainState(step=4)) as record:
        record.begin()
        record.finish()
    assert ended == [False, True]
