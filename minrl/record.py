"""What a run writes down and shows: clock, metrics, rollouts, checkpoints, the table at the end."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from loguru import logger
from torch import Tensor

from minrl.algorithms import Comparison
from minrl.checkpoint import discard_after, step_name
from minrl.clock import PhaseClock
from minrl.command_line import INTERRUPTED
from minrl.config import task_key
from minrl.evaluation import Evaluation
from minrl.metrics import MetricsLog
from minrl.parts import Parts
from minrl.rollout_metrics import distributions, markdown, rollout_metrics, samples
from minrl.run import Interrupt, hyperparameters, write_config, write_json, write_summary
from minrl.screen import FILE_ONLY
from minrl.types import Rollout, UserError
from minrl.update import Updated
from minrl.viewer.build import refresh_page
from minrl.viewer.lines import readable, training_lines


class Record:
    """The memory of a run. A context manager: leaving it by an exception says how to go on."""

    def __init__(self, parts: Parts, started: float) -> None:
        self.parts, self.run, self.config, self.state = parts, parts.run, parts.config, parts.state
        self.main = parts.policy.processes.main
        self._started, self._earlier_s = started, parts.state.seconds
        self._interrupt = Interrupt()
        self._log: MetricsLog | None = None
        self._bar = ExitStack()
        self._report: Callable[[int, str], None] = lambda completed, note: None
        self._evaluations: dict[int, dict[str, Evaluation]] = {}
        self._saved = parts.run.checkpoint
        self._metrics: dict[str, float] = {}
        self.summary: dict[str, Any] = {}
        self._clock = PhaseClock()
        self._new_tokens, self._finished = 0, False

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
        if self._log is not None:
            self._log.close(finished=self._finished)
        if kind is not None and self.main:
            cause = error if isinstance(error, UserError | KeyboardInterrupt) else None
            quietly = logger.bind(**{FILE_ONLY: True}).opt(exception=None if cause else error)
            quietly.error(f"{kind.__name__}: {error}")  # the terminal gets it from whoever catches it
            saved = self._saved or "none yet"
            logger.error(f"stopped at step {self.state.step}; last checkpoint {saved}: {self._how_to_go_on()}")

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._interrupt.requested

    def findings(self, findings: Sequence[str]) -> None:
        """What the preflight found, a line each."""
        for finding in findings:
            logger.warning(f"preflight: {finding}")
        if not findings:
            logger.info("preflight: nothing to complain about")

    def begin(self) -> None:
        """Open the run's files, cut off what lies beyond the checkpoint, show the bar."""
        step = self.state.step
        if self.main:
            write_config(self.run)
            discard_after(self.run.checkpoints, step)
            cut_after, tasks, logger_name = step if step else -1, list(self.parts.tasks), self.config.logging.logger
            self._log = MetricsLog(self.run.folder, cut_after, tasks, hyperparameters(self.run), logger_name)
            self.parts.screen.log_to(self.run.folder / "log.txt")
            refresh_page(self.run.folder)  # what a resume cut away is not to be read any more
        logger.info(f"run {self.run.folder}" + (f", going on after step {step}" if step else ""))
        for name, task in self.parts.tasks.items():
            for note in task.notes():
                logger.info(f"{name}: {note}")
        title = task_key(self.config.rollout.task) or self.run.name
        bar = self.parts.screen.progress(title, self.config.steps, done=step)
        self._report = self._bar.enter_context(bar)
        self._forget_what_is_not_the_steps()
        self._clock = PhaseClock()

    def due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now; 0 is never."""
        return every > 0 and self.state.step % every == 0

    def evaluation_due(self) -> bool:
        """Whether the held-out score is measured now: every so many steps, and after the last."""
        return self.due(self.config.evaluation.eval_every) or self.state.step == self.config.steps

    def timed(self, tag: str) -> AbstractContextManager[None]:
        """Count the seconds inside as a phase of the step."""
        return self._clock.timed(tag)

    def rollouts(self, rollouts: Sequence[Rollout], failures: Sequence[str]) -> None:
        """What was sampled. Stops the run where too much of it could not be rewarded."""
        if failures:
            logger.warning(f"{len(failures)} episodes could not be rewarded, the first because:\n{failures[0]}")
        if not rollouts:
            raise UserError(f"no episode of step {self.state.step} came to its first turn: mend the task's episode")
        self._clock.move("time/rollout_s", "time/reward_s", self.parts.workers.take_seconds())
        with self.timed("time/log_s"):
            self._new_tokens = sum(rollout.num_sampled for rollout in rollouts)
            self.state.sampled_tokens += self._new_tokens
            self._metrics.update(rollout_metrics(rollouts, self.config.rollout.max_tokens))
            self._metrics.update(self.parts.engine.take_facts())
        share, limit = self._metrics["reward/unscorable_frac"], self.config.rollout.max_unscorable_frac
        if share > limit:
            raise UserError(
                f"{share:.0%} of the rollouts of step {self.state.step} could not be rewarded, more than "
                f"max_unscorable_frac ({limit:.0%}): mend the task's reward; the first failure is shown above"
            )

    def measured(self, metrics: Mapping[str, float]) -> None:
        """More of the step's numbers, by tag."""
        self.state.policy_version = self.parts.policy.version
        self._metrics.update(metrics)

    def update(self, comparison: Comparison, updated: Updated) -> None:
        """What the update did."""
        self.measured(updated.metrics)
        self._metrics.update(self.parts.engine.take_facts())
        self._metrics["reward/zero_spread_group_frac"] = comparison.zero_spread_group_frac
        self._metrics.update({f"baseline/{role}": value for role, value in comparison.baselines.items()})

    def save_rollouts(
        self, rollouts: Sequence[Rollout], advantages: Tensor, updated: Updated, tracked: Sequence[Rollout]
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
        """Held-out figures at this step."""
        self._evaluations[self.state.step] = evaluations
        for name, evaluation in evaluations.items():
            self._metrics.update(evaluation.metrics(name))
            low, high = evaluation.ci95
            logger.info(
                f"step {self.state.step}: {name} held-out pass@1 {evaluation.pass_at_1:.1%} "
                f"({low:.1%} to {high:.1%}), greedy {evaluation.greedy_pass_at_1:.1%}"
            )
        if self.state.step == 0 and self.main:
            plain = {name: evaluation.to_json() for name, evaluation in evaluations.items()}
            write_json(self.run.folder / "eval_before.json", plain)
        if self._log is not None:
            with self.timed("time/log_s"):
                refresh_page(self.run.folder)

    def end_step(self) -> None:
        """Write the step's line and start the next step's clock."""
        self.state.seconds = self._earlier_s + time.perf_counter() - self._started
        seconds = self._clock.end_step()
        self._metrics.update(seconds)
        if self._new_tokens:
            self._metrics["speed/tokens_per_s"] = self._new_tokens / seconds["time/step_s"]
            self._metrics["speed/rollout_tokens_per_s"] = self._new_tokens / seconds["time/rollout_s"]
        if self._metrics.get("update/computed_tokens"):
            speed = self._metrics["update/computed_tokens"] / seconds["time/update_s"]
            self._metrics["speed/update_tokens_per_s"] = speed
        with self.timed("time/log_s"):
            if self._log is not None:
                self._log.log(self.state.step, self._metrics)
            self._report(self.state.step, self._note())
        self._metrics, self._new_tokens = {}, 0
        self._forget_what_is_not_the_steps()

    def _forget_what_is_not_the_steps(self) -> None:
        """What engine and workers did in an evaluation or a preflight is not the next step's."""
        self.parts.engine.take_facts()
        self.parts.workers.take_seconds()

    def checkpoint(self, save: Callable[..., Path]) -> None:
        """Save, after everything else that belongs to the step is on the disk. All processes go on together."""
        self._saved = self.run.checkpoints / step_name(self.state.step)
        with self.timed("time/save_s"):
            if self.main:
                if self._log is not None:
                    self._log.flush()
                keep = self.config.logging.keep_checkpoints
                save(self.run.checkpoints, self.parts.policy, self.parts.optimizer, self.state, keep)
            self.parts.policy.processes.wait()

    def finish(self, evaluate: Callable[[], dict[str, Evaluation]], save: Callable[..., Path]) -> int:
        """After Ctrl-C say how to go on; else the last evaluation, the summary and the table. The exit status."""
        if self.state.step and (self._saved is None or self._saved.name != step_name(self.state.step)):
            self.checkpoint(save)
        if self.interrupted:
            self._bar.close()
            saved = f"saved {self._saved}" if self._saved else "nothing to save before the first step"
            logger.info(f"{saved}; go on with: {self._how_to_go_on()}")
            return INTERRUPTED
        after = self._evaluations.get(self.state.step) or evaluate()
        self._bar.close()
        self.state.seconds = self._earlier_s + time.perf_counter() - self._started
        if self.main:
            before = self._before()
            assert self._saved is not None, "the last checkpoint was just saved"
            write_summary(self.run, self.state, self.parts.policy, self._saved, before, after, self.summary)
            self._show_results(before, after)
        self._finished = True
        return 0

    def _before(self) -> dict[str, dict]:
        """The figures before the first step, also where the run was resumed since."""
        path = self.run.folder / "eval_before.json"
        return json.loads(path.read_text()) if path.exists() else {}

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
        latest = self._evaluations[max(self._evaluations)] if self._evaluations else {}
        held_out = latest.get(task_key(self.config.rollout.task))
        note = f"reward {metrics['reward/mean']:.2f}" if step and "reward/mean" in metrics else ""
        note += f"loss {metrics['sft/loss']:.3f}" if "sft/loss" in metrics else ""
        if held_out is not None:
            note += f"  held-out {held_out.pass_at_1:.0%}"
        if "speed/tokens_per_s" in metrics:
            note += f"  {metrics['speed/tokens_per_s']:,.0f} tokens/s"
        return note

    def _how_to_go_on(self) -> str:
        return self.run.resume_command
