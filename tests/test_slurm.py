"""The batch script under the real SLURM trains on two nodes, is stopped, queued again, and ends with equal weights.

SLURM is started here, on one machine that is two nodes: munge, controller and daemons in a folder of their own.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from minrl.run.checkpoint import save_policy
from minrl.run.folder import RunFolder
from tests.runs import until

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
HOST = socket.gethostname().partition(".")[0]
NODES = (HOST, f"{HOST}-2")  # the first one's name leads to it, as names of nodes do

CONFIG = """
ClusterName=minrl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/%n.log
# A container has no cgroups to give.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

END_S = 20.0


def missing() -> str:
    """What a SLURM of one's own needs and this machine lacks."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return ", ".join(absent) if absent else "root" if os.geteuid() else ""


class Cluster:
    """Commands of a running SLURM."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": f"{place}/slurm.conf"}

    def run(self, *command: str, **more: str) -> str:
        """What a command of SLURM says."""
        environment = {**self.environment, **more}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}{self.logs()}"
        return ended.stdout

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    def logs(self) -> str:
        """What the daemons wrote."""
        return "".join(f"\n{path.name}: {path.read_text()}" for path in self.place.glob("*.log"))


@contextmanager
def cluster(cpus: int) -> Iterator[Cluster]:
    """A SLURM with two nodes of so many cores, which ends with the context."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, ExitStack() as daemons:
        place = Path(name)
        place.chmod(0o755)  # munge's socket is for everybody
        for folder in ("state", *NODES):
            (place / folder).mkdir()
        (place / "munge.key").touch(mode=0o400)
        (place / "munge.key").write_bytes(os.urandom(128))
        values = {"place": place, "host": HOST, "ports": free_ports(3), "nodes": NODES, "cpus": cpus}
        (place / "slurm.conf").write_text(CONFIG.format(**values))
        own, files = Cluster(place), ("socket", "key", "pid", "log", "seed")
        munge = [f"--{file}{'' if file == 'socket' else '-file'}={place}/munge.{file}" for file in files]
        daemons.enter_context(daemon(own, "munged", "--foreground", "--force", *munge))
        wait_for(own, lambda: (place / "munge.socket").exists())
        daemons.enter_context(daemon(own, "slurmctld", "-D", "-c"))
        for node in NODES:
            daemons.enter_context(daemon(own, "slurmd", "-D", "-N", node))
        wait_for(own, lambda: said(own, "sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"])
        yield own


@contextmanager
def daemon(own: Cluster, *command: str) -> Iterator[None]:
    with (own.place / f"{command[0]}.err.log").open("a") as errors:
        process = subprocess.Popen(command, env=own.environment, stdout=errors, stderr=errors)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(own: Cluster, *command: str) -> str:
    return subprocess.run(command, env=own.environment, capture_output=True, text=True, timeout=60).stdout


def wait_for(own: Cluster, happened: Callable[[], object], seconds: float = 60.0) -> None:
    try:
        until(happened, seconds=seconds)
    except AssertionError as late:
        raise AssertionError(f"{late}: {own.logs()}") from None


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


ROOT = Path(__file__).parent.parent
STEPS = 6

TASK = """
import time
from dataclasses import dataclass

from minrl.tasks import TaskDefinition, TaskOptions
from minrl.tasks.task import split
from minrl.dataflow import Example, Reward


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    most: int = 16


def reward(completion, example):  # in a worker; a step takes long enough to be met
    time.sleep(0.05)
    return Reward(len(completion) % 5 / 4)


def dataset(options):
    return split([Example(f"numbers {n}", f"numbers {n}", {}) for n in range(options.most)], 0.5)


slow = TaskDefinition(dataset, reward, Options)
"""


@pytest.fixture
def arguments(policy, tmp_path):
    (tmp_path / "slow.py").write_text(TASK)
    save_policy(policy, tmp_path / "model")
    flags = """--prompts-per-step 4 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0 --eval-every 0
        --eval-examples 4 --eval-samples 2 --no-eval-first --save-every 0 --rollouts-every 0 --threads 1 --device cpu
        --no-preflight --reward-workers 2"""
    places = f"--runs-dir {tmp_path}/runs --checkpoints-dir {tmp_path}/kept --model-id {tmp_path}/model"
    return f"--task {tmp_path}/slow.py:slow --steps {STEPS} {places} {flags}".split()


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.skipif(bool(missing()), reason=f"SLURM of one's own (Debian: slurm-wlm) lacks {missing()}")
def test_a_job_that_is_stopped_and_queued_again_ends_with_the_same_weights(arguments, tmp_path):
    with cluster(cpus=2) as slurm:
        environment = {"MINRL_HOME": str(ROOT), "MINRL_PYTHON": os.sys.executable, "PYTHONPATH": str(ROOT)}

        def submit(name):
            sizes = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/{name}.log"]
            script = [str(ROOT / "deploy/slurm.sbatch"), *arguments]
            return slurm.run("sbatch", "--parsable", *sizes, *script, **environment).strip()

        def steps_of(job):
            return len(RunFolder(tmp_path / "runs" / f"slurm-{job}").metrics)

        def said(name):
            return (tmp_path / f"{name}.log").read_text()

        def begin_soon(job):
            """Two minutes are the default of a job that was queued again. It must have left its nodes for more than a
            second: slurmd takes a launch within the second of the job's end for one of the job that was ended."""
            wait_for(slurm, lambda: slurm.job(job)["JobState"] == "PENDING", 60)
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+4")

        whole, stopped = submit("whole"), submit("stopped")
        wait_for(slurm, lambda: steps_of(stopped) >= 2, 180)
        slurm.run("scancel", "--signal=USR1", stopped)  # as before the time limit: all tasks, and what they started
        wait_for(slurm, lambda: slurm.job(stopped)["Restarts"] == "1", 60)
        assert "SIGUSR1: stopping after this step" in said("stopped")
        assert "saved before the time limit" in said("stopped")
        begin_soon(stopped)
        for job, name in ((whole, "whole"), (stopped, "stopped")):
            wait_for(slurm, lambda job=job: slurm.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), 240)
            assert slurm.job(job)["JobState"] == "COMPLETED", said(name)
    ends = [json.loads((tmp_path / "runs" / f"slurm-{job}" / "summary.json").read_text()) for job in (whole, stopped)]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]
    assert ends[0]["steps"] == ends[1]["steps"] == STEPS
    config = json.loads((tmp_path / "runs" / f"slurm-{stopped}" / "config.json").read_text())
    assert config["place"]["job"] == stopped
    assert [one["place"]["restarts"] for one in config["resumed"]] == ["1"]
