"""A run while it goes on: signals, evaluations, checkpoints, and its end."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from loguru import logger

from minrl.config import LoggingConfig
from minrl.draw import every
from minrl.record.recorder import Recorder
from minrl.run.best import best_of, ended_by, scores_of, why_ended
from minrl.run.checkpoint import (
    BEST,
    best_in,
    is_best,
    last_saved,
    name_best,
    save_checkpoint,
    step_name,
    step_of,
    weights_sha256,
)
from minrl.run.folder import note_saved
from minrl.run.next_steps import next_steps
from minrl.run.parts import Parts
from minrl.run.run import write_summary
from minrl.run.start import START
from minrl.run.stopping import StepSignals
from minrl.statistics.evaluation import Evaluation, is_solved
from minrl.types import UserError
from minrl.utils.cli import near
from minrl.utils.console import FILE_ONLY, RESULT
from minrl.utils.files import read_json, read_record
from minrl.utils.signals import exit_status
from minrl.utils.task_names import task_key


def require_logger(config: LoggingConfig) -> None:
    """Refuse a logger that cannot be used, before anything slow."""
    if config.logger == "wandb":
        from minrl.record.wandb import require_login

        require_login()


class Session:
    """A run with its recorder. As a context manager it is left in order: an exception says how the run is resumed."""

    def __init__(self, parts: Parts, started: float) -> None:
        self.parts, self.run, self.state = parts, parts.run, parts.state
        self.recorder = Recorder(parts, started)
        self._signals = StepSignals(parts.policy.processes)
        self._saved = parts.run.checkpoint
        self._finished = False

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(*((OSError, UserError) if error else ())):  # the first error is the one to report
            self.recorder.close(finished=self._finished)
        self._signals.__exit__()
        if kind is not None and self.recorder.begun:  # else nothing was begun that could be resumed
            cause = error if isinstance(error, UserError | KeyboardInterrupt) else None
            quietly = logger.bind(**{FILE_ONLY: True}).opt(exception=None if cause else error)
            quietly.error(f"{kind.__name__}: {error}")  # whoever catches it shows it on the terminal
            saved = last_saved(self.run.checkpoints) or self.run.checkpoint or "none yet"
            logger.error(f"stopped at step {self.state.step}; last checkpoint {saved}: {self.run.resume_command}")

    @property
    def interrupted(self) -> bool:
        """Whether the run is to stop after this step: a signal came to one of its processes."""
        return self._signals.stopped_by > 0

    @property
    def ended(self) -> bool:
        """Whether no further step is to begin: a signal came, or --stop-at or --patience says that it is enough."""
        return self.interrupted or bool(self._ended_by)

    @property
    def _ended_by(self) -> str:
        return ended_by(scores_of(self.state), self.parts.config.evaluation)

    @property
    def owes_evaluation(self) -> bool:
        """Whether the held-out score is measured before the next step: before the first, or where a stopped run left
        it to this one.
        """
        first = self.state.step == 0 and self.parts.config.evaluation.eval_first
        return self.recorder.owed or first

    def preflight(self, findings: Iterable[str]) -> None:
        """Report each finding of the preflight as it comes."""
        clean = True
        for finding in findings:
            logger.warning(f"preflight: {finding}")
            clean = False
        if clean:
            logger.info("preflight: no problems found")

    def begin(self) -> None:
        """Open the run's files. From now on a signal lets the step end."""
        self._signals.__enter__()  # before, nothing is written, and a signal stops at once
        self.recorder.begin()

    def evaluate(self, measure: Callable[[], None] | None = None) -> None:
        """Measure the held-out score, or call `measure`. After a signal it is left to the run that resumes, and a
        signal cuts it short: the step's line waits for it.
        """
        self.recorder.owed = True
        if self._signals.ask():
            return
        with self.recorder.timed("time/eval_s"), self._signals.cutting_short():
            (measure or (lambda: self.recorder.evaluation(self.parts.evaluate())))()
            self.recorder.owed = False

    def end_step(self) -> None:
        """Write the step's line, and learn whether the run is to stop."""
        self.recorder.end_step()
        self._signals.ask()
        evaluated = self.recorder.evaluated_at == self.state.step
        if evaluated and self.recorder.main and self.parts.config.logging.keep_best:  # a resumed run has saved the step
            name_best(self.run.checkpoints, self.state)

    def save_if_due(self) -> None:
        """Save a checkpoint every so many steps, after a signal, and where the score is the best so far."""
        config = self.parts.config.logging
        best = config.keep_best and self.recorder.evaluated_at == self.state.step
        best = best and self.parts.policy.processes.on_main(lambda: is_best(self.run.checkpoints, self.state))
        if best or self.interrupted or every(config.save_every, self.state.step):
            self.save()

    def save(self) -> None:
        """Save a checkpoint, after everything else of the step is on disk."""
        with self.recorder.timed("time/save_s"):
            if self.parts.policy.processes.main:
                self.recorder.flush()
            config, parts = self.parts.config.logging, (self.parts.policy, self.parts.optimizer, self.state)
            kept = config.keep_checkpoints, config.keep_best, getattr(torch, config.save_dtype)
            self._saved = save_checkpoint(self.run.checkpoints, *parts, *kept)
            if self.parts.policy.processes.main:
                note_saved(self.run, self._saved)
                self.recorder.saved(self._saved)

    def finish(self, more: Mapping[str, Any] | None = None) -> int:
        """After a signal say how the run is resumed; else evaluate, write the summary with `more` in it, and show the
        results. Returns the exit status.
        """
        if self.state.step and (self._saved is None or self._saved.name != step_name(self.state.step)):
            self.save()
        if not self.interrupted and self.recorder.evaluated_at != self.state.step:
            self.evaluate(lambda: self.recorder.evaluations.update(self.parts.evaluate()))
            self._signals.ask()
        self.recorder.bar.close()
        if self.interrupted:
            saved = f"saved {self._saved}" if self._saved else "nothing to save before the first step"
            logger.warning(f"{saved}; go on with: {self.run.resume_command}")
            self._signals.ended()
            return exit_status(self._signals.stopped_by)
        self.state.seconds = self.recorder.seconds
        digest = weights_sha256(self.parts.policy)  # by all processes: it may be sharded
        if self.parts.policy.processes.main:
            before, after = read_json(self.run.folder / "eval_before.json") or {}, self.recorder.evaluations
            final = self._saved or Path(self.run.models[START]["path"])  # --stop-at was reached before the first step
            write_summary(self.run, self.state, digest, final, before, after, {**self._best_and_end(), **(more or {})})
            self._show_results(before, after, final)
        self._finished = True
        return 0

    def _best_and_end(self) -> dict[str, Any]:
        """What summary.json says about the best checkpoint, and about the end if that came before the last step."""
        best = read_record(self.run.checkpoints / BEST)
        return ({"best": best} if best else {}) | ({"ended_by": self._ended_by} if self._ended_by else {})

    def _show_results(self, before: dict[str, dict], after: dict[str, Evaluation], final: Path) -> None:
        screen, name = self.parts.screen, task_key(self.parts.config.rollout.task)
        scores, best = scores_of(self.state), best_in(self.run.checkpoints)
        if name in after:
            first = {is_solved(one): one for one in reversed(after[name].rollouts)}
            screen.samples({solved: self.parts.policy.decode_all(one.ids) for solved, one in first.items()})
        logger.info("\n".join(["next:", *next_steps(self.run, final, best, self._ended_by)]))
        if self._ended_by:
            logger.info(f"ended early: {why_ended(scores, self.parts.config.evaluation)}")
        if name in after:  # the score last, where it stays on the screen
            screen.before_and_after(before, {task: evaluation.to_json() for task, evaluation in after.items()})
        steps = f"{self.state.step} step{'s' * (self.state.step != 1)}"
        done = f"{steps} in {self.state.seconds:.0f} s; checkpoint {near(final)}"
        if best is not None and best.name != final.name:
            done += f"; the best, {best_of(score for score in scores if score.step == step_of(best))}: {best.name}"
        logger.bind(**{RESULT: True}).info(done)
