"""The real SLURM on one machine, which has two nodes here: munge, controller and daemons in a folder of their own."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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

START_S = 60.0
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


def wait_for(own: Cluster, happened, timeout_s: float = START_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"nothing happened in {timeout_s:g} s: {own.logs()}"
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
