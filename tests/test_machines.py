"""Processes of one run, on one machine or two, meet, stop together, and do not wait for one that is gone."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minrl.run.checkpoint import save_policy
from minrl.run.folder import RunFolder

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


@pytest.fixture
def flags(policy, tmp_path):
    """What train.py is given, but for its steps."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "slow.py").write_text(TASK)
    save_policy(policy, tmp_path / "model")
    sizes = """--prompts-per-step 6 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0 --eval-every 0
        --eval-examples 4 --eval-samples 2 --no-eval-first --save-every 2 --rollouts-every 0 --threads 1 --device cpu
        --no-preflight --reward-workers 3 --reward-deadline-s 30"""
    places = f"--runs-dir {tmp_path}/runs --checkpoints-dir {tmp_path}/kept --model-id {tmp_path}/model"
    return f"--task {tmp_path}/slow.py:slow {places} {sizes}".split()


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.slow
def test_where_one_process_is_killed_the_others_end_and_the_run_goes_on_exactly(flags, tmp_path):
    flags += ["--steps", "8"]
    command = [sys.executable, str(ROOT / "tests/killed_trainers.py"), str(tmp_path), *flags]
    ran = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert set(told["whole"].values()) == set(told["last"].values()) == {0}, told
    for end in told["kills"]:
        victim = end["victim"]
        assert end["statuses"][victim] == -signal.SIGKILL, end
        assert [status for rank, status in enumerate(end["statuses"]) if rank != victim] == [1, 1], end
        for said in end["said"]:
            (line,) = re.findall(r"^error: .*$", said, re.M)
            assert line.startswith("error: the processes of the run lost each other: "), said
            assert "Traceback" not in said
        assert end["workers left"] == [], end
    whole, killed = (
        json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in ("whole", "killed")
    )
    assert whole["weights_sha256"] == killed["weights_sha256"]


@pytest.mark.slow
def test_two_machines_meet_and_a_signal_to_one_launcher_ends_the_step_on_both(flags, tmp_path):
    port, outputs = free_port(), [tmp_path / "first.txt", tmp_path / "second.txt"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    launch += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=one", "--shutdown-timeout=120"]
    command = [*launch, str(ROOT / "train.py"), *flags, "--steps", "100000", "--run-name", "two"]
    agents = [
        subprocess.Popen(command, env=environment(), cwd=ROOT, stderr=path.open("w"), stdout=subprocess.DEVNULL)
        for path in outputs
    ]
    try:
        run, deadline = tmp_path / "runs" / "two", time.monotonic() + 240
        while len(RunFolder(run).metrics) < 2 and time.monotonic() < deadline and agents[0].poll() is None:
            time.sleep(0.05)
        agents[1].send_signal(signal.SIGTERM)
        assert [agent.wait(timeout=120) != 0 for agent in agents] == [True, True]
    finally:
        for agent in agents:
            agent.kill()
    said = "".join(path.read_text() for path in outputs)
    assert "2 processes, 1 of them on this machine" in said, said
    (saved,) = re.findall(
        r"saved (\S+); resume with: python -m minrl train --resume \S+two", (run / "log.txt").read_text()
    )
    assert Path(saved).is_dir() and abs(int(saved.rpartition("_")[2]) - RunFolder(run).metrics[-1]["step"]) <= 1
