"""A run in progress: its steps, evaluations and checkpoints, what is recorded of them, and how it ends.

A step's numbers are collected and written as one line, after its evaluation and before its checkpoint; the seconds of
writing and saving count in the next step. The first signal lets a step end, without an evaluation that has not begun.
The run that resumes makes the evaluation that is due and missing, and writes the line again, with its figures.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loguru import logger
from torch import Tensor

from minrl.algorithms import Advantages
from minrl.dataflow import Rollout, UserError, require
from minrl.evaluate.statistics import Evaluation, shown
from minrl.evaluation import result_line
from minrl.models.scoring import LARGEST_GAP
from minrl.report.lines import add_moved, readable, training_lines
from minrl.rewards.episode import first_message
from minrl.rollout import Rollouts
from minrl.run.checkpoint import (
    HASHES,
    best_in,
    is_best,
    newest,
    note_scores,
    read_state,
    save_checkpoint,
    weights_sha256,
)
from minrl.run.folder import EVAL_BEFORE, RunFolder, step_name, step_of
from minrl.run.hub import push
from minrl.run.records import begin, hyperparameters, next_steps, write_summary
from minrl.run.setup import START, Parts
from minrl.run.stopping import Score, StepSignals, best_of, ended_by, note_score, score_of, scores_of
from minrl.sampling import every, warn_of_failures
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.metrics import LAG, over_processes, speeds, step_metrics
from minrl.tracking.samples import sample_rows
from minrl.tracking.timers import TIMERS, timed, usage
from minrl.tracking.writers import RunFiles, hashes_of_step
from minrl.update import Update
from minrl.utils.cli import near
from minrl.utils.console import FILE_ONLY, RESULT, activity
from minrl.utils.files import read_record, write_json
from minrl.utils.settings import flag_of
from minrl.utils.signals import exit_status
from minrl.utils.task_names import task_key


class Session:
    """The context of a training loop: it opens the run's files, evaluates before the first step, and closes in order.

    `evaluate` measures the held-out figures. `diagnostics` are measured in steps whose rollouts are written.
    """

    def __init__(
        self,
        parts: Parts,
        started: float,
        evaluate: Callable[["Session"], dict[str, Evaluation]] | None = None,
        diagnostics: type[UpdateDiagnostics] | None = None,
    ) -> None:
        self.parts, self.run, self.state = parts, parts.run, parts.state
        self.processes, self.main = parts.policy.processes, parts.policy.processes.main
        self.evaluations: dict[str, Evaluation] | None = None
        self.summary: dict[str, Any] = {}
        self._started, self._earlier_s = started, parts.state.seconds
        self._evaluate, self._diagnostics = evaluate or (lambda _: parts.evaluate()), diagnostics
        self._signals, self._bar = StepSignals(self.processes), ExitStack()
        self._files: RunFiles | None = None
        self._saved, self._finished = self.run.checkpoint, False
        self._metrics: dict[str, float] = {}
        self._facts: dict[str, float] = {}
        self._of_step: UpdateDiagnostics | None = None

    def __enter__(self) -> Self:
        self._signals.__enter__()  # before, nothing is written, and a signal stops at once
        try:
            self._open()
            if self._evaluation_is_due:
                self.evaluate()
                self._write_line()
                if self.main and self.run.checkpoint:
                    note_scores(self.run.checkpoint, self.state)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(*((OSError, UserError) if error else ())):  # the first error is the one to report
            self._bar.close()
            if self._files is not None:
                self._files.flush()
                self._files.show("close", self.state.step, self._finished)
        self._signals.__exit__()
        if kind is not None and self._files is not None:  # else nothing was begun that could be resumed
            cause = error if isinstance(error, UserError | KeyboardInterrupt) else None
            quietly = logger.bind(**{FILE_ONLY: True}).opt(exception=None if cause else error)
            quietly.error(f"{kind.__name__}: {error}")  # whoever catches it shows it on the terminal
            saved = newest(self.run.checkpoints) or self.run.checkpoint
            left = f"last checkpoint {saved}: {self.run.resume_command}" if saved else "no checkpoint was saved yet"
            logger.error(f"stopped at step {self.state.step}; {left}")

    # Steps

    @property
    def interrupted(self) -> bool:
        """Whether the run is to stop after this step: a signal came to one of its processes."""
        return self._signals.stopped_by > 0

    @property
    def ended(self) -> bool:
        """Whether no further step is to begin: the last was made, a signal came, or a score ended the run."""
        return self.state.step >= self.parts.config.steps or self.interrupted or bool(self._ended_by)

    @property
    def _ended_by(self) -> str:
        return ended_by(scores_of(self.state), self.parts.config)

    def steps(self) -> Iterator[int]:
        """The steps that are still to be made."""
        while not self.ended:
            if self._diagnostics and self._shows(self.state.step + 1):
                with timed("eval"):
                    self._of_step = self._diagnostics.of_next_step(self.parts)
                self._forget()
            self.state.step += 1
            yield self.state.step

    def _shows(self, step: int) -> bool:
        """Whether a step's rollouts are written: of one in every so many, of the first and of the last."""
        config = self.parts.config
        return every(config.rollouts_every, step) or (config.rollouts_every > 0 and step in (1, config.steps))

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add numbers of the step, by tag."""
        self._metrics.update(metrics)

    def step(
        self, sampled: Rollouts | None = None, advantages: Advantages | None = None, update: Update | None = None
    ) -> None:
        """Write the line of the step, and where they are due its rollouts and diagnostics."""
        self._count()
        policy, new_tokens, hashes = self.parts.policy, 0, {}
        if sampled is not None and self.parts.config.overlap:
            oldest = min(one.weight_version for one in sampled.rollouts)
            self.add({LAG: self.state.policy_version - oldest})
        self.state.policy_version, self.state.skipped_steps = policy.version, policy.skipped_steps
        if sampled is not None:
            with timed("log"):
                new_tokens = sum(one.num_sampled for one in sampled.rollouts)
                self.state.sampled_tokens += new_tokens
                members, limit = self.parts.task.members.items(), self.parts.config.max_tokens
                self.add(step_metrics(sampled, {name: task.max_tokens or limit for name, task in members}))
            if self._shows(self.state.step):
                self._show_samples("train", (result_line("sampled", one) for one in sampled.rollouts))
        if sampled is not None and advantages is not None and update is not None:
            self._require_exact(update.metrics)
            self.add({**advantages.metrics, **update.metrics})
            with timed("log"):
                hashes = hashes_of_step(sampled.rollouts, advantages.values)
            if self._of_step is not None:
                with timed("eval"):
                    moved, curves = self._of_step.measure(sampled.rollouts, advantages.values, update)
                self.add(curves)
                self.save_rollouts(self._of_step.tracked, (sampled.rollouts, advantages.values, update), moved)
                self._of_step = None
        self._write_line(new_tokens, hashes)

    def save_rollouts(
        self,
        tracked: Sequence[Rollout],
        trained: tuple[Sequence[Rollout], Tensor, Update] | None = None,
        moved: Tensor | None = None,
    ) -> None:
        """Write the step's rollouts, with their advantages and update, and the held-out examples that are tracked
        through the run. `moved` says how far the update moved each sampled token of both.
        """
        self._forget()
        if self._files is None:
            return
        self._show_samples("tracked", (result_line("greedy", one) for one in tracked))
        with timed("log"), self._files.showing("rollouts"):
            lines = training_lines(self.parts.policy, *trained) if trained else []
            lines += readable(self.parts.policy, tracked, "held_out")
            add_moved(lines, moved)
            self._files.rollouts(self.state.step, lines)

    def _show_samples(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Show the first of these completions on the boards."""
        if self._files is not None:
            with timed("log"), self._files.showing("samples"):
                if rows := sample_rows(lines):
                    self._files.show("samples", self.state.step, f"samples/{name}", rows)

    def _require_exact(self, metrics: Mapping[str, float]) -> None:
        """Refuse a step whose engine should have sampled with the policy's own probabilities and did not."""
        gap, model = metrics.get("engine/logprob_gap_mean", 0.0), self.parts.policy.model  # none if nothing was trained
        require(
            self.parts.engine.needs_correction or gap <= LARGEST_GAP,
            f"in step {self.state.step} the embedded engine's log-probabilities differ from the policy's by {gap:.2g} "
            f"nats on average, more than rounding ({LARGEST_GAP:g}): {type(model).__name__} computes other "
            "probabilities token by token than in one pass; use --engine vllm, which is corrected for",
        )

    def _write_line(self, new_tokens: int = 0, hashes: Mapping[str, str] | None = None) -> None:
        """Write the step's line, start the next step's clock, and learn whether the run is to stop."""
        self.state.seconds = self._seconds
        seconds, memory = TIMERS.take()
        own = {**self._facts, **memory, **usage()}
        self.add(over_processes(self.processes.gather([own])))
        # Where the step's evaluation was left to this run, the seconds before the stop count too.
        self.add({tag: value + self._metrics.get(tag, 0.0) for tag, value in seconds.items()})
        self.add(speeds(self._metrics, new_tokens))
        with timed("log"):
            metrics = {tag: float(value) for tag, value in self._metrics.items()}
            if self._files is not None:
                self._files.metrics(self.state.step, metrics)
                if not (self.interrupted and self._evaluation_is_due):  # boards take a step once, when it is whole
                    self._files.show("scalars", self.state.step, metrics)
                if hashes:
                    self._files.fingerprint(self.state.step, hashes)
            self._report(self.state.step, self._note(metrics))
        self._metrics, self._facts = {}, {}
        self._signals.ask()

    def _count(self) -> None:
        """Add what engine and workers counted for the step."""
        TIMERS.move("rollout", "reward", self.parts.workers.take_seconds())
        self._facts.update(self.parts.engine.take_facts())

    def _forget(self) -> None:
        """Drop their counts of other work: they are not the step's."""
        self.parts.workers.take_seconds()
        self.parts.engine.take_facts()

    def _note(self, metrics: Mapping[str, float]) -> str:
        """The note beside the bar."""
        held_out = (self.evaluations or {}).get(task_key(self.parts.config.task))
        note = [f"reward {metrics['reward/mean']:.2f}"] if "reward/mean" in metrics else []
        note += [f"loss {metrics['sft/loss']:.3f}"] if "sft/loss" in metrics else []
        if held_out is not None and held_out.measured:
            note += [f"held-out {100 * held_out.pass_at_1:.0f} %"]
        return "  ".join(note)

    @property
    def _seconds(self) -> float:
        """Seconds of the run so far, including those before it was resumed."""
        return self._earlier_s + time.perf_counter() - self._started

    # Evaluations and checkpoints

    @property
    def _evaluation_is_due(self) -> bool:
        """Whether the state lacks a score that it should have."""
        step, config = self.state.step, self.parts.config
        due = every(config.eval_every, step) or step == config.steps if step else config.eval_first
        return due and all(score.step != step for score in scores_of(self.state))

    def evaluate(self) -> None:
        """Measure the held-out figures. After a signal they are left to the run that resumes."""
        self._count()
        self.evaluations = None  # two evaluations' rollouts may not fit into memory
        if self._signals.ask():
            return
        with timed("eval"):
            self.evaluations = self._evaluate(self)
        self._forget()
        state, config = self.state, self.parts.config
        if self._files is not None and any(one.results for one in self.evaluations.values()):
            with timed("log"):
                lines = ({"task": name, **line} for name, one in self.evaluations.items() for line in one.results)
                self._files.evaluation(state.step, lines)
        for name, evaluation in self.evaluations.items():
            self._show_samples(f"held_out/{name}", evaluation.results)
            self.add(evaluation.metrics(name))
            logger.info(f"step {state.step}: {name} {evaluation.text()}")
            warn_of_failures(f"held-out episodes of {name}", evaluation.failures)
        score = score_of(self.evaluations.get(task_key(config.task)), state.step)
        note_score(state, self.processes.gather([score])[0])  # as the main process has it
        if state.step == 0 and self.main:
            write_json(self.run.folder / EVAL_BEFORE, {k: one.to_json() for k, one in self.evaluations.items()})

    def save_if_due(self) -> None:
        """Save a checkpoint every so many steps, after a signal, and where the score is the best so far."""
        config = self.parts.config
        best = config.keep_best and any(score.step == self.state.step for score in scores_of(self.state))
        best = best and self.processes.on_main(lambda: is_best(self.run.checkpoints, self.state))
        if best or self.interrupted or every(config.save_every, self.state.step):
            self.save()

    def save(self) -> None:
        """Save a checkpoint, after everything else of the step is on disk."""
        with timed("save"):
            if self._files is not None:
                self._files.flush()
            run, parts = self.run, (self.parts.policy, self.parts.optimizer, self.state, self.parts.config)
            self._saved = save_checkpoint(run.checkpoints, run.folder, *parts)
            if self._files is not None:
                self._files.fingerprint(self.state.step, {"files": read_state(self._saved)[HASHES]})

    # The first and the last lines

    def _open(self) -> None:
        """Open the run's files, cut off what lies beyond the checkpoint, show the bar."""
        step, config = self.state.step, self.parts.config
        if self.main:
            shown: dict[str, Any] = {}
            if config.task:
                dataset = self.parts.task.dataset
                shown["prompt"] = first_message(self.parts.task, [*dataset.held_out[:1], *dataset.train[:1]][0])
                shown["task_stop_strings"] = [*self.parts.task.stop_strings]
            cut_after = begin(self.run, config.steps, shown)
            self._files = RunFiles(self.run.folder, cut_after)
            earlier = RunFolder(self.run.folder).metrics
            if step and earlier and self._evaluation_is_due:
                self._metrics = {tag: value for tag, value in earlier.pop().items() if tag != "step"}
            self._files.open_boards(config.logger, self.parts.scored, hyperparameters(self.run), earlier)
            if self.run.checkpoint and "files" not in RunFolder(self.run.folder).fingerprints.get(step, {"files": ""}):
                self._files.fingerprint(step, {"files": read_state(self.run.checkpoint)[HASHES]})  # killed before it
            self.parts.screen.log_to(self.run.folder / "log.txt")
        logger.info(f"run {self.run.folder}" + (f", resumed after step {step}" if step else ""))
        for name, task in self.parts.tasks.items():
            for note in task.notes():
                logger.info(f"{name}: {note}")
        self._compare_sandboxes()
        self._report = self._bar.enter_context(activity("step", config.steps, done=step))
        self._forget()
        usage()  # it measures from now on
        TIMERS.restart()

    def _compare_sandboxes(self) -> None:
        """All processes of the run, perhaps of several machines, must have the same walls around untrusted code."""
        if self.processes.count > 1:
            from minrl.sandbox.calls import LEVEL_VARIABLE

            levels = sorted({*self.processes.gather([os.environ.get(LEVEL_VARIABLE, "")])} - {""})  # the weakest first
            found = f"the processes of the run have different levels of the sandbox, {' and '.join(levels)}"
            require(len(levels) < 2, f"{found}: start all of them with {LEVEL_VARIABLE}={''.join(levels[:1])}")

    def finish(self, more: Mapping[str, Any] | None = None) -> int:
        """After a signal say how the run is resumed; else evaluate, write the summary with `more` in it, and show the
        results. Returns the exit status: 1 if the run is complete and `push_to_hub` failed.
        """
        pushed = True
        if self.state.step and (self._saved is None or self._saved.name != step_name(self.state.step)):
            self.save()
        if not self.interrupted and self.evaluations is None:  # it was at its end already
            self.evaluate()
        self._bar.close()
        if self.interrupted:
            saved = f"saved {self._saved}" if self._saved else "stopped before the first step"
            logger.warning(f"{saved}; resume with: {self.run.resume_command}")
            self._signals.ended()
            return exit_status(self._signals.stopped_by)
        self.state.seconds = self._seconds
        digest = weights_sha256(self.parts.policy)  # by all processes: it may be sharded
        if self.main:
            before = read_record(self.run.folder / EVAL_BEFORE)
            final = self._saved or Path(self.run.models[START]["path"])  # --stop-at was reached before the first step
            facts: dict[str, Any] = {"ended_by": self._ended_by}
            if best := self._best:
                score = {"pass@1": best.pass_at_1, "ci95": [best.low, best.high], "reward": best.reward}
                facts["best"] = {"checkpoint": step_name(best.step), "step": best.step, **score}
            facts = {**{name: value for name, value in facts.items() if value}, **(more or {})}
            self.summary = write_summary(self.run, self.state, digest, final, before, self.evaluations or {}, facts)
            if self.parts.config.push_to_hub and self._saved is None:
                logger.warning("nothing was trained, so nothing is pushed to the hub")
            elif self.parts.config.push_to_hub:
                model = self.run.checkpoints / facts["best"]["checkpoint"] if best else final
                pushed = push(self.run, self.summary, model, self.run.models.get(START, {}).get("path", ""))
            self._show_results(before, final)
        self._finished = True
        return 0 if pushed else 1

    @property
    def _best(self) -> Score | None:
        """The score of the best checkpoint that is kept."""
        found = best_in(self.run.checkpoints) if self.parts.config.keep_best else None
        return best_of(score for score in scores_of(self.state) if found and score.step == step_of(found))

    def _show_results(self, before: dict[str, dict], final: Path) -> None:
        """Show what can be done next, and the score last, where it stays on the screen."""
        best = self._best
        kept = self.run.checkpoints / step_name(best.step) if best else None
        logger.info("\n".join(next_steps(self.run, final, kept, self._ended_by)))
        done = f"{self.state.step} step{'s' * (self.state.step != 1)} in {self.state.seconds:.0f} s"
        if self._ended_by:
            done += f", ended early by {flag_of(self._ended_by)} {getattr(self.parts.config, self._ended_by):g}"
        done += f"; checkpoint {near(final)}"
        if kept is not None and kept.name != final.name:
            done += f"; the best, {best}: {kept.name}"
        shown = [compared(name, before.get(name), after.to_json()) for name, after in (self.evaluations or {}).items()]
        logger.bind(**{RESULT: True}).info("\n".join([done, *shown]))


def compared(name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
    """The held-out score of a task before and after, with 95 % intervals; where nothing was ever solved, its mean
    reward.
    """
    solved = any(one and (one["pass@1"] or one["pass@1_greedy"]) for one in (before, after))
    what = "pass@1" if solved else "reward"

    def figure(one: Mapping[str, Any] | None) -> str:
        if one is None or one[what] is None:
            return "not measured"
        return shown(one[what], one["ci95"]) if solved else f"{one[what]:.3g}"

    return f"{name}: held-out {'pass@1' if solved else 'mean reward'} {figure(before)} before, {figure(after)} after"
