"""The command `minrl PROGRAM ...`, which is also `python -m minrl PROGRAM ...`.

The command line is parsed once, before torch is imported: a mistake and --help are answered at once.
"""

import os
import sys

PACKAGES = ("torch", "transformers", "datasets", "numpy", "accelerate", "tensorboard", "rich", "yaml", "loguru")


def _refuse(reason: str) -> None:
    sys.stderr.write(f"error: {reason}\n")
    sys.exit(2)


folder = sys.path[0] or "."
for file in os.listdir(folder) if os.path.isdir(folder) and not sys.flags.safe_path else ():
    if file.endswith(".py") and file[:-3] in {*sys.stdlib_module_names, *PACKAGES}:
        _refuse(f"{os.path.join(folder, file)} hides the module {file[:-3]}, which MinRL imports: rename it")

import gc
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, NoReturn

if missing := [package for package in PACKAGES if find_spec(package) is None]:
    fix = "`pip install .`, or in a checkout `make setup` and `source .venv/bin/activate`"
    _refuse(f"{sys.executable} has no {', '.join(missing)}: {fix}")

try:
    import minrl
    from minrl.run.sizes import by_size
    from minrl.utils.cli import HELP, parse, run_main, unknown
    from minrl.utils.processor import require_one_process
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    sys.exit(130)


class Program(NamedTuple):
    """A program: the class of its settings, the module whose `main(command)` runs it, and what it does."""

    config: str
    module: str
    about: str
    loads: bool = True
    """Whether it imports torch, which takes seconds."""
    alone: bool = True
    """Whether it runs in one process."""


PROGRAMS = {
    "train": Program(
        "minrl.config.TrainerConfig", "minrl.trainer", "Make a language model better at a task.", alone=False
    ),
    "evaluate": Program(
        "minrl.evaluate.config.EvaluateConfig",
        "minrl.evaluate.run",
        "Evaluate models on tasks, or score existing completions.",
    ),
    "sft": Program(
        "minrl.sft.config.SftConfig",
        "minrl.sft.sft",
        "Fine-tune a language model on rows of prompt and response.",
        alone=False,
    ),
    "filter": Program(
        "minrl.sft.config.FilterConfig",
        "minrl.sft.filter",
        "Keep the rows of a file whose response is correct by a task's reward.",
        loads=False,
    ),
    "expert-iteration": Program(
        "minrl.sft.config.ExpertIterationConfig",
        "minrl.sft.expert_iteration",
        "Repeat: sample, keep the correct completions, fine-tune on them.",
        alone=False,
    ),
    "report": Program(
        "minrl.report.report.ReportConfig",
        "minrl.report.report",
        "Summarize runs side by side; without a name, list all runs.",
        loads=False,
    ),
    "rollouts": Program(
        "minrl.report.rollouts.RolloutsConfig",
        "minrl.report.rollouts",
        "Write the page that shows a run's rollouts.",
        loads=False,
    ),
    "serve": Program(
        "minrl.tools.serve.config.ServeConfig",
        "minrl.tools.serve.serve",
        "Serve a model through an OpenAI-compatible endpoint on localhost, or chat with it.",
    ),
    "audit": Program(
        "minrl.tools.audit.AuditConfig",
        "minrl.tools.audit",
        "Attack a task's reward before training on it.",
        loads=False,
    ),
    "sweep": Program(
        "minrl.tools.sweep.SweepConfig",
        "minrl.tools.sweep",
        "Train over a grid of settings, and report on all runs.",
        loads=False,
    ),
    "verify": Program(
        "minrl.tools.verify.config.VerifyConfig",
        "minrl.tools.verify.verify",
        "Repeat a step of a run and compare.",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run the program that is named first, in this process, and return its status; without a name, list them."""
    name = arguments[0] if arguments else "--help"
    if "--version" in arguments[:2]:
        sys.stdout.write(f"minrl {minrl.__version__}\n")
        raise SystemExit(0)
    if name in HELP:
        sys.stdout.write("minrl PROGRAM ... (--help after it: its flags)\n\n")
        for known, row in PROGRAMS.items():
            about = textwrap.fill(row.about, 80, initial_indent=f"  {known:<18}", subsequent_indent=" " * 20)
            sys.stdout.write(f"{about}\n")
        return 0
    if name not in PROGRAMS:
        raise unknown(f"program {name!r}", name, list(PROGRAMS))
    program = PROGRAMS[name]
    module, _, cls = program.config.rpartition(".")
    command = parse(getattr(import_module(module), cls), arguments[1:], by_size)
    if program.alone:
        require_one_process(f"minrl {name}")
    _load(program, command.config)
    return import_module(program.module).main(command)


def _load(program: Program, settings: object) -> None:
    """Import a program's module. What trains or samples shows its messages itself (`minrl.utils.console.Screen`)."""
    if program.loads:
        from loguru import logger

        with suppress(ValueError):  # it is gone already
            logger.remove(0)  # loguru's default handler: this process is MinRL's own
    if program.module in sys.modules:
        return
    first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    if program.loads and first and not getattr(settings, "quiet", False):
        sys.stderr.write("loading: 5 to 15 s\n")
    gc.disable()  # nearly all that imports make stays, and looking at it again and again takes a fifth of their time
    import_module(program.module)
    gc.freeze()
    gc.enable()


def console(*program: str) -> NoReturn:
    """The process of the command, or of one program."""
    run_main(main, [*program, *sys.argv[1:]])


if __name__ == "__main__":
    console()
