"""The batch script under the real SLURM trains on two nodes, is stopped, queued again, and ends with equal weights.

SLURM is started here, on one machine that is two nodes: munge, controller and daemons in a folder of their own.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from crew import free_port

from minrl.run.folder import RunFolder
from tests.runs import until
from tests.test_machines import prepared

ROOT = Path(__file__).parent.parent
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
ReturnToService=2
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What a SLURM of one's own needs and this machine lacks."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return ", ".join(absent) if absent else "root" if os.geteuid() else ""


class Cluster:
    """Commands of a running SLURM, and its daemons."""

    def __init__(self, place):
        self.place = place
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": f"{place}/slurm.conf"}

    def run(self, *command, **more):
        """What a command of SLURM says."""
        environment = {**self.environment, **more}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}{self.logs()}"
        return ended.stdout

    def job(self, number):
        """What the controller knows of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    def logs(self):
        return "".join(f"\n{path.name}: {path.read_text()}" for path in self.place.glob("*.log"))

    def wait(self, happened, seconds=60.0):
        try:
            until(happened, seconds=seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.logs()}") from None

    @contextmanager
    def daemon(self, *command):
        with (self.place / f"{command[0]}.err.log").open("a") as errors:
            process = subprocess.Popen(command, env=self.environment, stdout=errors, stderr=errors)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def cluster(cpus):
    """A SLURM with two nodes of so many cores, which ends with the context."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, ExitStack() as daemons:
        place = Path(name)
        place.chmod(0o755)  # munge's socket is for everybody
        for folder in ("state", *NODES):
            (place / folder).mkdir()
        (place / "munge.key").touch(mode=0o400)
        (place / "munge.key").write_bytes(os.urandom(128))
        values = {"place": place, "host": HOST, "nodes": NODES, "cpus": cpus}
        (place / "slurm.conf").write_text(CONFIG.format(ports=[free_port() for _ in range(3)], **values))
        own, files = Cluster(place), ("key", "pid", "log", "seed")
        munge = [f"--socket={place}/munge.socket", *(f"--{file}-file={place}/munge.{file}" for file in files)]
        daemons.enter_context(own.daemon("munged", "--foreground", "--force", *munge))
        own.wait((place / "munge.socket").exists)
        daemons.enter_context(own.daemon("slurmctld", "-D", "-c"))
        for node in NODES:
            daemons.enter_context(own.daemon("slurmd", "-D", "-N", node))
        asked = {"args": ["sinfo", "--noheader", "--format=%T %D"], "env": own.environment}
        own.wait(lambda: subprocess.run(**asked, capture_output=True, timeout=60).stdout.split() == [b"idle", b"2"])
        yield own


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.skipif(bool(missing()), reason=f"SLURM of one's own (Debian: slurm-wlm) lacks {missing()}")
def test_a_job_that_is_stopped_and_queued_again_ends_with_the_same_weights(policy, tmp_path):
    arguments = [*prepared(policy, tmp_path), "--steps", "20", "--save-every", "0"]
    with cluster(cpus=2) as slurm:

        def submit(name):
            sizes = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/{name}.log"]
            environment = {"MINRL_HOME": str(ROOT), "MINRL_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
            script = str(ROOT / "deploy/slurm.sbatch"), *arguments
            return slurm.run("sbatch", "--parsable", *sizes, *script, **environment).strip()

        whole, stopped = submit("whole"), submit("stopped")
        ends = [RunFolder(tmp_path / "runs" / f"slurm-{job}") for job in (whole, stopped)]
        slurm.wait(lambda: len(ends[1].metrics) >= 2, 180)
        slurm.run("scancel", "--signal=USR1", stopped)  # as before the time limit: all tasks, and what they started
        slurm.wait(lambda: slurm.job(stopped)["Restarts"] == "1")
        said = (tmp_path / "stopped.log").read_text()
        assert "SIGUSR1: stopping after this step" in said and "saved before the time limit" in said
        # Two minutes are the default of a job that was queued again. It has left its nodes for more than a second then:
        # slurmd takes a launch within the second of the job's end for one of the job that was ended.
        slurm.wait(lambda: slurm.job(stopped)["JobState"] == "PENDING")
        slurm.run("scontrol", "update", f"JobId={stopped}", "StartTime=now+4")
        for job, name in ((whole, "whole"), (stopped, "stopped")):
            slurm.wait(lambda job=job: slurm.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), 240)
            assert slurm.job(job)["JobState"] == "COMPLETED", (tmp_path / f"{name}.log").read_text()
    assert ends[0].summary["weights_sha256"] == ends[1].summary["weights_sha256"]
    assert ends[0].summary["steps"] == ends[1].summary["steps"] == 20
    assert [one["place"]["restarts"] for one in ends[1].record["resumed"]] == ["1"]
