"""Whole runs with real servers of vLLM, started by the command that the run prints; one is killed in a step."""

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minrl.engines import vllm as vllm_engine

ROOT = Path(__file__).parent.parent
REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

SETTINGS = """--run-name served --engine vllm-server --steps 2 --prompts-per-step 2 --group-size 4 --max-tokens 8
    --base-steps 2 --no-preflight --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1
    --entropy-coef 0.01 --rollouts-every 1 --threads 1 --device cpu"""
FLAGS = SETTINGS.split()

KILLING = """
import os, signal, sys
sys.path.insert(0, {root!r})
from minrl.engines.vllm_server import Connection
usual, asked = Connection.complete, []

async def complete(connection, url, ids, settings):
    asked.append(url)
    if len(asked) == 8 + 4 + 3:  # in the second step, after the tracked examples of the first
        os.killpg({group}, signal.SIGKILL)
    return await usual(connection, url, ids, settings)

Connection.complete = complete
from minrl.__main__ import console
console("train")
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Started:
    """A process group whose output is in a file."""

    def __init__(self, command: list[str], path: Path) -> None:
        self.path = path
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        with path.open("w") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, cwd=ROOT, start_new_session=True
            )

    def said(self) -> str:
        return " ".join(self.path.read_text().split())

    def wait(self) -> None:
        assert self.process.wait(timeout=500) == 0, self.said()[-3000:]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def lines_of(folder: Path, step: int) -> list[dict]:
    with gzip.open(folder / f"runs/served/rollouts/step_{step:06d}.jsonl.gz", "rt") as file:
        return list(map(json.loads, file))


def metrics_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "runs/served/metrics.jsonl").read_text().splitlines()]


def test_a_run_whose_server_is_killed_ends_and_resumes_to_what_an_undisturbed_one_samples(tmp_path):
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(2)]
    flags = [*FLAGS, "--engine-urls", ",".join(urls), "--engine-weights-dir", str(tmp_path / "weights")]
    whole, disturbed, servers = tmp_path / "whole", tmp_path / "disturbed", []
    commands: dict[str, str] = {}

    def serve(url: str) -> Started:
        command = ["bash", "-c", f"exec env {commands[url]} --kv-cache-memory-bytes 67108864"]
        servers.append(Started(command, tmp_path / f"server{len(servers)}.log"))
        return servers[-1]

    kept = ["--checkpoints-dir", str(tmp_path / "checkpoints")]
    run = Started(
        [sys.executable, "train.py", *flags, *kept, "--runs-dir", str(whole / "runs")], tmp_path / "whole.log"
    )
    try:
        while len(commands) < len(urls):
            assert run.process.poll() is None, run.said()[-3000:]
            commands = dict(
                re.findall(r"waiting for (\S+) .*?it is started with: (.*? --enable-prompt-tokens-details)", run.said())
            )
            time.sleep(0.1)
        victim = [serve(url) for url in urls][1]
        run.wait()

        code = KILLING.format(root=str(ROOT), group=victim.process.pid)
        folders = ["--runs-dir", str(disturbed / "runs"), "--checkpoints-dir", str(tmp_path / "others")]
        for made in (tmp_path / "checkpoints").glob("base-*"):  # the warm start once
            shutil.copytree(made, tmp_path / "others" / made.name)
        saving = ["--save-every", "1"]
        run = Started([sys.executable, "-c", code, *flags, *saving, *folders], tmp_path / "disturbed.log")
        assert run.process.wait(timeout=500) == 2, run.said()[-3000:]
        assert f"{urls[1]}: " in run.said() and f"start it with: {commands[urls[1]]}" in run.said()
        assert f"train --resume {disturbed / 'runs/served'}" in run.said()
        serve(urls[1])
        run = Started([sys.executable, "train.py", "--resume", "latest", *folders], tmp_path / "resumed.log")
        run.wait()
    finally:
        for one in [run, *servers]:
            one.kill()

    for step in (1, 2):
        told = ("ids", "reward", "seed", "finish_reason")
        first, second = lines_of(whole, step), lines_of(disturbed, step)
        assert len(first) >= 8 and first[0].keys() & set(told)
        assert [{k: one.get(k) for k in told} for one in first] == [{k: one.get(k) for k in told} for one in second]
    for line in [*metrics_of(whole), *metrics_of(disturbed)]:
        assert line["engine/logprob_gap_max"] <= 1e-4 and line["engine/sync_checked_tensors"] > 20
    assert sum(line["policy/optimizer_steps"] for line in metrics_of(whole)) >= 2  # else equal samples say nothing
