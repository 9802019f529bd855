"""Begins a new run at a step of another one, with other settings and the same random numbers, and compares the ends."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from minrl.config import TaskOptions, TrainerConfig, with_absolute_paths
from minrl.evaluate import evaluate
from minrl.evaluate.config import EvaluateConfig
from minrl.run.checkpoint import damage, last_saved, step_name, step_of
from minrl.run.ends import steps_at
from minrl.run.model_names import checkpoints_of
from minrl.run.parts import assemble
from minrl.run.resume import open_run
from minrl.run.run import Run
from minrl.run.start import OPPONENT, TEACHER
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.logger import Logger
from minrl.train import loop
from minrl.types import require
from minrl.utils.cli import parse
from minrl.utils.files import read_json


def forked(run: Path, step: int, flags: Sequence[str]) -> Run:
    """The run that branches off after a step of `run`, with what the flags change."""
    checkpoint = checkpoints_of(run) / step_name(step)
    problem = damage(checkpoint)
    kept = sorted(path.name for path in checkpoint.parent.glob("step_*"))
    require(problem is None, f"{checkpoint}: {problem}; the run has {', '.join(kept) or 'no checkpoint'}")
    places = ["--runs-dir", str(run.parent), "--checkpoints-dir", str(checkpoint.parent.parent)]
    resumed = ["--resume", str(checkpoint), *places]
    command = parse(TrainerConfig, resumed)
    stored = open_run(command.config, command.options, resumed)
    command = parse(TrainerConfig, ["--config", str(run / "config.json"), *places, *flags])
    settings, options = command.config, command.options
    require(
        not settings.resume, "--resume goes on with a run as it is, and a fork changes it: give the flags that change"
    )
    settings, options = with_absolute_paths(settings), {key: with_absolute_paths(own) for key, own in options.items()}
    _require_common(stored, settings, options)
    had = steps_at(stored.stored, step + 1)
    if had != settings.steps:
        sys.stderr.write(f"after step {step} the run was to end at step {had}, and the fork at {settings.steps}\n")
    models = _models_in_common(stored, settings)
    return replace(stored, settings=settings, options=options, models=models, named=checkpoint, forks=True)


def _models_in_common(stored: Run, settings: TrainerConfig) -> dict[str, dict[str, str]]:
    """The models that the run recorded, without those in whose place the fork names others."""
    before = stored.config
    other = {
        TEACHER: before.algorithm.teacher_id != settings.algorithm.teacher_id,
        OPPONENT: before.rollout.opponent != settings.rollout.opponent,
    }
    return {role: model for role, model in stored.models.items() if not other.get(role)}


def _require_common(stored: Run, settings: TrainerConfig, options: TaskOptions) -> None:
    """Refuse what the checkpoint cannot follow, and what would draw other random numbers."""
    before = stored.config
    fixed = {
        "the model": (before.model.model_id, settings.model.model_id),
        "the adapters": (before.lora, settings.lora),
        "the optimizer": (before.optimizer.optimizer, settings.optimizer.optimizer),
        "the task": (before.rollout.task, settings.rollout.task),
        "the task's options": (stored.options, options),
        "the seed": (before.seed, settings.seed),
    }
    changed = [name for name, (was, now) in fixed.items() if was != now]
    require(
        not changed,
        f"a fork has {' and '.join(changed)} of its run: change what is learned from (--algorithm, --learning-rate, "
        "--kl-coef and the like), or begin a new run from the checkpoint with --model-id",
    )


def go_on(run: Run) -> tuple[int, Path]:
    """Train the fork to its end; its exit status and its last checkpoint."""
    with assemble(run) as parts, Logger(parts, time.perf_counter(), diagnostics=UpdateDiagnostics) as logger:
        loop(logger)
        status = logger.finish()
        saved = last_saved(parts.run.checkpoints)
    assert saved is not None, "a run that ended has a checkpoint"
    return status, saved


def compare(run: Path, saved: Path, task: str, output: Path) -> int:
    """Evaluate the run's checkpoint of the fork's last step, or its newest, and the fork's on the same examples; say
    by how much the fork is better.
    """
    same = checkpoints_of(run) / step_name(step_of(saved))
    own = same if damage(same) is None else last_saved(checkpoints_of(run))
    assert own is not None, "the fork began at one"
    models = ["--models", str(own), str(saved), "--task", task, "--output", str(output)]
    status = evaluate.main(parse(EvaluateConfig, models))
    differences = read_json(output / "summary.json").get("differences", [])
    for found in differences:
        low, high = found["ci95"]
        of_one = f"{found['task']}: " if len(differences) > 1 else ""
        sys.stderr.write(
            f"{of_one}held-out pass@1 of the fork after step {step_of(saved)}, less that of the run after step "
            f"{step_of(own)}: {found['difference']:+.1%} ({low:+.1%} to {high:+.1%}), paired over "
            f"{found['examples']} examples\n"
        )
    return status
