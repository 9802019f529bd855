"""Which process of a run this is, as torchrun, accelerate launch or srun say in the environment."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from minrl.dataflow import UserError, require

HOW = "start the processes with torchrun, accelerate launch or srun"

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""The variables that torchrun gives each process, and with MASTER_ADDR and MASTER_PORT those that torch reads."""

LONELY = {"RANK": 0, "PMI_SIZE": 1, "OMPI_COMM_WORLD_SIZE": 1}
"""What a process that was started alone may have in the environment, at most: mpirun sets no WORLD_SIZE."""

OTHER_TRAINERS = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM")
"""What an accelerate config asks of accelerate's own wrappers, which are not used here."""

FIRST_PORT, PORTS = 10000, 20000
"""Below those that Linux gives away by itself, from 32768 on."""


@dataclass(frozen=True)
class Launch:
    """This process among those that were started together, which meet at `address` and `port`."""

    launcher: str = ""
    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    address: str = ""
    port: int = 0

    @property
    def nodes(self) -> int:
        """The number of machines."""
        return self.count // self.local_count

    @property
    def variables(self) -> dict[str, str]:
        """The variables that torch and accelerate read; none for one process, which needs no others."""
        if self.count == 1:
            return {}
        numbers = dict(zip(NAMES, (self.rank, self.count, self.local_rank, self.local_count), strict=True))
        found = {**numbers, "MASTER_ADDR": self.address, "MASTER_PORT": self.port}
        return {name: str(value) for name, value in found.items()}

    def __str__(self) -> str:
        """The line that is shown at the start; empty for one process."""
        if self.count == 1:
            return ""
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)}"
        return f"{self.count} processes on {nodes} (by {self.launcher}), which meet at {self.address}:{self.port}"

    def __post_init__(self) -> None:
        for rank, count, names in (
            (self.rank, self.count, "RANK and WORLD_SIZE"),
            (self.local_rank, self.local_count, "LOCAL_RANK and LOCAL_WORLD_SIZE"),
        ):
            require(0 <= rank < count, f"{names} are {rank} and {count}: a rank is from 0 to below the size; {HOW}")
        require(
            self.count % self.local_count == 0 and self.rank % self.local_count == self.local_rank,
            f"process {self.rank} of {self.count} says that it is {self.local_rank} of {self.local_count} on its node: "
            f"each node must have as many processes as the others, in order (srun --distribution=block); {HOW}",
        )


def launched(environment: Mapping[str, str]) -> Launch:
    """This process's place. Alone, also in a shell of sbatch or salloc, it is the only one."""
    for name in OTHER_TRAINERS:
        asked = environment.get(name, "false").lower() == "true"
        require(not asked, f"the accelerate config asks for another trainer ({name}): use --multi-gpu, or torchrun")
    by_torch = "TORCHELASTIC_RUN_ID" in environment
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS") or 1  # set by srun only
    if tasks > 1 and not by_torch:
        return _of_srun(environment, tasks)
    size = _number(environment, "WORLD_SIZE")
    if size is None or (size == 1 and not environment.get("RANK", "0").strip("0")):
        for name, alone in LONELY.items():
            found = _number(environment, name) or 0
            require(found <= alone, f"{name} is {found} in the environment without a WORLD_SIZE above 1: {HOW}")
        return Launch("torchrun" if by_torch else "")
    missing = [name for name in (*NAMES, "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    require(
        not missing,
        f"WORLD_SIZE is {size} in the environment, and {', '.join(missing)} not set: {HOW}, or unset WORLD_SIZE for "
        "one process",
    )
    rank, count, local_rank, local_count = (_given(environment, name) for name in NAMES)
    name = "accelerate launch" if "ACCELERATE_MIXED_PRECISION" in environment else "torchrun"
    place = environment["MASTER_ADDR"], _given(environment, "MASTER_PORT")
    return Launch(name if by_torch else "environment", rank, count, local_rank, max(1, local_count), *place)


def require_one_process(program: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to start a program several times that runs in one process."""
    count = launched(environment).count
    require(count == 1, f"{program} runs in one process, got {count}: start it without a launcher")


def _of_srun(environment: Mapping[str, str], tasks: int) -> Launch:
    rank, local_rank, node = (_given(environment, f"SLURM_{name}") for name in ("PROCID", "LOCALID", "NODEID"))
    on_nodes = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    require(
        len(set(on_nodes)) == 1 and sum(on_nodes) == tasks and node < len(on_nodes),
        f"srun started {tasks} tasks on the nodes of this step as {environment.get('SLURM_STEP_TASKS_PER_NODE')}: each "
        "must have as many, by --ntasks-per-node",
    )
    address = environment.get("MASTER_ADDR") or first_host(environment.get("SLURM_STEP_NODELIST", ""))
    require(bool(address), "SLURM_STEP_NODELIST is empty: name the first node in MASTER_ADDR")
    job, step = (_given(environment, f"SLURM_{name}_ID") for name in ("JOB", "STEP"))
    port = _number(environment, "MASTER_PORT") or FIRST_PORT + (7 * job + step) % PORTS
    return Launch("srun", rank, tasks, local_rank, on_nodes[node], address, port)


def first_host(nodes: str) -> str:
    """The first of SLURM's list of nodes.

    >>> [first_host(nodes) for nodes in ("one,two", "gpu[007-009,12],login", "rack[2,4]-node[01-03]")]
    ['one', 'gpu007', 'rack2-node01']
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def tasks_per_node(text: str) -> list[int]:
    """The number of tasks on each node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]


def _given(environment: Mapping[str, str], name: str) -> int:
    found = _number(environment, name)
    if found is None:
        raise UserError(f"{name} is not set, and other variables of its launcher are: {HOW}")
    return found


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """The number that the variable holds; None if it is not set or empty."""
    text = environment.get(name, "").strip()
    require(not text or bool(re.fullmatch(r"-?\d+", text)), f"{name} is {text!r} and no number: unset it, or {HOW}")
    return int(text) if text else None


def place(environment: Mapping[str, str]) -> dict[str, str]:
    """Where this process is, for config.json: the machine, and the job of SLURM."""
    names = {"job": "SLURM_JOB_ID", "nodes": "SLURM_JOB_NODELIST", "restarts": "SLURM_RESTART_COUNT"}
    found = {name: environment[variable] for name, variable in names.items() if variable in environment}
    return {"host": socket.gethostname(), **found}
