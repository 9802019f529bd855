"""MinRL: reinforcement learning for language models. Its algorithm, the files right here, is an evening's reading."""

import sys

if sys.platform == "win32":  # before a module imports what Windows has not, such as fcntl
    sys.exit("error: MinRL needs Linux or macOS, for locks and signals that Windows has not: run it in WSL 2 there")

__version__ = "0.1.0"

_PUBLIC = {
    "train": "minrl.trainer",
    "load": "minrl.tools.load",
    "metrics": "minrl.report.runs",
    "TrainerConfig": "minrl.config",
    "task": "minrl.tasks.custom",
    "Task": "minrl.tasks.task",
    **dict.fromkeys(["Example", "Reward", "Turn", "TurnReward", "Job", "SOLO"], "minrl.dataflow"),
    "ALGORITHMS": "minrl.algorithms",
    "TASK_DEFINITIONS": "minrl.tasks",
}
"""The library's names and their modules, which are imported when a name is first used: most of them import torch."""


def __getattr__(name: str):  # noqa: ANN202 - any of the names; typing is not imported for each sandboxed program
    from importlib import import_module

    if name not in _PUBLIC:
        raise AttributeError(f"module 'minrl' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
