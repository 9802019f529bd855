"""The end that a run had at each of its steps: the learning rate falls towards it, and a resume may move it."""

from collections.abc import Mapping, Sequence
from typing import Any

from loguru import logger

from minrl.config import OptimizerConfig
from minrl.optimizer import learning_rate

Record = Mapping[str, Any]
"""The content of a config.json. An entry of its `resumed` by which the end moved has the step `after` which the run
went on, and what it `had` before of the settings of its end. Older versions of MinRL did not write these down.
"""


def with_end_before(resumed: Sequence[Record], now: Record, step: int, had: Record) -> list[Record]:
    """The entries of all resumes with the one of now, after `step`. What was resumed later was cut away with its steps.

    >>> with_end_before([{"after": 6, "had": {"steps": 6}}], {}, 4, {"steps": 8})
    [{'after': 4, 'had': {'steps': 6}}, {'after': 4, 'had': {'steps': 8}}]
    """
    kept = [{**one, "after": min(one["after"], step)} if "after" in one else one for one in resumed]
    return [*kept, {**now, "after": step, "had": dict(had)} if had else dict(now)]


def steps_at(record: Record, step: int) -> int:
    """The `steps` that a run had when it made a step.

    >>> steps_at({"config": {"steps": 8}, "resumed": [{"after": 6, "had": {"steps": 6}}]}, 6)
    6
    """
    had = [one["had"] for one in record.get("resumed", []) if one.get("after", -1) >= step]
    return int((had or [record["config"]])[0]["steps"])


def moves_between(record: Record, first: int, last: int) -> list[int]:
    """The steps in `first` to `last` after which the end moved, and `last`."""
    moved = [step for step in range(first, last) if steps_at(record, step) != steps_at(record, step + 1)]
    return [*moved, last]


def report_schedule(had: Record, optimizer: OptimizerConfig, step: int, steps: int) -> None:
    """Report the learning rate of the next step where the run `had` another end than `steps`."""
    if had.keys() & {"steps", "epochs"} and optimizer.schedule != "constant":
        logger.warning(
            f"the {optimizer.schedule} schedule of the learning rate now ends at step {steps}: step {step} has "
            f"{learning_rate(optimizer, step, steps):.3g} (peak {optimizer.learning_rate:g})"
        )
