"""The settings of a trained run, which are the defaults of serving it."""

from collections.abc import Sequence
from dataclasses import replace

from minrl.evaluate.lineage import TrainedRun, find_runs
from minrl.tools.serve.config import ServeConfig, parse_serve
from minrl.types import Prompt


def as_trained(arguments: Sequence[str], config: ServeConfig) -> ServeConfig:
    """The config with what the served run was trained with, where the arguments say nothing else."""
    runs, _ = find_runs([config.checkpoint])
    return parse_serve(arguments, _trained_with(runs[0], config))[0] if runs else config


def prompt_of(checkpoint: str) -> Prompt | None:
    """A prompt of the task that the run was trained on; None if there is no run or no task."""
    runs, _ = find_runs([checkpoint])
    return runs[0].record.get("prompt") if runs else None


def _trained_with(run: TrainedRun, config: ServeConfig) -> ServeConfig:
    template = run.setting("chat_template_options", str, config.model.chat_template_options)
    return replace(
        config,
        max_tokens=run.setting("max_tokens", int, config.max_tokens),
        stop_strings=run.setting("stop_strings", tuple[str, ...], config.stop_strings),
        model=replace(config.model, chat_template_options=template),
    )
