"""Sample, keep the correct, fine-tune; again. From the command line.

    python -m minrl expert-iteration --task countdown --rounds 5
    python -m minrl expert-iteration --resume latest

Expert iteration (arXiv:1705.08439) with the policy's own correct completions as the expert's, as in STaR
(arXiv:2203.14465) and ReST-EM (arXiv:2312.06585). Departures: there is no tree search and, unlike STaR, no hint after
a failure; a round continues from the previous round's policy, where those two restart from the start model; a
round sees a share of the training examples, not all of them.

A round is a step of the run. Its samples are a function of the seed, the round and the weights, and its AdamW is new:
a killed run repeats its round and reaches the same weights.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from loguru import logger as log

from minrl.dataflow import Example, Rollout, TrainState
from minrl.evaluate.statistics import is_solved
from minrl.optimizer import make_optimizer
from minrl.rollout import Rollouts, completion_seed, joined, rollout
from minrl.run.run import Program, open_run
from minrl.run.setup import Parts, assemble
from minrl.sampling import draw_examples, every, require_rewards, training_plan
from minrl.sft.config import ExpertIterationConfig
from minrl.sft.filter import EXAMPLE
from minrl.sft.step import measure, rows_in_all, sft_step
from minrl.tasks.checked import refuse_mistakes
from minrl.tracking.session import Session
from minrl.tracking.timers import timed
from minrl.tracking.writers import require_logger
from minrl.utils.cli import Command
from minrl.utils.console import activity
from minrl.utils.files import write_jsonl

EXPERT_ITERATION = Program("expert-iteration", extends=("rounds",))


def improve(session: Session, settings: ExpertIterationConfig) -> None:
    """Sample a round's completions, keep the correct ones, fine-tune on them, measure. Repeat."""
    parts = session.parts
    config, engine = parts.config, parts.engine
    for step in session.steps():
        with timed("rollout"):
            examples, sampled = sample_round(parts, settings)
        if step == 1:  # there is no preflight; later they are counted, as everywhere
            refuse_mistakes(sampled.failures)
        require_rewards(sampled, settings.max_unscorable_frac, step)
        rollouts = sampled.rollouts
        kept = keep_correct(rollouts, settings)
        if session.main and parts.task.episode is None and every(config.rollouts_every, step):
            path = parts.run.folder / "samples" / f"round_{step:03d}.jsonl"
            write_samples(path, examples, rollouts, kept)
        session.add(
            {
                "expert/kept": float(len(kept)),
                "expert/kept_frac": len(kept) / len(rollouts),
                "expert/solved_examples": float(len({rollout.example_id for rollout in kept})),
            }
        )
        engine.sleep()
        with timed("update"):
            session.add(fine_tune_round(parts, settings, kept))
        engine.wake()
        engine.sync(parts.policy)
        if every(config.eval_every, step) or step == config.steps:
            session.evaluate()
        session.step(sampled)
        session.save_if_due()


def sample_round(parts: Parts, settings: ExpertIterationConfig) -> tuple[list[Example], Rollouts]:
    """The round's examples and completions, sampled batch by batch. No problem is drawn twice in a round, in whatever
    words it is asked.
    """
    config, state, policy, task = parts.config, parts.state, parts.policy, parts.task
    examples, seed = task.dataset.train, completion_seed(settings.seed, "examples", state.step)
    problems: dict[str, Example] = {}
    for example in draw_examples(examples, len(examples), seed, TrainState()):
        problems.setdefault(example.id, example)
    chosen = list(problems.values())[: settings.examples_per_round]
    sampled = []
    for drawn in range(0, len(chosen), settings.sample_batch_size):
        examples = chosen[drawn : drawn + settings.sample_batch_size]
        plan = training_plan(config, state, drawn)
        sampled.append(rollout(policy, parts.engine, parts.workers, task, examples, plan))
    return chosen, joined(sampled)


def keep_correct(rollouts: Sequence[Rollout], settings: ExpertIterationConfig) -> list[Rollout]:
    """The solved completions that ended by themselves, in the order of sampling.

    At most the first `max_per_example` different ones of an example and role are kept.
    """
    kept: list[Rollout] = []
    found: dict[tuple[str, str], list[Sequence[int]]] = {}
    for one in rollouts:
        if not is_solved(one) or one.truncated:
            continue
        known = found.setdefault((one.example_id, one.role), [])
        full = 0 < settings.max_per_example <= len(known)
        if not full and one.ids not in known:
            known.append(one.ids)
            kept.append(one)
    return kept


def fine_tune_round(parts: Parts, settings: ExpertIterationConfig, kept: Sequence[Rollout]) -> dict[str, float]:
    """Train on the kept completions with a new optimizer. Returns the last optimizer step's metrics, with the mean loss
    and entropy of all steps.
    """
    if not kept:
        log.warning(f"round {parts.state.step} has no correct completion: nothing is trained on")
        return {"sft/optimizer_steps": 0.0}
    optimizer = parts.optimizer = make_optimizer(parts.policy, parts.config)
    batch_size = min(settings.batch_size, len(kept))
    total = rows_in_all(settings.epochs_per_round, len(kept))
    steps = math.ceil(total / batch_size)
    seed, config = completion_seed(settings.seed, "fine-tune", parts.state.step), parts.config
    inner, losses, entropies, skipped = TrainState(), [], [], 0.0
    with activity("fine-tuning", steps) as report:
        for inner.step in range(1, steps + 1):
            drawn = draw_examples(kept, min(batch_size, total - inner.examples_drawn), seed, inner)
            metrics = sft_step(parts.policy, optimizer, drawn, config, inner, steps)
            losses.append(metrics["sft/loss"])
            entropies.append(metrics["sft/entropy"])
            skipped += metrics["policy/skipped_steps"]
            report(inner.step)
    return {
        **metrics,
        "sft/epoch": inner.examples_drawn / len(kept),
        "sft/loss": math.fsum(losses) / steps,
        "sft/entropy": math.fsum(entropies) / steps,
        "sft/optimizer_steps": steps - skipped,
        "policy/skipped_steps": skipped,
    }


def write_samples(
    path: Path, examples: Sequence[Example], rollouts: Sequence[Rollout], kept: Sequence[Rollout]
) -> None:
    """Write the round's completions as rows that `minrl sft` and `minrl filter` read. The fields that the reward
    reads stand under `example`, where none replaces another.
    """
    by_id, trained_on = {example.id: example for example in examples}, {id(one) for one in kept}
    rows = (
        {
            "id": one.example_id,
            "prompt": by_id[one.example_id].prompt,
            "response": one.text,
            "reward": None if one.reward is None else one.reward.value,
            "kept": id(one) in trained_on,
            "truncated": one.truncated,
            EXAMPLE: by_id[one.example_id].fields,
        }
        for one in rollouts
    )
    write_jsonl(path, rows)


def main(command: Command[ExpertIterationConfig]) -> int:
    """Measure the policy, and let it learn from itself."""
    run = open_run(command.config, command.options, command.given, EXPERT_ITERATION)
    require_logger(run.config)
    with assemble(run) as parts:
        settings: ExpertIterationConfig = parts.run.settings
        asked, available = settings.examples_per_round, len({example.id for example in parts.task.dataset.train})
        if asked > available:  # a round samples no example twice
            task = settings.task
            log.info(
                f"each round samples all {available} training examples of {task}, not --examples-per-round {asked}"
            )
        with Session(parts, command.started, partial(measure, held_out=[])) as session:
            improve(session, settings)
            return session.finish({"algorithm": "expert_iteration"})
