"""Sample, keep the correct, fine-tune; again. From the command line.

    python -m minrl expert-iteration --task countdown --rounds 5
    python -m minrl expert-iteration --resume latest

Expert iteration (arXiv:1705.08439) with the policy's own correct completions as the expert's, as in STaR
(arXiv:2203.14465) and ReST-EM (arXiv:2312.06585), but without a tree search and without hints. A round samples a share
of the training examples and continues from the previous round's policy, where those two restart from the start model.

A round is a step of the run. Its samples are a function of the seed, the round and the weights, and its AdamW is new:
a killed run repeats its round and reaches the same weights.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from loguru import logger as log

from minrl.dataflow import Example, Rollout, TrainState, require
from minrl.evaluate.statistics import is_solved
from minrl.optimizer import make_optimizer
from minrl.rollout import Rollouts, completion_seed, joined, rollout
from minrl.run.run import open_run
from minrl.run.setup import Parts, assemble
from minrl.sampling import draw_examples, every, require_rewards, training_plan
from minrl.sft.config import ExpertIterationConfig
from minrl.sft.filter import EXAMPLE
from minrl.sft.step import measure, rows_in_all, sft_step
from minrl.tasks import Task
from minrl.tasks.checked import refuse_mistakes
from minrl.tasks.held_out import Problems, held_out_problems
from minrl.tracking.session import Session
from minrl.tracking.timers import timed
from minrl.tracking.writers import require_logger
from minrl.utils.cli import Command
from minrl.utils.console import activity
from minrl.utils.files import write_jsonl


def improve(session: Session, settings: ExpertIterationConfig) -> None:
    """Sample a round's completions, keep the correct ones, fine-tune on them, measure. Repeat."""
    parts = session.parts
    config, engine, kept_back = parts.config, parts.engine, held_out_problems(parts.task)
    examples = training_examples(parts.task, kept_back)
    for step in session.steps():
        with timed("rollout"):
            asked, sampled = sample_round(parts, settings, examples)
        if step == 1:  # there is no preflight; later they are counted, as everywhere
            refuse_mistakes(sampled.failures)
        require_rewards(sampled, settings.max_unscorable_frac, step)
        rollouts = sampled.rollouts
        kept = [one for one in keep_correct(rollouts, settings) if not kept_back.shown("", one.text)]
        if session.main and parts.task.episode is None and every(config.rollouts_every, step):
            write_samples(parts.run.folder / "samples" / f"round_{step:03d}.jsonl", asked, rollouts, kept)
        session.add(
            {
                "expert/kept": float(len(kept)),
                "expert/kept_frac": len(kept) / len(rollouts),
                "expert/solved_examples": float(len({rollout.example_id for rollout in kept})),
            }
        )
        engine.sleep()
        session.add(fine_tune_round(parts, settings, kept))
        engine.wake()
        engine.sync(parts.policy)
        if every(config.eval_every, step) or step == config.steps:
            session.evaluate()
        session.step(sampled)
        session.save_if_due()


def training_examples(task: Task, kept_back: Problems) -> list[Example]:
    """The task's training examples without those that show a problem that is held out."""
    examples = task.dataset.train
    free = [one for one in examples if not kept_back.shown(one.prompt)]
    if left_out := len(examples) - len(free):
        log.info(f"left out {left_out} of {len(examples)} training examples, which show a held-out problem")
    require(bool(free), "all training examples show a held-out problem")
    return free


def sample_round(
    parts: Parts, settings: ExpertIterationConfig, examples: Sequence[Example]
) -> tuple[list[Example], Rollouts]:
    """The round's examples and completions, sampled batch by batch. No problem is drawn twice in a round, in whatever
    words it is asked.
    """
    config, state = parts.config, parts.state
    seed = completion_seed(settings.seed, "examples", state.step)
    problems: dict[str, Example] = {}
    for example in draw_examples(examples, len(examples), seed, TrainState()):
        problems.setdefault(example.id, example)
    chosen = list(problems.values())[: settings.examples_per_round]
    sampled = []
    for drawn in range(0, len(chosen), settings.sample_batch_size):
        batch, plan = chosen[drawn : drawn + settings.sample_batch_size], training_plan(config, state, drawn)
        sampled.append(rollout(parts.policy, parts.engine, parts.workers, parts.task, batch, plan))
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
    batch_size, total = min(settings.batch_size, len(kept)), rows_in_all(settings.epochs_per_round, len(kept))
    config = replace(parts.config, steps=math.ceil(total / batch_size))
    seed, inner, taken = completion_seed(settings.seed, "fine-tune", parts.state.step), TrainState(), []
    with activity("fine-tuning", config.steps) as report:
        for step in range(1, config.steps + 1):
            drawn = draw_examples(kept, min(batch_size, total - inner.examples_drawn), seed, inner)
            taken.append(sft_step(parts.policy, optimizer, drawn, config, step))
            report(step)
    skipped = sum(metrics["policy/skipped_steps"] for metrics in taken)
    means = {tag: math.fsum(metrics[tag] for metrics in taken) / len(taken) for tag in ("sft/loss", "sft/entropy")}
    return {
        **taken[-1],
        **means,
        "sft/epoch": inner.examples_drawn / len(kept),
        "sft/optimizer_steps": len(taken) - skipped,
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
    run = open_run(command.config, command.options, command.given)
    require_logger(run.config)
    with assemble(run) as parts:
        settings: ExpertIterationConfig = parts.run.settings
        with Session(parts, command.started, partial(measure, held_out=[])) as session:
            improve(session, settings)
            return session.finish({"algorithm": "expert_iteration"})
