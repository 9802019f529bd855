"""Where a run is: under SLURM, on Modal, in a container or on a plain machine, with or without network."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OFFLINE = ("1", "true", "yes", "on")
"""What HF_HUB_OFFLINE holds where no hub is to be asked."""

MARKS = "/.dockerenv", "/run/.containerenv"
"""Files that Docker and Podman put into their containers."""

IN_CONTAINERS = "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "container"

ROUTES = Path("/proc/net/route"), Path("/proc/net/ipv6_route")


@dataclass(frozen=True)
class Place:
    """`kind` is slurm, modal, container or machine; `network` is False where nothing beyond this machine is reachable
    or asked.
    """

    kind: str
    host: str
    network: bool
    details: Mapping[str, str]

    @property
    def facts(self) -> dict[str, Any]:
        """What config.json holds."""
        return {"kind": self.kind, "host": self.host, "network": self.network, **self.details}

    def __str__(self) -> str:
        """The line that is shown at the start; empty on a plain machine with network."""
        if self.kind == "machine" and self.network:
            return ""
        said = ", ".join(f"{name} {value}" for name, value in self.details.items() if value)
        return f"{self.kind} on {self.host}{f' ({said})' if said else ''}{'' if self.network else ', without network'}"


def place(environment: Mapping[str, str]) -> Place:
    """Where this process is. Nothing is connected to."""
    offline = environment.get("HF_HUB_OFFLINE", "").lower() in OFFLINE
    kind, details = _kind(environment)
    return Place(kind, socket.gethostname(), not offline and has_route(), details)


def _kind(environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    if "SLURM_JOB_ID" in environment:
        names = {"job": "JOB_ID", "nodes": "JOB_NODELIST", "restarts": "RESTART_COUNT"}
        details = {name: environment.get(f"SLURM_{variable}", "") for name, variable in names.items()}
        tasks = environment.get("SLURM_NTASKS", "1")
        if tasks != "1" and not {"SLURM_STEP_NUM_TASKS", "TORCHELASTIC_RUN_ID"} & environment.keys():
            details["tasks"] = f"{tasks}, of which srun started none"
        return "slurm", details
    if "MODAL_TASK_ID" in environment:
        return "modal", {"task": environment["MODAL_TASK_ID"], "region": environment.get("MODAL_REGION", "")}
    marked = any(Path(mark).exists() for mark in MARKS)
    inside = marked or any(name in environment for name in IN_CONTAINERS)
    return ("container" if inside else "machine"), {}


def has_route(tables: tuple[Path, Path] = ROUTES) -> bool:
    """Whether the system has a default route; where it does not say, as on macOS, it is taken to have one."""
    if not any(table.exists() for table in tables):
        return True
    old, new = (table.read_text().splitlines() if os.access(table, os.R_OK) else [] for table in tables)
    # Interface, destination, gateway, flags (1: up), ..., mask. In version 6: destination, its length, ..., interface.
    fourth = (row for row in map(str.split, old[1:]) if row[1] == row[7] == "00000000" and int(row[3], 16) & 1)
    sixth = (row for row in map(str.split, new) if not row[0].strip("0") and row[1] == "00" and row[9] != "lo")
    return any(fourth) or any(sixth)
