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

from minrl.algorithms import choose_algorithm
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.draw import every, observe, require_rewards, sample_groups, temperature_of
from minrl.engines import require_exact
from minrl.record.session import Session, require_logger
from minrl.record.taught import follow
from minrl.run.defaults import parse_run
from minrl.run.parts import assemble
from minrl.run.preflight import preflight
from minrl.run.resume import open_run
from minrl.update import update_policy


def train(session: Session) -> None:
    """Sample a group per example, normalise rewards within it, update the policy, sync the engine. Repeat."""
    parts, recorder = session.parts, session.recorder
    config, state, policy, engine, task = parts.config, parts.state, parts.policy, parts.engine, parts.task
    algorithm = choose_algorithm(config)
    while state.step < config.steps and not session.ended:
        state.step += 1
        temperature = temperature_of(config, state)
        with recorder.timed("time/rollout_s"):
            sampled = sample_groups(policy, engine, parts.workers, task, config, state)
        recorder.rollouts(sampled)
        require_rewards(sampled, config.rollout.max_unscorable_frac, state.step)
        rollouts = sampled.rollouts
        observe(state, config, rollouts)

        with recorder.timed("time/compare_s"):
            advantages = algorithm.advantages(rollouts, state.baselines)
            state.baselines = advantages.baselines
            batch = make_batch(rollouts, advantages.values)
        taught = None
        if every(config.logging.rollouts_every, state.step):
            with recorder.timed("time/eval_s"):
                taught = follow(parts, rollouts, temperature)
        with recorder.timed("time/update_s"):
            engine.sleep()
            update = update_policy(
                policy, parts.optimizer, batch, algorithm, config, state.step, not engine.exact, temperature
            )
        if taught:
            with recorder.timed("time/eval_s"):
                taught.measure(update, advantages.values)
        with recorder.timed("time/sync_s"):
            engine.wake()
            engine.sync(policy)
        recorder.update(advantages, update)
        require_exact(engine, policy, update.metrics, state.step)

        if taught:
            recorder.measured(taught.curves)
            recorder.save_rollouts(rollouts, advantages.values, update, taught.followed, taught.moved)
        if every(config.evaluation.eval_every, state.step) or state.step == config.steps:
            session.evaluate()
        session.end_step()
        session.save_if_due()


def main(arguments: Sequence[str]) -> int:
    """Evaluate the policy, train it, and evaluate it again."""
    run = open_run(*parse_run(TrainerConfig, arguments), arguments)
    choose_algorithm(run.config)  # refuses what cannot work before anything slow
    require_logger(run.config.logging)
    with assemble(run) as parts, Session(parts, STARTED) as session:
        config = parts.config
        if config.preflight and parts.state.step == 0:
            session.preflight(preflight(parts.policy, parts.engine, parts.workers, parts.task, config))
        if config.preflight_only:
            return 0
        session.begin()
        if session.owes_evaluation:
            session.evaluate()
            session.end_step()
        train(session)
        return session.finish()


if __name__ == "__main__":
    run_main(main)
