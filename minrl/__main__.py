"""The command `minrl PROGRAM ...`, which is also `python -m minrl PROGRAM ...`.

The command line is parsed once, before torch is imported: a mistake and --help are answered at once.
"""

import gc
import os
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

PACKAGES = ("torch", "transformers", "datasets", "numpy", "accelerate", "tensorboard", "rich", "yaml", "loguru")
if missing := [package for package in PACKAGES if find_spec(package) is None]:
    fix = "`pip install .`, or in a checkout `make setup` and `source .venv/bin/activate`"
    sys.stderr.write(f"error: {sys.executable} has no {', '.join(missing)}: {fix}\n")
    sys.exit(2)

import minrl
from minrl.run.sizes import by_size
from minrl.utils.cli import HELP, parse, run_main, unknown
from minrl.utils.processor import require_one_process

PROGRAMS = {
    "train": ("minrl.config:TrainerConfig", "minrl.trainer", "Make a language model better at a task."),
    "evaluate": (
        "minrl.evaluate.config:EvaluateConfig",
        "minrl.evaluate.run",
        "Evaluate models on tasks, or score existing completions.",
    ),
    "sft": (
        "minrl.sft.config:SftConfig",
        "minrl.sft.sft",
        "Fine-tune a language model on rows of prompt and response.",
    ),
    "filter": (
        "minrl.sft.config:FilterConfig",
        "minrl.sft.filter",
        "Keep the rows of a file whose response is correct by a task's reward.",
    ),
    "expert-iteration": (
        "minrl.sft.config:ExpertIterationConfig",
        "minrl.sft.expert_iteration",
        "Repeat: sample, keep the correct completions, fine-tune on them.",
    ),
    "report": (
        "minrl.report.report:ReportConfig",
        "minrl.report.report",
        "Summarize runs side by side; without a name, list all runs.",
    ),
    "rollouts": (
        "minrl.report.rollouts:RolloutsConfig",
        "minrl.report.rollouts",
        "Write the page that shows a run's rollouts.",
    ),
    "serve": (
        "minrl.tools.config:ServeConfig",
        "minrl.tools.serve",
        "Serve a model through an OpenAI-compatible endpoint on localhost, or chat with it.",
    ),
    "audit": ("minrl.tools.audit:AuditConfig", "minrl.tools.audit", "Attack a task's reward before training on it."),
    "sweep": (
        "minrl.tools.sweep:SweepConfig",
        "minrl.tools.sweep",
        "Train over a grid of settings, and report on all runs.",
    ),
    "verify": (
        "minrl.tools.config:VerifyConfig",
        "minrl.tools.verify",
        "Repeat a step of a run and compare.",
    ),
}
"""Of each program the class of its settings, the module whose `main(command)` runs it, and what it does."""
LOADS_TORCH = {"train", "evaluate", "sft", "expert-iteration", "serve", "verify"}
"""Programs that import torch, which takes seconds."""
SEVERAL_PROCESSES = {"train", "sft", "expert-iteration"}


def main(arguments: Sequence[str]) -> int:
    """Run the program that is named first, in this process, and return its status; without a name, list them."""
    name = arguments[0] if arguments else "--help"
    if "--version" in arguments[:2]:
        sys.stdout.write(f"minrl {minrl.__version__}\n")
        raise SystemExit(0)
    if name in HELP:
        sys.stdout.write("minrl PROGRAM ... (--help after it: its flags)\n\n")
        for known, (_, _, text) in PROGRAMS.items():
            about = textwrap.fill(text, 80, initial_indent=f"  {known:<18}", subsequent_indent=" " * 20)
            sys.stdout.write(f"{about}\n")
        return 0
    if name not in PROGRAMS:
        raise unknown(f"program {name!r}", name, list(PROGRAMS))
    config, module, _ = PROGRAMS[name]
    source, _, cls = config.partition(":")
    command = parse(getattr(import_module(source), cls), arguments[1:], by_size)
    if name not in SEVERAL_PROCESSES:
        require_one_process(f"minrl {name}")
    _load(module, name in LOADS_TORCH, command.config)
    return import_module(module).main(command)


def _load(module: str, torch: bool, settings: object) -> None:
    """Import a program's module. What trains or samples shows its messages itself (`minrl.utils.console.Screen`)."""
    if torch:
        from loguru import logger

        with suppress(ValueError):  # it is gone already
            logger.remove(0)  # loguru's default handler: this process is MinRL's own
    if module in sys.modules:
        return
    first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    if torch and first and not getattr(settings, "quiet", False):
        sys.stderr.write("loading: 5 to 15 s\n")
    gc.disable()  # nearly all that imports make stays, and looking at it again and again takes a fifth of their time
    import_module(module)
    gc.freeze()
    gc.enable()


def console(*program: str) -> NoReturn:
    """The process of the command, or of one program."""
    run_main(main, [*program, *sys.argv[1:]])


if __name__ == "__main__":
    console()
