"""What several processes do is what one would do, and each does its share of it."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import two_trainers
from crew import crew
from together import together
from torch.distributed.run import parse_args
from two_trainers import EVALUATED, FAILING_STEP, GROUP, LAST_STEP, PROMPTS, run

from minrl.run.checkpoint import save_policy
from minrl.run.folder import RunFolder
from minrl.utils.signals import exit_status

ROOT = Path(__file__).parent.parent
OWN_OF_A_MACHINE = ("time/", "speed/", "memory/", "system/", "update/computed_tokens")


@pytest.mark.parametrize("count", [3, 7])
def test_shares_are_consecutive_blocks_that_differ_by_one(count):
    for total in (0, 1, 5, 14):
        shares = together(count, lambda member: member, lambda member, total=total: range(total)[member.share(total)])
        assert [one for share in shares for one in share] == list(range(total))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def launched(*command):
    """The end of a program in two processes, which accelerate starts by torchrun's agent."""
    launch = ["-m", "accelerate.commands.launch", "--multi-gpu", "--num-processes=2", *map(str, command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *launch], env=environment, capture_output=True, text=True, timeout=300)


def test_the_command_of_the_pages_starts_two_processes():
    commands = re.findall(r"^torchrun .*train\.py", (ROOT / "docs/runs.md").read_text(), re.MULTILINE)
    given = [parse_args(command.split()[1:]) for command in commands]
    assert {(one.nproc_per_node, one.training_script) for one in given} == {("8", "train.py")}


@pytest.mark.slow
def test_a_run_in_two_processes_is_the_run_in_one(policy, tmp_path, capfd):
    save_policy(policy, tmp_path / "model")
    (tmp_path / "two").mkdir()
    crew(2, two_trainers.main, str(tmp_path / "model"), str(tmp_path / "two"))
    said = " ".join(capfd.readouterr().err.split())
    alone = run(tmp_path / "model", tmp_path / "one")
    shares = [json.loads((tmp_path / "two" / f"{rank}.json").read_text()) for rank in range(2)]

    # Ctrl-C reached one process, and all stopped after the same step.
    assert [share["status"] for share in shares] == [alone["status"]] * 2 == [exit_status(signal.SIGINT)] * 2
    # Each example was played once, half of them in each process: before step 1 and after step 2 four samples and a
    # greedy one of each held-out example, after each step a greedy one of four.
    held_out = 2 * EVALUATED * 5 + LAST_STEP * 4
    assert alone["held_out"] == held_out + 1  # the first message of one is looked at, for config.json
    assert [share["held_out"] for share in shares] == [held_out // 2 + 1, held_out // 2]
    assert [share["workers"] for share in shares] == [alone["workers"] // 2] * 2 == [3] * 2
    assert [share["train"] for share in shares] == [LAST_STEP * PROMPTS * GROUP // 2] * 2

    one, two = (RunFolder(next((tmp_path / name / "runs").glob("*"))).metrics for name in ("one", "two"))
    assert [line["step"] for line in two] == list(range(LAST_STEP + 1))
    for here, there in zip(one, two, strict=True):
        assert here.keys() == there.keys()
        for tag in here:
            if not tag.startswith(OWN_OF_A_MACHINE):
                assert there[tag] == pytest.approx(here[tag], rel=1e-3, abs=1e-4), (here["step"], tag)
    # In one step the second process had nothing: no episode of its half came to a turn.
    assert two[FAILING_STEP]["policy/optimizer_steps"] > 0
    assert "8 episodes could not be rewarded" in said
    for line in two[1:]:
        assert line["update/computed_tokens"] > 0

    written = [lines_of(tmp_path / name, FAILING_STEP) for name in ("one", "two")]
    assert [[line["seed"] for line in lines] for lines in written][1] == [line["seed"] for line in written[0]]
    for here, there in zip(*written, strict=True):
        assert (here["ids"], here["group"], here["purpose"]) == (there["ids"], there["group"], there["purpose"])
        assert (here["logprobs"] is None) == (there["logprobs"] is None)
        if here["logprobs"] is not None:
            assert there["logprobs"] == pytest.approx(here["logprobs"], abs=1e-4)


@pytest.mark.slow
def test_where_one_process_fails_none_waits_for_it(policy, tmp_path):
    save_policy(policy, tmp_path / "model")
    ended = launched(ROOT / "tests" / "two_trainers.py", tmp_path / "model", tmp_path / "two", 1)
    assert ended.returncode != 0
    # The launcher may end the process that failed while it leaves; the other one knows why by then.
    assert re.search(r"^error: (process 1 of 2 \(.*\) failed: )?this process cannot go on$", ended.stderr, re.M)
    assert not list((tmp_path / "two").glob("*.json"))  # nobody came to the end


def lines_of(folder, step):
    """The rollouts that were written of a step."""
    (path,) = folder.glob(f"runs/*/rollouts/step_{step:06d}.jsonl.gz")
    return [json.loads(line) for line in gzip.open(path, "rt")]
