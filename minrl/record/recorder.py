"""Records and shows a run's steps: clock, metrics, rollouts, evaluations."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from loguru import logger
from torch import Tensor

from minrl.algorithms import Advantages
from minrl.evaluation import evaluations_after
from minrl.record.clock import PhaseClock, speeds
from minrl.record.fingerprints import of_checkpoint, of_step
from minrl.record.metrics import MetricsLog
from minrl.record.rollout_metrics import distributions, markdown, over_processes, samples, step_metrics
from minrl.record.usage import Usage
from minrl.rollout import Rollouts
from minrl.run.best import ended_by, fall, note_score, score_in, scores_of
from minrl.run.checkpoint import best_in, name_best
from minrl.run.folder import begin
from minrl.run.parts import Parts
from minrl.run.run import hyperparameters
from minrl.statistics.evaluation import Evaluation
from minrl.types import Rollout
from minrl.update import Update
from minrl.utils.console import STEP
from minrl.utils.files import write_json
from minrl.utils.task_names import task_key
from minrl.viewer.lines import add_moved, readable, training_lines


class Recorder:
    """Writes a run's scalars, texts and rollouts, and shows how far it is. `begin` opens the files.

    `owed`: the step's evaluation is still to come, and its line waits for it.
    """

    def __init__(self, parts: Parts, started: float) -> None:
        self.parts, self.run, self.config, self.state = parts, parts.run, parts.config, parts.state
        self.main = parts.policy.processes.main
        self.owed = False
        self.evaluated_at: int | None = None
        self.evaluations: dict[str, Evaluation] = {}
        self._started, self._earlier_s = started, parts.state.seconds
        self._log: MetricsLog | None = None
        self.bar = ExitStack()
        self._report: Callable[..., None] = lambda completed, note, left_s: None
        self._step_s: list[float] = []
        self._evaluation_s: list[float] = []
        self._metrics: dict[str, float] = {}
        self._facts: dict[str, float] = {}
        self._clock, self._usage = PhaseClock(), Usage()
        self._new_tokens = 0
        self._sampled: Sequence[Rollout] = ()
        self._hashes: dict[str, str] = {}

    @property
    def begun(self) -> bool:
        """Whether this process writes, and has opened its files."""
        return self._log is not None

    def close(self, finished: bool = False) -> None:
        """Close the bar and the files; `finished` says that the run came to its end."""
        self.bar.close()
        if self._log is not None:
            self._log.close(finished=finished)

    def flush(self) -> None:
        """Put everything on disk."""
        if self._log is not None:
            self._log.flush()

    def begin(self) -> None:
        """Open the run's files, cut off what lies beyond the checkpoint, show the bar."""
        step, config = self.state.step, self.config
        if self.main:
            prompt = self.parts.task.dataset.held_out[0].prompt if config.rollout.task else None
            cut_after = begin(self.run, config.steps, prompt)
            names, settings = self.parts.scored, hyperparameters(self.run)
            self._log = MetricsLog(self.run.folder, cut_after, names, settings, config.logging.logger)
            if config.logging.note and not step:
                self._log.text("note", config.logging.note, step)
            self.parts.screen.log_to(self.run.folder / "log.txt")
            self._refresh_page()  # a resume may have cut away steps that the page shows
        logger.info(f"run {self.run.folder}" + (f", going on after step {step}" if step else ""))
        for name, task in self.parts.tasks.items():
            for note in task.notes():
                logger.info(f"{name}: {note}")
        self._compare_walls()
        self._report = self.bar.enter_context(self.parts.screen.progress(STEP, config.steps, done=step))
        logged = self._log.last if self._log is not None else []
        (logged, *_) = self.parts.policy.processes.gather([logged])
        self.owed = bool(self.state.unfinished) and not logged
        if self.state.unfinished and logged:  # it was killed after the evaluation that its checkpoint waits for
            note_score(self.state, score_in(logged[0], task_key(config.rollout.task), step))
        if self.main and config.logging.keep_best:
            name_best(self.run.checkpoints, self.state)  # it may have been killed before that
        self._metrics = dict(self.state.unfinished) if self.owed else {}
        self._forget_other_work()
        self._clock, self._usage = PhaseClock(), Usage()

    def _compare_walls(self) -> None:
        """All processes of the run, perhaps of several machines, must have the same walls around untrusted code."""
        processes = self.parts.policy.processes
        if processes.count > 1:
            from minrl.sandbox.call import LEVEL_VARIABLE, require_one_level

            require_one_level(processes.gather([os.environ.get(LEVEL_VARIABLE, "")]))

    def timed(self, tag: str) -> AbstractContextManager[None]:
        """Count the seconds inside as a phase of the step."""
        return self._clock.timed(tag)

    def rollouts(self, sampled: Rollouts) -> None:
        """Add the metrics of what all processes sampled."""
        rollouts = sampled.rollouts
        _warn_of("episodes", sampled.failures)
        self._clock.move("time/rollout_s", "time/reward_s", self.parts.workers.take_seconds())
        if not rollouts:
            return
        with self.timed("time/log_s"):
            self._sampled = rollouts
            self._new_tokens = sum(rollout.num_sampled for rollout in rollouts)
            self.state.sampled_tokens += self._new_tokens
            self._metrics.update(step_metrics(sampled, self.config.rollout.terms))
            self._facts.update(self.parts.engine.take_facts())

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Add numbers of the step, by tag."""
        policy = self.parts.policy
        self.state.policy_version, self.state.skipped_steps = policy.version, policy.skipped_steps
        self._metrics.update(metrics)

    def update(self, advantages: Advantages, update: Update) -> None:
        """Add the numbers of the update."""
        self.measured(update.metrics)
        with self.timed("time/log_s"):
            self._hashes, self._sampled = of_step(self._sampled, advantages.values), ()
        self._facts.update(self.parts.engine.take_facts())
        self._metrics["reward/zero_spread_group_frac"] = advantages.zero_spread_group_frac
        self._metrics.update({f"baseline/{role}": value for role, value in advantages.baselines.items()})

    def save_rollouts(
        self,
        rollouts: Sequence[Rollout],
        advantages: Tensor,
        update: Update,
        followed: Sequence[Rollout],
        moved: Tensor | None = None,
    ) -> None:
        """Write the step's rollouts, and the held-out examples that are followed through the run. `moved` says how far
        the update moved each sampled token of both.
        """
        if self._log is None:
            return
        with self.timed("time/log_s"):
            policy, step = self.parts.policy, self.state.step
            lines = training_lines(policy, rollouts, advantages, update)
            others = readable(policy, followed, "held_out")
            add_moved([*lines, *others], moved)
            self._log.text("samples/train", markdown(samples(lines)), step)
            self._log.text("samples/held_out", markdown(others), step)
            self._log.rollouts(step, [*lines, *others])
            self._log.histograms(step, distributions(rollouts, update.logprobs))

    def evaluation(self, evaluations: dict[str, Evaluation]) -> None:
        """Add the held-out figures. The last step's keep their rollouts: some are shown at the end."""
        self.evaluated_at, self.evaluations = self.state.step, dict(evaluations)
        for name, evaluation in evaluations.items():
            self._metrics.update(evaluation.metrics(name))
            logger.info(f"step {self.state.step}: {name} {evaluation.text()}")
            _warn_of(f"held-out episodes of {name}", evaluation.failures)
        self._note_score()
        if self.state.step < self.config.steps and not ended_by(scores_of(self.state), self.config.evaluation):
            self.evaluations = {name: replace(one, rollouts=()) for name, one in evaluations.items()}
        if self.state.step == 0 and self.main:
            plain = {name: evaluation.to_json() for name, evaluation in evaluations.items()}
            write_json(self.run.folder / "eval_before.json", plain)
        if self._log is not None:
            with self.timed("time/log_s"):
                self._refresh_page()

    def _note_score(self) -> None:
        """Add the score of the trained task to the state, as the main process has it, and say where it has fallen."""
        score = score_in(self._metrics, task_key(self.config.rollout.task), self.state.step)
        note_score(self.state, self.parts.policy.processes.gather([score])[0])
        fallen = fall(scores_of(self.state)) if score is not None else ""
        if fallen:
            best = best_in(self.run.checkpoints) if self.config.logging.keep_best else None
            logger.warning(f"step {self.state.step}: {fallen}" + (f": {best}" if best else ""))

    def end_step(self) -> None:
        """Write the step's line, or keep it for the run that makes its evaluation. Start the next step's clock."""
        self.state.seconds = self.seconds
        seconds = self._clock.end_step()
        own = {**self._facts, **self._clock.take_memory(), **self._usage.take()}
        self._metrics.update(over_processes(self.parts.policy.processes.gather([own])))
        # If the step's evaluation was left to this run, the seconds before the stop count too.
        self._metrics.update({tag: value + self._metrics.get(tag, 0.0) for tag, value in seconds.items()})
        evaluation_s = seconds.get("time/eval_s", 0.0) if self.evaluated_at == self.state.step else 0.0
        self._evaluation_s += [evaluation_s] * (evaluation_s > 0)
        self._step_s += [seconds["time/step_s"] - evaluation_s] * (self.state.step > 0)
        self._metrics.update(speeds(self._metrics, self._new_tokens))
        with self.timed("time/log_s"):
            if self._log is not None and not self.owed:
                self._log.log(self.state.step, self._metrics)
            if self._log is not None and self._hashes:
                self._log.fingerprint(self.state.step, self._hashes)
            self._report(self.state.step, self._note(), self._left_s())
        self.state.unfinished = self._metrics if self.owed else {}
        self._metrics, self._facts, self._hashes, self._new_tokens, self.owed = {}, {}, {}, 0, False
        self._forget_other_work()

    def saved(self, checkpoint: Path) -> None:
        """Add the hashes of a checkpoint."""
        if self._log is not None:
            self._log.fingerprint(self.state.step, {"files": of_checkpoint(checkpoint)})

    @property
    def seconds(self) -> float:
        """Seconds of the run so far, including those before it was resumed."""
        return self._earlier_s + time.perf_counter() - self._started

    def _refresh_page(self) -> None:
        if (self.run.folder / "rollouts").exists():
            from minrl.viewer.build import refresh_page

            refresh_page(self.run.folder)

    def _forget_other_work(self) -> None:
        """Drop the engine's and workers' counts of an evaluation or preflight: they are not the next step's."""
        self.parts.engine.take_facts()
        self.parts.workers.take_seconds()

    def _left_s(self) -> float | None:
        """The seconds of the remaining steps and evaluations, each as long as those of this run so far took."""
        if not self._step_s:
            return None
        steps, evaluations = self.config.steps - self.state.step, self.config.evaluation
        left = evaluations_after(self.state.step, self.config.steps, evaluations)
        return steps * fmean(self._step_s) + left * fmean(self._evaluation_s or [0.0])

    def _note(self) -> str:
        """The note beside the bar."""
        metrics, step = self._metrics, self.state.step
        held_out = self.evaluations.get(task_key(self.config.rollout.task))
        note = [f"reward {metrics['reward/mean']:.2f}"] if step and "reward/mean" in metrics else []
        note += [f"loss {metrics['sft/loss']:.3f}"] if "sft/loss" in metrics else []
        if held_out is not None and held_out.measured:
            note += [f"held-out {100 * held_out.pass_at_1:.0f} %"]
        note += [f"{fmean(self._step_s):.2g} s/step"] if self._step_s else []
        return "  ".join(note)


def _warn_of(episodes: str, failures: Sequence[str]) -> None:
    """Report how many episodes could not be rewarded, and the reason of the first."""
    if failures:
        count, first = len(failures), failures[0]
        logger.warning(f"{count} {episodes} could not be rewarded as they were played, the first because:\n{first}")
