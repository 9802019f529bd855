"""Make a language model better at a task.

    python train.py                                           the default task, on any machine
    python train.py --task hanoi --steps 200
    python train.py --model-id Qwen/Qwen3-0.6B                a model of the hub or of a local folder
    python train.py --resume latest                           continue where it stopped

`train` below is the whole algorithm: GRPO (arXiv:2402.03300, algorithm 1) and its family. Its gradient is that of
`policy_loss` (minrl/losses.py), taken in `update_policy` (minrl/update.py). It departs from the paper in that a step
makes one update of its rollouts, unless --passes-per-step or --minibatches-per-pass say otherwise, that the KL term to
a reference is off, unless --kl-coef is given, and that an engine with other probabilities is corrected for.
"""

import time

STARTED = time.perf_counter()  # before the imports: their seconds count as the run's

from collections.abc import Sequence

from minrl.utils.cli import before_imports, parse_trainer, run_main

if __name__ == "__main__":
    before_imports(parse_trainer)

from loguru import logger as log

from minrl.algorithms import choose_algorithm
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.draw import every, sample_groups, temperature_of
from minrl.engines import require_exact
from minrl.run.defaults import parse_run
from minrl.run.parts import assemble
from minrl.run.preflight import preflight
from minrl.run.resume import open_run
from minrl.tracking.logger import Logger, require_logger
from minrl.update import update_policy


def train(logger: Logger) -> None:
    """Sample a group per example, normalise rewards within it, update the policy, sync the engine. Repeat."""
    parts = logger.parts
    config, state, policy, engine, task = parts.config, parts.state, parts.policy, parts.engine, parts.task
    algorithm = choose_algorithm(config)
    for step in logger.steps():
        temperature = temperature_of(config, state)
        sampled = sample_groups(policy, engine, parts.workers, task, config, state)
        advantages = algorithm.advantages(sampled.rollouts, state.baselines)
        state.baselines = advantages.baselines
        batch = make_batch(sampled.rollouts, advantages.values)

        engine.sleep()
        update = update_policy(policy, parts.optimizer, batch, algorithm, config, step, not engine.exact, temperature)
        engine.wake()
        engine.sync(policy)
        require_exact(engine, policy, update.metrics, step)

        if every(config.evaluation.eval_every, step) or step == config.steps:
            logger.evaluate()
        logger.step(sampled, advantages, update)
        logger.save_if_due()


def main(arguments: Sequence[str]) -> int:
    """Evaluate the policy, train it, and evaluate it again."""
    run = open_run(*parse_run(TrainerConfig, arguments), arguments)
    choose_algorithm(run.config)  # refuses what cannot work before anything slow
    require_logger(run.config.logging)
    with assemble(run) as parts:
        if parts.config.preflight and parts.state.step == 0:
            clean = True
            for finding in preflight(parts.policy, parts.engine, parts.workers, parts.task, parts.config):
                log.warning(f"preflight: {finding}")
                clean = False
            if clean:
                log.info("preflight: no problems found")
        if parts.config.preflight_only:
            return 0
        with Logger(parts, STARTED, follow=True) as logger:
            train(logger)
            return logger.finish()


if __name__ == "__main__":
    run_main(main)
