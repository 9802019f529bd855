"""The first stage: completions of every episode without one, model after model.

A model is released before the next one is loaded. A row is on disk as soon as its batch (of a local model) or its
episode (of a server) has been played.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from loguru import logger

from minrl.evaluate.local import LocalSampler
from minrl.evaluate.models import NamedModel
from minrl.evaluate.plan import EpisodeBatch, EvaluationPlan, PlannedTask
from minrl.evaluate.rows import Key, Row, RowFile, key_of
from minrl.evaluate.served import ServedSampler
from minrl.rewards.workers import Workers
from minrl.utils.console import Screen


def generate(plan: EvaluationPlan, file: RowFile, workers: Workers, screen: Screen) -> None:
    """Add the missing rows and sort the plan's to the front, in its order. Error rows are generated again."""
    rows = file.read()
    todo = {model.name: missing(plan, model, rows) for model in plan.models}
    total = sum(1 for _ in plan.all_keys())
    done = total - sum(batch.count for of_model in todo.values() for of_task in of_model.values() for batch in of_task)
    with screen.progress("generating", total, done=done) as report:
        for model in plan.models:
            if not any(todo[model.name].values()):
                continue
            logger.info(f"generating with {model.name}")
            with sampler_of(plan, model, workers) as sampler:
                for task in plan.tasks:
                    for new in sampler.play(task, todo[model.name][task.name]):
                        file.append(new)
                        rows.update({key_of(row): row for row in new})
                        done += len(new)
                        report(done, model.label)
    ordered = dict.fromkeys([*(key for key in plan.all_keys() if key in rows), *rows])  # rows outside the plan are kept
    file.rewrite(rows[key] for key in ordered)


def missing(plan: EvaluationPlan, model: NamedModel, rows: Mapping[Key, Row]) -> dict[str, list[EpisodeBatch]]:
    """The batches of each task in which an episode has no completion."""

    def lacks(task: PlannedTask, batch: EpisodeBatch) -> bool:
        keys = (Key(model.name, task.name, batch.mode.name, *episode) for episode in batch.episodes())
        return any(key not in rows or rows[key].get("error") for key in keys)

    size = 1 if model.served else plan.config.batch_size
    return {task.name: [batch for batch in task.batches(size) if lacks(task, batch)] for task in plan.tasks}


@contextmanager
def sampler_of(plan: EvaluationPlan, model: NamedModel, workers: Workers) -> Iterator[ServedSampler | LocalSampler]:
    """The model, loaded or connected while the block runs."""
    sampler = (ServedSampler if model.served else LocalSampler)(plan, model, workers)
    try:
        yield sampler
    finally:
        sampler.close()
        del sampler
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
