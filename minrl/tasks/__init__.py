"""The tasks. A new one is one file with a `TASK`, and one line here."""

from minrl.tasks import countdown, hanoi
from minrl.tasks.task import Dataset, Task, TaskDefinition
from minrl.types import UserError

TASK_DEFINITIONS: dict[str, TaskDefinition] = {
    "countdown": countdown.TASK,
    "hanoi": hanoi.TASK,
}


def load_task(name: str, options: object = None, data_path: str = "") -> Task:
    """The task of that name, made from its options (its defaults where None)."""
    if name not in TASK_DEFINITIONS:
        raise UserError(f"no task {name!r}: choose one of {', '.join(TASK_DEFINITIONS)}, or add one in minrl/tasks")
    definition = TASK_DEFINITIONS[name]
    return definition.make(definition.options() if options is None else options, data_path)


__all__ = ["TASK_DEFINITIONS", "Dataset", "Task", "TaskDefinition", "load_task"]
