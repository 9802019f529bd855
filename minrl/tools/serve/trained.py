"""The settings of a trained run, which are the defaults of serving it."""

from typing import Any

from minrl.evaluate.lineage import TrainedRun, find_runs
from minrl.tools.serve.config import ServeConfig
from minrl.types import Prompt
from minrl.utils.cli import Command


def as_trained(command: Command[ServeConfig]) -> ServeConfig:
    """The config with what the served run was trained with, where the command says nothing else."""
    runs, _ = find_runs([command.config.checkpoint], command.config.runs_dir)
    return command.over(_trained_with(runs[0], command.config)).config if runs else command.config


def prompt_of(config: ServeConfig) -> Prompt | None:
    """A prompt of the task that the run was trained on; None if there is no run or no task."""
    runs, _ = find_runs([config.checkpoint], config.runs_dir)
    return runs[0].record.get("prompt") if runs else None


def _trained_with(run: TrainedRun, config: ServeConfig) -> dict[str, Any]:
    return {
        "max_tokens": run.setting("max_tokens", int, config.max_tokens),
        "stop_strings": run.setting("stop_strings", tuple[str, ...], config.stop_strings),
        "chat_template_options": run.setting("chat_template_options", str, config.model.chat_template_options),
    }
