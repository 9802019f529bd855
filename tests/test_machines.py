"""Processes of one run, on one machine or two, meet, stop together, and do not wait for one that is gone."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crew import free_port

from minrl.run.checkpoint import save_policy
from minrl.run.folder import RunFolder
from tests.forked import Forked
from tests.runs import until

ROOT = Path(__file__).parent.parent

TASK = """
import os
import time
from pathlib import Path

from minrl.tasks.task import Task, split
from minrl.dataflow import Example, Reward

PLACE = Path(__file__).parent


def reward(completion, example):  # in a worker
    (PLACE / "workers" / str(os.getpid())).touch()
    while (PLACE / "endless").exists() and len(completion) % 5 == 2:
        (PLACE / "met").touch()
    time.sleep(0.02)
    return Reward(len(completion) % 5 / 4)


slow = Task(split([Example(f"numbers {n}", f"numbers {n}", {}) for n in range(16)], 0.5), reward)
"""


def prepared(policy, folder):
    """What train.py is given, but for its steps. The deadline is the time for which a step hangs."""
    (folder / "workers").mkdir()
    (folder / "slow.py").write_text(TASK)
    save_policy(policy, folder / "model")
    sizes = """--prompts-per-step 6 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0 --eval-every 0
        --eval-examples 4 --eval-samples 2 --no-eval-first --save-every 2 --rollouts-every 0 --threads 1 --device cpu
        --no-preflight --reward-workers 3 --reward-deadline-s 4"""
    places = f"--runs-dir {folder}/runs --checkpoints-dir {folder}/kept --model-id {folder}/model"
    return f"--task {folder}/slow.py:slow {places} {sizes}".split()


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/tests", **more}


COUNT = 3


def trainers(folder, name, *command, count=COUNT):
    """The processes of a run that no launcher watches, by rank, and what they say."""
    port, outputs = str(free_port()), [folder / f"{name}-{rank}.txt" for rank in range(count)]
    places = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environments = (environment(RANK=str(rank), LOCAL_RANK=str(rank), **places) for rank in range(count))
    pairs = zip(environments, outputs, strict=True)
    return [Forked([sys.executable, *command], env=env, stderr=output.open("w")) for env, output in pairs], outputs


def ended(processes):
    """Their exit statuses."""
    return [process.wait(timeout=120) for process in processes]


def alive(pid):
    """Whether a process runs, and is no zombie."""
    try:
        return not re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.M)
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_where_one_process_is_killed_the_others_end_and_the_run_goes_on_exactly(policy, tmp_path):
    chance, killed = random.Random(), RunFolder(tmp_path / "runs" / "killed")
    flags = ["-m", "minrl", "train", *prepared(policy, tmp_path), "--steps", "8", "--resume", "auto", "--run-name"]
    assert ended(trainers(tmp_path, "whole", *flags, "whole")[0]) == [0] * COUNT
    for hangs in (False, True):  # the second time in a step that must not end: a worker computes a reward without end
        before = len(killed.metrics)
        if hangs:
            (tmp_path / "endless").touch()
        processes, outputs = trainers(tmp_path, f"killed{hangs}", *flags, "killed")
        victim = processes[chance.randrange(COUNT)]
        until(lambda: (tmp_path / "met").exists() if hangs else len(killed.metrics) > before, victim)  # noqa: B023
        time.sleep(chance.uniform(0.0, 1.0))
        victim.kill()
        others = [rank for rank in range(COUNT) if processes[rank] is not victim]
        assert ended([processes[rank] for rank in others]) == [1, 1]
        assert victim.wait() == -signal.SIGKILL
        for said in (outputs[rank].read_text() for rank in others):
            (line,) = re.findall(r"^error: .*$", said, re.M)
            assert line.startswith("error: the processes of the run lost each other: "), said
            assert "Traceback" not in said, said
        until(lambda: not any(alive(int(path.name)) for path in (tmp_path / "workers").iterdir()), seconds=10)
        (tmp_path / "endless").unlink(missing_ok=True)
    assert ended(trainers(tmp_path, "last", *flags, "killed")[0]) == [0] * COUNT
    ends = [RunFolder(tmp_path / "runs" / name).summary["weights_sha256"] for name in ("whole", "killed")]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_two_machines_meet_and_a_signal_to_one_launcher_ends_the_step_on_both(policy, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    launch += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=one", "--shutdown-timeout=120"]
    command = [*launch, str(ROOT / "train.py"), *prepared(policy, tmp_path)]
    command += ["--steps", "100000", "--run-name", "two"]
    outputs, run = [tmp_path / "first.txt", tmp_path / "second.txt"], RunFolder(tmp_path / "runs" / "two")
    agents = [subprocess.Popen(command, env=environment(), cwd=ROOT, stderr=path.open("w")) for path in outputs]
    try:
        until(lambda: len(run.metrics) >= 2, agents[0])
        agents[1].send_signal(signal.SIGTERM)
        assert [agent.wait(timeout=120) != 0 for agent in agents] == [True, True]
    finally:
        for agent in agents:
            agent.kill()
    said = "".join(path.read_text() for path in outputs)
    assert "2 processes, 1 of them on this machine" in said, said
    resumed_by = r"saved (\S+); resume with: python -m minrl train --resume \S+two"
    (saved,) = re.findall(resumed_by, (run.path / "log.txt").read_text())
    assert Path(saved).is_dir() and abs(int(saved.rpartition("_")[2]) - run.metrics[-1]["step"]) <= 1
