"""Make a language model better at a task.

    python train.py                                           the default task, on any machine
    python train.py --task hanoi --steps 200
    python train.py --model-id Qwen/Qwen3-0.6B                a model of the hub or of a local folder
    python train.py --resume latest                           go on where it stopped

`train` below is the whole algorithm: GRPO (arXiv:2402.03300, algorithm 1) and its family. It departs from the paper in
that a step makes one update of its rollouts, unless --passes-per-step or --minibatches-per-pass say otherwise, and
that the KL term to a reference is off, unless --kl-coef is given.
"""

import time

STARTED = time.perf_counter()  # before the imports: their seconds count as the run's

from collections.abc import Sequence

from minrl.algorithms import choose_algorithm
from minrl.batch import make_batch
from minrl.run.checkpoint import save_checkpoint
from minrl.terminal.command_line import parse_trainer, run_main
from minrl.run.parts import Parts, assemble
from minrl.run.preflight import preflight
from minrl.record.recorder import Record
from minrl.run.resume import open_run
from minrl.rollout import rollout
from minrl.draw import tracked_plan, training_plan
from minrl.draw import Draw, at_temperature, choose_examples, observe
from minrl.update import update_policy


def train(parts: Parts, record: Record) -> None:
    """Sample a group for each example, compare, improve the policy, hand it to the engine. Repeat."""
    config, state, policy, engine, task = parts.config, parts.state, parts.policy, parts.engine, parts.task
    algorithm = choose_algorithm(config)
    while state.step < config.steps and not record.interrupted:
        state.step += 1
        config = at_temperature(parts.config, state)
        with record.timed("time/rollout_s"):
            draw = Draw(config)
            while draw.prompts:  # once, and again for what --refill-rounds replaces
                examples = choose_examples(task.dataset.train, draw.config, state)
                plan = training_plan(draw.config, state, draw.drawn)
                draw.add(rollout(policy, engine, parts.workers, task, examples, plan))
        rollouts = draw.sampled.rollouts
        record.rollouts(draw.sampled)
        observe(state, parts.config, rollouts)

        with record.timed("time/compare_s"):
            comparison = algorithm.advantages(rollouts, state.baselines)
            state.baselines = comparison.baselines
            batch = make_batch(rollouts, comparison.advantages)
        with record.timed("time/update_s"):
            engine.sleep()
            updated = update_policy(policy, parts.optimizer, batch, algorithm, config, state.step, not engine.exact)
        with record.timed("time/sync_s"):
            engine.wake()
            engine.sync(policy)
        record.update(comparison, updated)

        if record.due(config.logging.rollouts_every):
            with record.timed("time/eval_s"):
                tracked = rollout(policy, engine, parts.workers, task, *tracked_plan(task, config))
            record.save_rollouts(rollouts, comparison.advantages, updated, tracked.rollouts)
        if record.evaluation_due():
            with record.evaluating():
                record.evaluation(parts.evaluate())
        record.end_step()
        if record.due(config.logging.save_every) or record.interrupted:
            record.checkpoint(save_checkpoint)


def main(arguments: Sequence[str]) -> int:
    """Say how good the policy is, train it, and say it again."""
    run = open_run(*parse_trainer(arguments), arguments)
    choose_algorithm(run.config)  # what cannot work is refused before anything slow
    with assemble(run) as parts, Record(parts, STARTED) as record:
        config = parts.config
        if config.preflight and parts.state.step == 0:
            record.findings(preflight(parts.policy, parts.engine, parts.workers, parts.task, config))
        if config.preflight_only:
            return 0
        record.begin()
        if record.evaluation_owed():
            with record.evaluating():
                record.evaluation(parts.evaluate())
            record.end_step()
        train(parts, record)
        return record.finish(parts.evaluate, save_checkpoint)


if __name__ == "__main__":
    run_main(main)
