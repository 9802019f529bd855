"""Writes docs/configuration.md: every flag with its default and meaning, from the config dataclasses.

    python docs/configuration.py

`tests/test_documents.py` compares the page with the dataclasses.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from minrl.config import TrainerConfig, algorithm_names
from minrl.evaluate.config import EvaluateConfig
from minrl.report.report import ReportConfig
from minrl.report.rollouts import RolloutsConfig
from minrl.sft.config import ExpertIterationConfig, FilterConfig, SftConfig
from minrl.tasks import TASK_DEFINITIONS, TOOLS, option_classes
from minrl.tools.audit import AuditConfig
from minrl.tools.config import ServeConfig, VerifyConfig
from minrl.tools.sweep import SweepConfig
from minrl.utils.cli import meanings, sections
from minrl.utils.settings import Setting, settings_of

PAGE = Path(__file__).with_name("configuration.md")
PROGRAMS = {
    "python -m minrl train": TrainerConfig,
    "python -m minrl evaluate": EvaluateConfig,
    "python -m minrl sft": SftConfig,
    "python -m minrl expert-iteration": ExpertIterationConfig,
    "python -m minrl filter": FilterConfig,
    "python -m minrl audit": AuditConfig,
    "python -m minrl report": ReportConfig,
    "python -m minrl rollouts": RolloutsConfig,
    "python -m minrl sweep": SweepConfig,
    "python -m minrl serve": ServeConfig,
    "python -m minrl verify": VerifyConfig,
}
INTRODUCTION = """# Configuration

A run's settings are the fields of `TrainerConfig` in `minrl/config.py`: open the file and edit a default. A flag
(`--learning-rate 1e-4`), a YAML file (`--config FILE`, or a run's `config.json`) and Python
(`TrainerConfig(learning_rate=1e-4)`) set the same fields. The first that is given holds: a flag, `--config`, the
default in the file and, where that is None, the table of sizes in `minrl/run/sizes.py` ("by size" below). `--no-` turns
a switch off. This page is written by `python docs/configuration.py`.
"""


def page() -> str:
    """The whole page."""
    lines: list[str] = [INTRODUCTION]
    shown: dict[str, str] = {}
    for program, config in PROGRAMS.items():
        lines += [f"## {program}", "", *_of_config(config, shown)]
    lines += ["## Options of tasks", ""]
    for name, options in option_classes(TASK_DEFINITIONS).items():
        table = _table(options, settings_of(options), f"{name}.")
        lines += [f"**{name}**", "", *table] if table else []
    for name, options in option_classes(TOOLS).items():
        table = _table(options, settings_of(options), f"{name}.")
        lines += [f"**{name}**, with which any task can be played: `--task countdown+{name}`", "", *table]
    return "\n".join(lines).rstrip() + "\n"


def _of_config(config: type, shown: dict[str, str]) -> Iterator[str]:
    """The config's settings by section; those that an earlier program has alike are named alone."""
    found: dict[str, list[str]] = {}
    for name in settings_of(config):
        found.setdefault(sections(config)[name], []).append(name)
    same: list[str] = []
    for title, names in found.items():
        new = [name for name in names if _row(config, name) != shown.get(name)]
        same += [name for name in names if name not in new]
        if new and len(found) > 1:
            yield from (f"**{title}**", "")
        yield from _table(config, new)
        for name in new:
            shown.setdefault(name, _row(config, name))
    if same:
        yield from (f"As the programs above have them: {', '.join(f'`{_flag(name)}`' for name in same)}.", "")


def _flag(name: str) -> str:
    return f"--{name}".replace("_", "-")


def _row(config: type, name: str, prefix: str = "") -> str:
    one = settings_of(config)[name]
    choices = algorithm_names() if name == "algorithm" else _choices(one.hint)
    said = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
    meaning = (meanings(config)[name] + said).replace("|", "\\|")
    return f"| `{_flag(prefix + name)}` | {_default(one)} | {meaning} |"


def _table(config: type, names: Iterable[str], prefix: str = "") -> list[str]:
    rows = [_row(config, name, prefix) for name in names]
    return ["| flag | default | meaning |", "|---|---|---|", *rows, ""] if rows else []


def _choices(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _default(one: Setting) -> str:
    """As it is written on the command line; nothing where the default is empty, or there is none."""
    value = one.default
    if value is None:
        return "by size" if one.by_size else ""
    if value is dataclasses.MISSING or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page())
