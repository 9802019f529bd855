"""Whole runs with real servers of vLLM, started by the command that the run prints; one is killed in a step."""

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from crew import free_port

from minrl.engines import vllm as vllm_engine
from tests.runs import Run, until

ROOT = Path(__file__).parent.parent
REASON = vllm_engine.refusal("cpu", vllm_engine.installed_build())
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

FLAGS = """--steps 2 --prompts-per-step 2 --group-size 4 --max-tokens 8
    --base-steps 2 --no-preflight --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1
    --entropy-coef 0.01 --rollouts-every 1 --threads 1 --device cpu"""


class Started:
    """A process group whose output is in a file; it ends with the context."""

    def __init__(self, command, path):
        self.path = path
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        with path.open("w") as output:
            streams = {"stdout": output, "stderr": output, "start_new_session": True}
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, **streams)

    def said(self):
        return " ".join(self.path.read_text().split())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def test_a_run_whose_server_is_killed_ends_and_resumes_with_another_to_what_an_undisturbed_one_samples(tmp_path):
    *urls, another = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    served = ["--engine", "vllm-server", "--engine-weights-dir", str(tmp_path / "weights"), "--engine-urls"]
    flags = [*FLAGS.split(), *served, ",".join(urls)]
    whole, commands = Run(tmp_path / "whole", flags), {}
    disturbed = replace(whole, place=tmp_path / "disturbed", flags=[*flags, "--save-every", "1"])
    with ExitStack() as alive:

        def started(command, name):
            return alive.enter_context(Started(command, tmp_path / f"{name}.log"))

        def serve(url, name, *more):
            return started(["env", *shlex.split(commands[url]), "--kv-cache-memory-bytes", "67108864", *more], name)

        def require_end(run, status):
            assert run.process.wait(timeout=500) == status, run.said()[-3000:]
            return run.said()

        def waits():
            found = r"waiting for (\S+) .*?it is started with: (.*? --enable-prompt-tokens-details)"
            commands.update(re.findall(found, run.said()))
            return len(commands) == len(urls)

        run = started([sys.executable, "-m", "minrl", *whole.words()], "whole")
        until(waits, run.process)
        victim = [serve(url, f"server{number}") for number, url in enumerate(urls)][1]
        require_end(run, 0)
        disturbed.given_base_of(whole)
        run = started([sys.executable, "-m", "minrl", *disturbed.words()], "disturbed")
        until(disturbed.steps, run.process)  # of two
        os.killpg(victim.process.pid, signal.SIGKILL)
        said = require_end(run, 2)
        assert f"{urls[1]}: " in said and f"start it with: {commands[urls[1]]}" in said
        assert f"train --resume {disturbed.folder}" in said
        serve(urls[1], "another", "--port", another.rpartition(":")[2])
        words = disturbed.words("--resume", "latest", "--engine-urls", f"{urls[0]},{another}")
        require_end(started([sys.executable, "-m", "minrl", *words], "resumed"), 0)

    told = ("ids", "reward", "seed", "finish_reason")
    first, second = (
        [[{name: row.get(name) for name in told} for row in rows] for rows in run.rollouts.values()]
        for run in (whole, disturbed)
    )
    assert first == second and [len(rows) >= 8 for rows in first] == [True, True]
    for line in [*whole.metrics, *disturbed.metrics]:
        assert line["engine/logprob_gap_max"] <= 1e-4 and line["engine/sync_checked_tensors"] > 20
    assert sum(line["policy/optimizer_steps"] for line in whole.metrics) >= 2  # else equal samples say nothing
