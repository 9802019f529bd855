"""The first stage: a completion of every episode that has none, model after model.

A model is released before the next one is loaded. A row is on disk as soon as its batch (of a local model) or its
episode (of a server) has been played. A local model plays by the same `rollout` that trains.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch
from loguru import logger

from minrl.engines import make_engine
from minrl.engines.torch_engine import EngineWithOpponent
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.episodes import PURPOSE, Recorder, row_of
from minrl.evaluate.models import NamedModel
from minrl.evaluate.plan import Batch, EvaluationPlan, PlannedTask
from minrl.evaluate.rows import Key, Row, append_rows, key_of
from minrl.evaluate.served import ServedSampler
from minrl.models.processes import Processes
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, rollout
from minrl.run.base_model import check_words, prompts_read
from minrl.run.preflight import answer_findings
from minrl.run.setup import load_policy
from minrl.types import require
from minrl.utils.console import activity
from minrl.utils.files import write_jsonl


def generate(plan: EvaluationPlan, path: Path, rows: dict[Key, Row], workers: Workers) -> None:
    """Add the missing rows to `rows` and to the file, which gets the plan's rows first, in its order."""
    keys = list(plan.all_keys())
    done = sum(key in rows and "error" not in rows[key] for key in keys)
    with activity("generating", len(keys), done) as report:
        for model in plan.models:
            todo = missing(plan, model, rows)
            if not any(todo):
                continue
            logger.info(f"generating with {model.name}")
            with closing(sampler_of(plan, model, workers)) as sampler:
                for task, batches in zip(plan.tasks, todo, strict=True):
                    for new in sampler.play(task, batches):
                        append_rows(path, new)
                        rows.update({key_of(row): row for row in new})
                        done += len(new)
                        report(min(done, len(keys)), model.label)
            del sampler
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    write_jsonl(path, (rows[key] for key in dict.fromkeys([*(key for key in keys if key in rows), *rows])))


def missing(plan: EvaluationPlan, model: NamedModel, rows: dict[Key, Row]) -> list[list[Batch]]:
    """The batches of each task that the model has to play."""
    return [list(task.missing(model, rows, 1 if model.served else plan.config.batch_size)) for task in plan.tasks]


def sampler_of(plan: EvaluationPlan, model: NamedModel, workers: Workers) -> "ServedSampler | LocalSampler":
    """The model, connected or loaded."""
    if model.served:
        return ServedSampler(plan.config, model, workers)
    return LocalSampler(plan.config, model, workers, plan.opponents)


class LocalSampler:
    """A checkpoint, a local model or a hub's, with its engine."""

    def __init__(
        self, config: EvaluateConfig, model: NamedModel, workers: Workers, opponents: Sequence[NamedModel] = ()
    ) -> None:
        self.config, self.model, self.workers = config, model, workers
        processes = Processes(config.model)
        self.policy = load_policy(model.name, config.model, processes)
        require(
            model.fingerprint in ("", model.as_cached().fingerprint),
            f"the hub has other weights of {model.name} than were cached: say the same command again, which compares "
            "them with the evaluation's",
        )
        self.engine = make_engine(config.engine, self.policy, config.batch_size, lambda: "the same command resumes")
        for named in opponents:  # none or one
            opponent = load_policy(named.name, config.model, processes)
            self.engine = EngineWithOpponent(self.engine, opponent, self.policy, config.engine.engine_cache_gib)

    def play(self, task: PlannedTask, batches: Sequence[Batch]) -> Iterator[list[Row]]:
        """The rows of each batch."""
        if batches:
            check_prompts(self.policy, self.model, task, self.engine.context_length, self.config.limit_of(task.name))
        for batch in batches:
            yield self._play(task, batch)

    def close(self) -> None:
        """Release the engine and the weights."""
        self.engine.close()
        del self.engine, self.policy

    def _play(self, task: PlannedTask, batch: Batch) -> list[Row]:
        config, recorder = self.config, Recorder(task.task, self.config.stop_strings)
        examples = task.examples[batch.first : batch.first + batch.examples]
        plan = Plan(
            *(batch.samples, config.max_tokens, batch.mode.temperature, config.seed, PURPOSE, 0),
            first_slot=batch.first,
            first_sample=batch.first_sample,
            stop_strings=config.stop_strings,
        )
        played = rollout(self.policy, self.engine, self.workers, recorder.task, examples, plan)
        rollouts = iter(played.rollouts)
        rows = []
        for (index, sample), record, failure in zip(batch.episodes(), recorder.records, played.reasons, strict=True):
            facts = {}
            for role, one in zip(record.roles, rollouts, strict=False):
                assert one.role == role, f"the rollout of {one.role} where that of {role} was due"
                facts[role] = {"tokens": one.num_sampled, "finish_reason": one.finish_reason}
            key = Key(self.model.name, task.name, batch.mode.name, index, sample)
            rows.append(row_of(key, task, record, facts, failure))
        assert next(rollouts, None) is None, "a rollout of a role that was not recorded"
        return rows


def check_prompts(policy: Policy, model: NamedModel, task: PlannedTask, limit: int, max_tokens: int) -> None:
    """Refuse a model that has no room in `limit` tokens for any prompt, or lacks their words. Warn of prompts and
    answers that are too long. The prompts of a task's own episode are known only when it is played.
    """
    if task.task.episode is not None:
        return
    read = prompts_read(policy, [example.prompt for example in task.examples])
    check_words(policy, f"the prompts of {task.name} under {model.name}", read)
    rooms = [limit - len(ids) for ids, _ in read]
    full = sum(room < 1 for room in rooms)
    require(
        full < len(rooms),
        f"no prompt of {task.name} leaves room for a completion in the {limit} tokens that {model.name} takes: choose "
        "shorter examples or a longer context (another model, or --engine-context-length where it is set)",
    )
    if full:
        logger.warning(
            f"{full} of {len(rooms)} prompts of {task.name} fill the {limit} tokens that {model.name} takes: they are "
            "unscorable and count as not solved"
        )
    for finding in answer_findings(policy, task.name, task.task, task.examples, max_tokens):
        logger.warning(finding)
