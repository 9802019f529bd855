"""A local model plays episodes, by the same `rollout` that trains."""

from collections.abc import Iterator, Sequence
from typing import Any

from loguru import logger

from minrl.engines.choice import make_engine
from minrl.engines.opponent import EngineWithOpponent
from minrl.evaluate.episodes import PURPOSE, Recorder, row_of
from minrl.evaluate.models import NamedModel, as_cached
from minrl.evaluate.plan import EpisodeBatch, EvaluationPlan, PlannedTask
from minrl.evaluate.rows import Key, Row
from minrl.models.processes import Processes
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, rollout
from minrl.run.base_model import check_words, prompts_read
from minrl.run.preflight import answer_findings
from minrl.run.setup import load_policy
from minrl.types import Rollout, require


class LocalSampler:
    """A checkpoint, a local model or a hub's, with its engine."""

    def __init__(self, plan: EvaluationPlan, model: NamedModel, workers: Workers) -> None:
        config = plan.config
        self.config, self.model, self.workers = config, model, workers
        processes = Processes(config.model)
        self.policy = load_policy(model.name, config.model, processes)
        require(
            model.fingerprint in ("", as_cached(model).fingerprint),
            f"the hub has other weights of {model.name} than were cached: say the same command again, which compares "
            "them with the evaluation's",
        )
        self.engine = make_engine(config.engine, self.policy, config.batch_size, lambda: "the same command goes on")
        for named in plan.opponents:  # none or one, in the very checkpoint that the plan found
            opponent = load_policy(named.name, config.model, processes)
            self.engine = EngineWithOpponent(self.engine, opponent, self.policy, config.engine.engine_cache_gib)

    def play(self, task: PlannedTask, batches: Sequence[EpisodeBatch]) -> Iterator[list[Row]]:
        """The rows of each batch."""
        if batches:
            check_prompts(self.policy, self.model, task, self.engine.context_length, self.config.limit_of(task.name))
        for batch in batches:
            yield self._play(task, batch)

    def close(self) -> None:
        """Release the engine and the weights."""
        self.engine.close()
        del self.engine, self.policy

    def _play(self, task: PlannedTask, batch: EpisodeBatch) -> list[Row]:
        recorder = Recorder(task.task, self.config.stop_strings)
        examples = task.examples[batch.first : batch.first + batch.examples]
        played = rollout(self.policy, self.engine, self.workers, recorder.task, examples, self._plan(batch))
        rollouts = iter(played.rollouts)
        rows = []
        for (index, sample), said, failure in zip(batch.episodes(), recorder.records, played.reasons, strict=True):
            spoken = {role: facts(next(rollouts), role) for role in said.roles}
            key = Key(self.model.name, task.name, batch.mode.name, index, sample)
            rows.append(row_of(key, task, said, spoken, failure))
        assert next(rollouts, None) is None, "a rollout of a role that was not written down"
        return rows

    def _plan(self, batch: EpisodeBatch) -> Plan:
        config, slots = self.config, {"first_slot": batch.first, "first_sample": batch.first_sample}
        sizes = batch.samples, config.max_tokens, batch.mode.temperature
        return Plan(*sizes, config.seed, PURPOSE, 0, **slots, stop_strings=config.stop_strings)


def check_prompts(policy: Policy, model: NamedModel, task: PlannedTask, limit: int, max_tokens: int) -> None:
    """Report prompts that leave no room in `limit` tokens, and those whose completions may be cut off early.

    A model that has no room for any prompt, or lacks the prompts' words, is refused. The prompts of a task's own
    episode are known only when it is played.
    """
    if task.task.episode is not None:
        return
    prompts = [example.prompt for example in task.examples]
    check_words(policy, f"the prompts of {task.name} under {model.name}", prompts_read(policy, prompts))
    rooms = [limit - len(policy.encode_prompt(example.prompt)) for example in task.examples]
    full, tight = sum(room < 1 for room in rooms), sum(1 <= room < max_tokens for room in rooms)
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
    if tight:
        logger.warning(f"{tight} prompts of {task.name} leave {model.name} less than --max-tokens ({max_tokens})")
    for finding in answer_findings(policy, task.name, task.task, task.examples, max_tokens):
        logger.warning(finding)


def facts(rollout: Rollout, role: str) -> dict[str, Any]:
    """The columns of a role's rollout beside its text."""
    assert rollout.role == role, f"the rollout of {rollout.role} where that of {role} was due"
    return {"tokens": rollout.num_sampled, "finish_reason": rollout.finish_reason}
