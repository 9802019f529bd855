"""Begins a new run at a step of another one, with other settings and the same random numbers, and compares the ends."""

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from minrl.config import TaskOptions, TrainerConfig, with_absolute_paths
from minrl.evaluate import evaluate
from minrl.evaluate.config import EvaluateConfig
from minrl.run.checkpoint import by_step, damage, last_saved, step_name, step_of
from minrl.run.defaults import differing, full_name
from minrl.run.folder import CONFIG, EVAL_BEFORE, FINGERPRINTS, METRICS, OWNER, ROLLOUTS, RunFolder
from minrl.run.run import TRAIN, Run, claim, open_run, with_resume
from minrl.run.setup import OPPONENT, TEACHER, assemble
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.logger import Logger
from minrl.train import loop
from minrl.types import require
from minrl.utils.cli import from_dict, parse, to_dict
from minrl.utils.files import read_json, write_json, writing

HISTORY = (METRICS, FINGERPRINTS, EVAL_BEFORE, ROLLOUTS, "events.out.tfevents.*")
"""The records of a run's steps, which a fork copies; resuming cuts them after its step."""


def fork(run: RunFolder, step: int, flags: Sequence[str]) -> int:
    """Train a fork to its end, and compare it with the run."""
    with (
        assemble(forked(run, step, flags)) as parts,
        Logger(parts, time.perf_counter(), diagnostics=UpdateDiagnostics) as logger,
    ):
        loop(logger)
        status = logger.finish()
    saved = last_saved(parts.run.checkpoints)
    assert saved is not None, "a fork begins with a checkpoint"
    if status:
        return status
    return compare(run, saved, parts.config.rollout.task, parts.run.folder.parent / saved.parent.name / "against")


def forked(run: RunFolder, step: int, flags: Sequence[str]) -> Run:
    """A copy of the run as it was after a step, under a name of its own, that resumes with what the flags change."""
    kept = run.checkpoints
    checkpoint, problem = kept / step_name(step), damage(kept / step_name(step))
    known = ", ".join(path.name for path in by_step(kept)) or "no checkpoint"
    require(problem is None, f"{checkpoint}: {problem}; the run has {known}")
    places = ["--runs-dir", str(run.path.parent), "--checkpoints-dir", str(kept.parent)]
    command = parse(TrainerConfig, ["--config", str(run.path / CONFIG), *places, *flags])
    settings, options = command.config, command.options
    require(
        not settings.resume, "--resume goes on with a run as it is, and a fork changes it: give the flags that change"
    )
    settings, options = with_absolute_paths(settings), {key: with_absolute_paths(own) for key, own in options.items()}
    before, own = from_dict(run.config, TrainerConfig)
    _require_common(before, own, settings, options)
    had, resumed = run.steps_at(step + 1), run.record.get("resumed", [])
    if had != settings.steps:
        sys.stderr.write(f"after step {step} the run was to end at step {had}, and the fork at {settings.steps}\n")
        resumed = with_resume(resumed, {}, step, {"steps": had})
    name = full_name(settings, options, TRAIN.extends)
    folder, checkpoints = Path(settings.logging.runs_dir) / name, Path(settings.logging.checkpoints_dir) / name
    with ExitStack() as held:
        new = claim(Run(name, settings, options, folder, checkpoints), held)
        with writing(new.folder):
            for path in (path for pattern in HISTORY for path in run.path.glob(pattern)):
                (shutil.copytree if path.is_dir() else shutil.copy2)(path, new.folder / path.name)
            shutil.copytree(checkpoint, new.checkpoints / checkpoint.name)
        write_json(new.checkpoints / OWNER, {"minrl_run": new.name, "id": new.identity, "folder": str(new.folder)})
        changed = {
            "minrl_run": new.name,
            "id": new.identity,
            "not_default": differing(settings, options),
            "config": to_dict(settings, options),
            "models": _models_in_common(run, before, settings),
            "forked_from": {"run": str(run.path.absolute()), "step": step},
            "resumed": resumed,
        }
        write_json(new.folder / CONFIG, {**run.record, **changed})
    command = parse(TrainerConfig, ["--resume", str(new.folder)])
    return open_run(command.config, command.options, command.given)


def _models_in_common(run: RunFolder, before: TrainerConfig, settings: TrainerConfig) -> dict[str, dict[str, str]]:
    """The models that the run recorded, without those in whose place the fork names others."""
    other = {
        TEACHER: before.algorithm.teacher_id != settings.algorithm.teacher_id,
        OPPONENT: before.rollout.opponent != settings.rollout.opponent,
    }
    return {role: model for role, model in run.record.get("models", {}).items() if not other.get(role)}


def _require_common(before: TrainerConfig, own: TaskOptions, settings: TrainerConfig, options: TaskOptions) -> None:
    """Refuse what the checkpoint cannot follow, and what would draw other random numbers."""
    fixed = {
        "the model": (before.model.model_id, settings.model.model_id),
        "the adapters": (before.lora, settings.lora),
        "the optimizer": (before.optimizer.optimizer, settings.optimizer.optimizer),
        "the task": (before.rollout.task, settings.rollout.task),
        "the task's options": (own, options),
        "the seed": (before.seed, settings.seed),
    }
    changed = [name for name, (was, now) in fixed.items() if was != now]
    require(
        not changed,
        f"a fork has {' and '.join(changed)} of its run: change what is learned from (--algorithm, --learning-rate, "
        "--kl-coef and the like), or begin a new run from the checkpoint with --model-id",
    )


def compare(run: RunFolder, saved: Path, task: str, output: Path) -> int:
    """Evaluate the run's checkpoint of the fork's last step, or its newest, and the fork's on the same examples; say
    by how much the fork is better.
    """
    same = run.checkpoints / step_name(step_of(saved))
    own = same if damage(same) is None else last_saved(run.checkpoints)
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
