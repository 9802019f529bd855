"""What can be done with a finished run: commands that work as they are printed."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from minrl.model.messages import text_of
from minrl.run.run import Run
from minrl.system.files import read_record
from minrl.terminal.commands import as_typed, tool
from minrl.types import Prompt

BOARD = "http://localhost:6006/#custom_scalars"
"""Where TensorBoard has the page of a run; it opens elsewhere."""

CAUSAL = "AutoModelForCausalLM"
"""Loads a checkpoint of a model of text, and adapters."""

LONGEST_SHOWN = 60
"""Characters of a prompt that is shown as an example."""


def next_steps(
    run: Run, last: Path, prompt: Prompt | None, best: Path | None = None, ended_by: str = ""
) -> Iterator[str]:
    """A line for each: its purpose, a colon, the command. `prompt` is one of the task's, if there is a task. What is
    done with a model is done with the best one.
    """
    checkpoint = best or last
    folder = shlex.quote(str(run.folder))
    yield f"curves, at {BOARD}: {shlex.quote(tool('tensorboard'))} --logdir {shlex.quote(run.config.logging.runs_dir)}"
    yield f"report: {as_typed('python -m minrl.report')} {folder}"
    if (run.folder / "rollouts").exists():  # not with --rollouts-every 0
        yield f"rollouts: {as_typed('python -m minrl.viewer')} {folder}"
    if run.config.rollout.task:
        named = str(last) if best is None or best.name == last.name else f"{run.folder}@best"
        chosen = shlex.join(["--checkpoint", named, "--task", run.config.rollout.task])
        yield f"evaluate: {as_typed('python evaluate.py')} {chosen}"
    loader = _loader(checkpoint)
    if loader == CAUSAL:  # transformers' pipeline for a chat takes no other
        yield _chat(checkpoint, prompt, run.config.rollout.max_tokens)
    extended: dict[str, int | float] = {name: getattr(run.settings, name) for name in run.program.extends}
    name, value = next((name, value) for name, value in extended.items() if value)
    further = f"--{ended_by.replace('_', '-')} 0" if ended_by else f"--{name} {_plain(2 * value)}"
    yield f"continue: {run.resume_command} {further}"
    model = f"{loader}.from_pretrained({json.dumps(str(checkpoint))})"
    yield f"load, in Python: from transformers import {loader}; model = {model}"


def _loader(checkpoint: Path) -> str:
    """The class of transformers that loads the checkpoint: a multimodal model has its own."""
    config = checkpoint / "config.json"  # adapters alone have none
    architectures = read_record(config).get("architectures") if config.exists() else None
    own = str(architectures[0]) if architectures else ""
    return own if own.endswith("ForConditionalGeneration") else CAUSAL


def _plain(number: int | float) -> str:
    """A number in digits: an integer setting has no exponent."""
    return str(int(number)) if number == int(number) else str(number)


def _chat(checkpoint: Path, prompt: Prompt | None, max_tokens: int) -> str:
    """A command that answers each line as the task's prompts are answered. transformers' own `chat` needs a server."""
    plain = isinstance(prompt, str)
    asked = "line.strip()" if plain else '[{"role": "user", "content": line.strip()}]'
    example = prompt if isinstance(prompt, str) else text_of(prompt[-1]) if prompt else ""
    such = f", such as {example!r}" if 0 < len(example) <= LONGEST_SHOWN else ""
    program = (
        "import sys; from transformers import logging, pipeline; logging.set_verbosity_error(); "
        f'model = pipeline("text-generation", {json.dumps(str(checkpoint))}, max_new_tokens={max_tokens}); '
        f'[print(model({asked}, return_full_text=False)[0]["generated_text"], flush=True) for line in sys.stdin]'
    )
    return f"chat (type a prompt and Enter{such}): {shlex.quote(tool('python'))} -c {shlex.quote(program)}"
