"""What several processes do is what one would do, and each does its share of it."""

import re
import signal

import pytest
import two_trainers
from crew import crew
from together import together
from two_trainers import FAILING_STEP, GROUP, LAST_STEP, PROMPTS

from minrl.run.checkpoint import save_policy
from minrl.utils.signals import exit_status
from tests.runs import Run
from tests.test_machines import ended, trainers

OWN_OF_A_MACHINE = ("time/", "speed/", "memory/", "system/", "update/computed_tokens")


def test_shares_are_consecutive_blocks_that_differ_by_one():
    for total in (0, 1, 5, 14):
        shares = together(3, lambda member: member, lambda member, total=total: range(total)[member.share(total)])
        assert [one for share in shares for one in share] == list(range(total))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.slow
def test_a_run_in_two_processes_is_the_run_in_one(policy, tmp_path, capfd):
    save_policy(policy, tmp_path / "model")
    shares = crew(2, two_trainers.main, str(tmp_path / "model"), str(tmp_path / "two"))
    said = " ".join(capfd.readouterr().err.split())
    alone = two_trainers.run(str(tmp_path / "model"), str(tmp_path / "one"))

    # Ctrl-C reached one process, and all stopped after the same step.
    assert [share["status"] for share in shares] == [alone["status"]] * 2 == [exit_status(signal.SIGINT)] * 2
    # Each example was played once, half of them in each process.
    assert [share["train"] for share in shares] == [LAST_STEP * PROMPTS * GROUP // 2] * 2

    one, two = (Run(tmp_path / name) for name in ("one", "two"))
    assert [line["step"] for line in two.metrics] == list(range(LAST_STEP + 1))
    for here, there in zip(one.metrics, two.metrics, strict=True):
        assert here.keys() == there.keys()
        for tag in here:
            if not tag.startswith(OWN_OF_A_MACHINE):
                assert there[tag] == pytest.approx(here[tag], rel=1e-3, abs=1e-4), (here["step"], tag)
    # In one step the second process had nothing: no episode of its half came to a turn.
    assert two.metrics[FAILING_STEP]["policy/optimizer_steps"] > 0
    assert "8 episodes could not be rewarded" in said

    name = f"step_{FAILING_STEP:06d}.jsonl.gz"
    for here, there in zip(one.rollouts[name], two.rollouts[name], strict=True):
        assert all(here[key] == there[key] for key in ("seed", "ids", "group", "purpose"))
        if here["logprobs"] is not None:
            assert there["logprobs"] == pytest.approx(here["logprobs"], abs=1e-4)


@pytest.mark.slow
def test_where_one_process_fails_none_waits_for_it(policy, tmp_path):
    save_policy(policy, tmp_path / "model")
    command = [two_trainers.__file__, tmp_path / "model", tmp_path / "two", "1"]
    processes, outputs = trainers(tmp_path, "failing", *map(str, command), count=2)
    assert 0 not in ended(processes)
    said = [output.read_text() for output in outputs]
    assert re.search(r"^error: the processes of the run lost each other: ", said[0], re.M), said
    assert re.search(r"^error: this process cannot go on$", said[1], re.M), said
