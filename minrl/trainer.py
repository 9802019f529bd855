"""The training loop.

`loop` is the whole algorithm: GRPO (arXiv:2402.03300, algorithm 1) and its family. Its gradient is that of
`policy_loss` (minrl/losses.py), taken in `update_policy` (minrl/update.py). It departs from the paper in that a step
makes one update of its rollouts, unless --passes-per-step or --minibatches-per-pass say otherwise, that the KL term to
a reference is off, unless --kl-coef is given, and that an engine with other probabilities is corrected for.
"""

import time
from typing import Any

from loguru import logger as log

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.dataflow import require
from minrl.run.defaults import defaults, with_defaults
from minrl.run.preflight import preflight
from minrl.run.run import Run, open_run
from minrl.run.setup import assemble
from minrl.sampling import adapt_sampling, every, sample_groups
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.session import Session
from minrl.tracking.writers import require_logger
from minrl.update import update_policy
from minrl.utils.cli import Command, from_dict
from minrl.utils.settings import flag_of
from minrl.utils.signals import Stopped, exit_status


def loop(session: Session) -> None:
    """Sample a group per example, compare the rewards within it, update the policy, sync the engine. Repeat."""
    parts = session.parts
    config, state, policy, engine, task = parts.config, parts.state, parts.policy, parts.engine, parts.task
    algorithm = choose_algorithm(config)
    for step in session.steps():
        sampled = sample_groups(policy, engine, parts.workers, task, config, state)
        advantages = compute_advantages(sampled.rollouts, algorithm, config, state)
        batch = make_batch(sampled.rollouts, advantages.values)
        engine.sleep()
        update = update_policy(policy, parts.optimizer, batch, algorithm, config, state, engine.needs_correction)
        engine.wake()
        engine.sync(policy)  # the new weights, verified
        adapt_sampling(state, config, sampled.rollouts)
        if every(config.evaluation.eval_every, step) or step == config.steps:
            session.evaluate()
        session.step(sampled, advantages, update)
        session.save_if_due()


def train(config: TrainerConfig) -> dict[str, Any]:
    """Train and return the run's summary, which is also in its summary.json; empty with `preflight_only`.

        import minrl
        minrl.train(minrl.TrainerConfig(task="countdown", steps=20))["eval_after"]

    `TrainerConfig(task=quiz)` takes a function that is decorated with `minrl.task`. Settings that the config was not
    given have the defaults of the command line, which depend on the size of the model. Ctrl-C lets the step end, saves
    a checkpoint and raises `KeyboardInterrupt`; `resume` continues.
    """
    require(isinstance(config, TrainerConfig), f"minrl.train takes a TrainerConfig, got {type(config).__name__}")
    unset = {name: value for name, value in defaults(config).items() if name in config.settings.keys() - config.given}
    settings, options = from_dict({**config.settings, **unset}, TrainerConfig)
    given = sorted(name for name in config.given if name != "resume" or config.resume)
    run = open_run(settings, options, [flag_of(name) for name in given])
    status, summary = _run(run, time.perf_counter())
    if status:
        raise Stopped(status - exit_status(0))
    return summary


def main(command: Command[TrainerConfig]) -> int:
    """Train as the command line says. Returns the exit status."""
    command = with_defaults(command)
    return _run(open_run(command.config, command.options, command.given), command.started)[0]


def _run(run: Run, started: float) -> tuple[int, dict[str, Any]]:
    """Assemble the run's parts, check them, train, and finish. Returns the exit status and the summary."""
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
            return 0, {}
        with Session(parts, started, diagnostics=UpdateDiagnostics) as session:
            loop(session)
            return session.finish(), session.summary
