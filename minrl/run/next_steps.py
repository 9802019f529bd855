"""What can be done with a finished run: commands that work as they are printed."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from minrl.run.model_names import AT_BEST
from minrl.run.run import Run
from minrl.utils.cli import near, tool, typed


def next_steps(run: Run, last: Path, best: Path | None = None, ended_by: str = "") -> Iterator[str]:
    """A line for each: its purpose, a colon, the command. What is done with a model is done with the best one."""
    folder, model = near(run.folder), near(last)  # the last may be the start model
    if last.parent == run.checkpoints:
        model = folder if best in (None, last) else f"{folder}{AT_BEST}"
    folder = shlex.quote(folder)
    yield f"curves: {shlex.quote(tool('tensorboard'))} --logdir {shlex.quote(near(run.folder.parent))}"
    yield f"report: {typed('report')} {folder}"
    if (run.folder / "rollouts").exists():  # not with --rollouts-every 0
        yield f"rollouts: {typed('rollouts')} {folder}"
    if run.config.rollout.task:
        chosen = shlex.join(["--checkpoint", model, "--task", run.config.rollout.task])
        yield f"evaluate: {typed('evaluate')} {chosen}"
    yield f"chat: {typed('serve')} {shlex.quote(model)} --chat"
    extended: dict[str, int | float] = {name: getattr(run.settings, name) for name in run.program.extends}
    name, value = next((name, value) for name, value in extended.items() if value)
    further = f"--{ended_by.replace('_', '-')} 0" if ended_by else f"--{name} {_plain(2 * value)}"
    yield f"continue: {run.resume_command} {further}"


def _plain(number: int | float) -> str:
    """A number in digits: an integer setting has no exponent."""
    return str(int(number)) if number == int(number) else str(number)
