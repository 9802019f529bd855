"""The training loop.

`loop` is the whole algorithm: GRPO (arXiv:2402.03300, algorithm 1) and its family. Its gradient is that of
`policy_loss` (minrl/losses.py), taken in `update_policy` (minrl/update.py). It departs from the paper in that a step
makes one update of its rollouts, unless --passes-per-step or --minibatches-per-pass say otherwise, that the KL term to
a reference is off, unless --kl-coef is given, and that an engine with other probabilities is corrected for.
"""

import time
from collections.abc import Mapping
from typing import Any

from loguru import logger as log

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.dataflow import require
from minrl.run.folder import RunFolder
from minrl.run.overlap import sampling_ahead
from minrl.run.preflight import preflight
from minrl.run.run import Run, open_run
from minrl.run.setup import assemble
from minrl.sampling import adapt_sampling, every, require_sampler, sample_groups
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.session import Session
from minrl.tracking.writers import require_logger
from minrl.update import update_policy
from minrl.utils.cli import Command, from_dict
from minrl.utils.console import in_program
from minrl.utils.signals import Stopped, exit_status


def loop(session: Session) -> None:
    """Sample a group per example, compare the rewards within it, update the policy, sync the engine. Repeat."""
    parts = session.parts
    config, state, policy, engine, task = parts.config, parts.state, parts.policy, parts.engine, parts.task
    algorithm = choose_algorithm(config, parts.run.options)
    for step in session.steps():
        sampled = sample_groups(policy, engine, parts.workers, task, config, state)
        advantages = compute_advantages(sampled.rollouts, algorithm, config, state)
        batch = make_batch(sampled.rollouts, advantages.values)
        engine.sleep()
        with sampling_ahead(parts):  # --overlap: the groups of the next step
            update = update_policy(policy, parts.optimizer, batch, algorithm, config, state, engine.needs_correction)
        engine.wake()
        engine.sync(policy)  # the new weights, verified
        adapt_sampling(state, config, sampled.rollouts)
        if every(config.eval_every, step) or step == config.steps:
            session.evaluate()
        session.step(sampled, advantages, update)
        session.save_if_due()


def train(config: TrainerConfig, options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Train and return the run's summary, which is also in its summary.json; empty with `preflight_only`. Only here it
    has the run's `folder`, and its `history`: the metrics of each step.

        import minrl
        done = minrl.train(minrl.TrainerConfig(task="countdown", steps=20))
        done["eval_after"], [step["reward/mean"] for step in done["history"] if "reward/mean" in step]

    `options` are those of tasks, such as `{"hanoi": {"max_disks": 3}}`. `TrainerConfig(task=quiz)` takes a function
    that is decorated with `minrl.task`. Ctrl-C lets the step end, saves
    a checkpoint and raises `KeyboardInterrupt`; `resume` continues. Messages are shown by the program's own handlers of
    loguru, which stay as they are.
    """
    require(type(config) is TrainerConfig, f"minrl.train takes a TrainerConfig, got {type(config).__name__}")
    settings, chosen = from_dict({**config.settings, "tasks": options or {}}, TrainerConfig)
    given = {name for name in config.given if name != "resume" or config.resume}
    given |= {f"{task}.{name}" for task, own in (options or {}).items() for name in own}
    run = open_run(settings, chosen, given)
    with in_program():
        status, summary = _run(run, time.perf_counter())
    if status >= exit_status(0):
        raise Stopped(status - exit_status(0))
    return summary


def main(command: Command[TrainerConfig]) -> int:
    """Train as the command line says. Returns the exit status."""
    return _run(open_run(command.config, command.options, command.given), command.started)[0]


def _run(run: Run, started: float) -> tuple[int, dict[str, Any]]:
    """Assemble the run's parts, check them, train, and finish. Returns the exit status and the summary."""
    choose_algorithm(run.config, run.options)  # refuses what cannot work before anything slow
    require(bool(run.config.task), "--task is empty, as an unset variable is: name a task, or leave --task out")
    require_sampler(run.config)
    require_logger(run.config)
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
            status, folder = session.finish(), RunFolder(session.run.folder)
            return status, {**session.summary, "folder": str(folder.path), "history": folder.metrics}


if __name__ == "__main__":
    raise SystemExit("error: this is the loop; run it by `python train.py`")
