"""What a run writes down and shows: clock, metrics, rollouts, checkpoints, the table at the end."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from loguru import logger
from torch import Tensor

from minrl.algorithms import Comparison
from minrl.config import task_key
from minrl.evaluation import Evaluation
from minrl.record.clock import PhaseClock, speeds
from minrl.record.metrics import MetricsLog, read_metrics
from minrl.record.rollout_metrics import distributions, markdown, over_processes, rollout_metrics, samples
from minrl.rollout import Rollouts
from minrl.run.checkpoint import last_saved, step_name
from minrl.run.folder import begin, note_saved
from minrl.run.parts import Parts
from minrl.run.run import write_summary
from minrl.run.stopping import StepSignals
from minrl.scoring import LARGEST_GAP
from minrl.system.files import read_json, write_json
from minrl.system.signals import exit_status
from minrl.terminal.screen import FILE_ONLY
from minrl.types import Rollout, UserError
from minrl.update import Update
from minrl.viewer.build import refresh_page
from minrl.viewer.lines import readable, training_lines


class Record:
    """The memory of a run. A context manager: leaving it by an exception says how to go on."""

    def __init__(self, parts: Parts, started: float) -> None:
        self.parts, self.run, self.config, self.state = parts, parts.run, parts.config, parts.state
        self._processes = parts.policy.processes
        self.main = self._processes.main
        self._started, self._earlier_s = started, parts.state.seconds
        self._signals = StepSignals(parts.policy.processes)
        self._log: MetricsLog | None = None
        self._bar = ExitStack()
        self._report: Callable[[int, str], None] = lambda completed, note: None
        self._evaluations: dict[str, Evaluation] = {}
        self._evaluated_at: int | None = None
        self._owed = False  # whether the step's evaluation was left out
        self._saved = parts.run.checkpoint
        self._metrics: dict[str, float] = {}
        self._facts: dict[str, float] = {}
        self.summary: dict[str, Any] = {}
        self._clock = PhaseClock()
        self._new_tokens, self._finished = 0, False

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
        if self._log is not None:
            with suppress(*((OSError, UserError) if error else ())):  # the first error is the one to be told
                self._log.close(finished=self._finished)
        self._signals.__exit__()
        if kind is not None and self.main and self._log is not None:  # else nothing was begun that could go on
            cause = error if isinstance(error, UserError | KeyboardInterrupt) else None
            quietly = logger.bind(**{FILE_ONLY: True}).opt(exception=None if cause else error)
            quietly.error(f"{kind.__name__}: {error}")  # the terminal gets it from whoever catches it
            saved = last_saved(self.run.checkpoints) or self.run.checkpoint or "none yet"
            logger.error(f"stopped at step {self.state.step}; last checkpoint {saved}: {self.run.resume_command}")

    @property
    def interrupted(self) -> bool:
        """Whether the run is to stop after this step: a signal came to one of its processes."""
        return self._signals.stopped_by > 0

    def findings(self, findings: Sequence[str]) -> None:
        """What the preflight found, a line each."""
        for finding in findings:
            logger.warning(f"preflight: {finding}")
        if not findings:
            logger.info("preflight: nothing to complain about")

    def begin(self) -> None:
        """Open the run's files, cut off what lies beyond the checkpoint, show the bar."""
        step = self.state.step
        self._signals.__enter__()  # before, nothing is written, and a signal stops at once
        if self.main:
            self._log = begin(self.run, self.config.steps, list(self.parts.tasks))
            self.parts.screen.log_to(self.run.folder / "log.txt")
            refresh_page(self.run.folder)  # what a resume cut away is not to be read any more
        logger.info(f"run {self.run.folder}" + (f", going on after step {step}" if step else ""))
        for name, task in self.parts.tasks.items():
            for note in task.notes():
                logger.info(f"{name}: {note}")
        title, steps = task_key(self.config.rollout.task) or self.run.name, self.config.steps
        self._report = self._bar.enter_context(self.parts.screen.progress(title, steps, done=step))
        logged = any(line["step"] == step for line in read_metrics(self.run.folder))
        self._owed = bool(self.state.unfinished) and not self.parts.policy.processes.gather([logged])[0]
        self._metrics = dict(self.state.unfinished) if self._owed else {}
        self._forget_what_is_not_the_steps()
        self._clock = PhaseClock()

    def due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now; 0 is never."""
        return every > 0 and self.state.step % every == 0

    def evaluation_due(self) -> bool:
        """Whether the held-out score is measured now: every so many steps, and after the last."""
        return self._due_now(self.due(self.config.evaluation.eval_every) or self.state.step == self.config.steps)

    def evaluation_owed(self) -> bool:
        """Whether the held-out score is measured before the next step: before the first, and where it was left out
        when the run stopped.
        """
        return self._due_now(self._owed or (self.state.step == 0 and self.config.evaluation.eval_first))

    def _due_now(self, due: bool) -> bool:
        """Whether an evaluation is due, and not left to the run that goes on because this one is to stop."""
        self._owed = due and self._signals.ask()
        return due and not self._owed

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time an evaluation, which a signal may cut short."""
        self._owed = True
        with self.timed("time/eval_s"), self._signals.cutting_short():
            yield
            self._owed = False

    def timed(self, tag: str) -> AbstractContextManager[None]:
        """Count the seconds inside as a phase of the step."""
        return self._clock.timed(tag)

    def rollouts(self, sampled: Rollouts) -> None:
        """What all processes sampled. Stops the run where too much of it could not be rewarded."""
        rollouts = sampled.rollouts
        _warn_of("episodes", sampled.failures)
        if not rollouts:
            raise UserError(f"no episode of step {self.state.step} came to its first turn: mend the task's episode")
        self._clock.move("time/rollout_s", "time/reward_s", self.parts.workers.take_seconds())
        with self.timed("time/log_s"):
            self._new_tokens = sum(rollout.num_sampled for rollout in rollouts)
            self.state.sampled_tokens += self._new_tokens
            num_lost = len(sampled.outcomes) - len(rollouts)
            self._metrics.update(rollout_metrics(rollouts, self.config.rollout.max_tokens, num_lost))
            self._facts.update(self.parts.engine.take_facts())
        share, limit = self._metrics["reward/unscorable_frac"], self.config.rollout.max_unscorable_frac
        if share > limit:
            raise UserError(
                f"{share:.0%} of the rollouts of step {self.state.step} could not be rewarded, more than "
                f"max_unscorable_frac ({limit:.0%}): mend the task's reward; the first failure is shown above"
            )

    def measured(self, metrics: Mapping[str, float]) -> None:
        """More of the step's numbers, by tag."""
        policy = self.parts.policy
        self.state.policy_version, self.state.skipped_steps = policy.version, policy.skipped_steps
        self._metrics.update(metrics)

    def update(self, comparison: Comparison, updated: Update) -> None:
        """What the update did. Stops the run where an engine that is exact was not: the step is not saved."""
        self.measured(updated.metrics)
        gap = updated.metrics.get("engine/logprob_gap_mean", 0.0)  # none where nothing was trained on
        if self.parts.engine.exact and gap > LARGEST_GAP:
            model = type(self.parts.policy.model).__name__
            raise UserError(
                f"in step {self.state.step} the embedded engine's log-probabilities differ from the policy's by "
                f"{gap:.2g} nats on average, more than rounding ({LARGEST_GAP:g}): {model} says another thing token by "
                "token than in one pass; use --engine vllm, which is corrected for"
            )
        self._facts.update(self.parts.engine.take_facts())
        self._metrics["reward/zero_spread_group_frac"] = comparison.zero_spread_group_frac
        self._metrics.update({f"baseline/{role}": value for role, value in comparison.baselines.items()})

    def save_rollouts(
        self, rollouts: Sequence[Rollout], advantages: Tensor, updated: Update, tracked: Sequence[Rollout]
    ) -> None:
        """The step's rollouts, and the held-out examples that are followed through the run."""
        if self._log is None:
            return
        with self.timed("time/log_s"):
            policy, step = self.parts.policy, self.state.step
            lines, followed = (
                training_lines(policy, rollouts, advantages, updated),
                readable(policy, tracked, "held_out"),
            )
            self._log.text("samples/train", markdown(samples(lines)), step)
            self._log.text("samples/held_out", markdown(followed), step)
            self._log.rollouts(step, [*lines, *followed])
            self._log.histograms(step, distributions(rollouts, updated.logprobs))

    def evaluation(self, evaluations: dict[str, Evaluation]) -> None:
        """Held-out figures at this step. Those after the last keep their rollouts, of which some are shown."""
        self._evaluated_at, self._evaluations = self.state.step, dict(evaluations)
        if self.state.step < self.config.steps:
            self._evaluations = {name: replace(one, rollouts=()) for name, one in evaluations.items()}
        for name, evaluation in evaluations.items():
            self._metrics.update(evaluation.metrics(name))
            logger.info(f"step {self.state.step}: {name} {evaluation.text()}")
            _warn_of(f"held-out episodes of {name}", evaluation.failures)
        if self.state.step == 0 and self.main:
            plain = {name: evaluation.to_json() for name, evaluation in evaluations.items()}
            write_json(self.run.folder / "eval_before.json", plain)
        if self._log is not None:
            with self.timed("time/log_s"):
                refresh_page(self.run.folder)

    def end_step(self) -> None:
        """Write the step's line, or keep it for the run that makes its evaluation. The next step's clock starts."""
        self.state.seconds = self._earlier_s + time.perf_counter() - self._started
        seconds = self._clock.end_step()
        self._metrics.update(over_processes(self._processes.gather([{**self._facts, **self._clock.take_memory()}])))
        # Those of the same step before the run stopped and went on with the step's evaluation count too.
        self._metrics.update({tag: value + self._metrics.get(tag, 0.0) for tag, value in seconds.items()})
        self._metrics.update(speeds(self._metrics, self._new_tokens))
        with self.timed("time/log_s"):
            if self._log is not None and not self._owed:
                self._log.log(self.state.step, self._metrics)
            self._report(self.state.step, self._note())
        self.state.unfinished = self._metrics if self._owed else {}
        self._metrics, self._facts, self._new_tokens, self._owed = {}, {}, 0, False
        self._signals.ask()
        self._forget_what_is_not_the_steps()

    def _forget_what_is_not_the_steps(self) -> None:
        """What engine and workers did in an evaluation or a preflight is not the next step's."""
        self.parts.engine.take_facts()
        self.parts.workers.take_seconds()

    def checkpoint(self, save: Callable[..., Path]) -> None:
        """Save, after everything else that belongs to the step is on the disk. All processes go on together."""
        with self.timed("time/save_s"):
            if self.main:
                if self._log is not None:
                    self._log.flush()
                keep = self.config.logging.keep_checkpoints
                saved = save(self.run.checkpoints, self.parts.policy, self.parts.optimizer, self.state, keep)
                note_saved(self.run, saved)
            self._processes.wait()
        self._saved = self.run.checkpoints / step_name(self.state.step)

    def finish(self, evaluate: Callable[[], dict[str, Evaluation]], save: Callable[..., Path]) -> int:
        """After a signal say how to go on; else the last evaluation, the summary and the table. The exit status."""
        if self.state.step and (self._saved is None or self._saved.name != step_name(self.state.step)):
            self.checkpoint(save)
        if not self.interrupted and self._evaluated_at != self.state.step:
            with self.evaluating():
                self._evaluations = evaluate()
            self._signals.ask()
        self._bar.close()
        if self.interrupted:
            saved = f"saved {self._saved}" if self._saved else "nothing to save before the first step"
            logger.warning(f"{saved}; go on with: {self.run.resume_command}")
            return exit_status(self._signals.stopped_by)
        self.state.seconds = self._earlier_s + time.perf_counter() - self._started
        if self.main:
            before, after = read_json(self.run.folder / "eval_before.json") or {}, self._evaluations
            assert self._saved is not None, "the last checkpoint was just saved"
            write_summary(self.run, self.state, self.parts.policy, self._saved, before, after, self.summary)
            self._show_results(before, after)
        self._finished = True
        return 0

    def _show_results(self, before: dict[str, dict], after: dict[str, Evaluation]) -> None:
        screen, name = self.parts.screen, task_key(self.config.rollout.task)
        if name in after:
            screen.before_and_after(before, {task: evaluation.to_json() for task, evaluation in after.items()})
            screen.samples(after[name].rollouts, self.parts.policy)
        logger.info(f"{self.state.step} steps in {self.state.seconds:.0f} s; checkpoint {self._saved}")
        command = "tensorboard" if shutil.which("tensorboard") else f"{Path(sys.executable).parent}/tensorboard"
        logger.info(f"curves: {command} --logdir {self.config.logging.runs_dir} (tab CUSTOM SCALARS)")
        logger.info(f"report: python -m minrl.report {self.run.folder}")

    def _note(self) -> str:
        """What stands beside the bar."""
        metrics, step = self._metrics, self.state.step
        held_out = self._evaluations.get(task_key(self.config.rollout.task))
        note = f"reward {metrics['reward/mean']:.2f}" if step and "reward/mean" in metrics else ""
        note += f"loss {metrics['sft/loss']:.3f}" if "sft/loss" in metrics else ""
        if held_out is not None and held_out.measured:
            note += f"  held-out {held_out.pass_at_1:.0%}"
        if "speed/tokens_per_s" in metrics:
            note += f"  {metrics['speed/tokens_per_s']:,.0f} tokens/s"
        return note


def _warn_of(episodes: str, failures: Sequence[str]) -> None:
    """Say how many episodes had something wrong with their rewards, and what the first had."""
    if failures:
        count, first = len(failures), failures[0]
        logger.warning(f"{count} {episodes} could not be rewarded as they were played, the first because:\n{first}")
