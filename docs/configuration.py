"""Writes docs/configuration.md: every flag with its default and meaning, from the config dataclasses.

    python docs/configuration.py

`tests/test_documents.py` compares the page with the dataclasses.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from minrl.config import TrainerConfig
from minrl.evaluate.config import EvaluateConfig
from minrl.report.report import ReportConfig
from minrl.report.rollouts import RolloutsConfig
from minrl.sft.config import ExpertIterationConfig, FilterConfig, SftConfig
from minrl.tasks import TASK_DEFINITIONS, TOOLS
from minrl.tools.audit import AuditConfig
from minrl.tools.serve.config import ServeConfig
from minrl.tools.sweep import SweepConfig
from minrl.tools.verify.config import VerifyConfig
from minrl.utils.cli import first_paragraph, meanings
from minrl.utils.settings import ROWS

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

Every flag with its default. `--no-` turns a switch off. `--config FILE` reads settings from YAML or from a run's
`config.json`; flags go on top. This page is written by `python docs/configuration.py`.
"""


def page() -> str:
    """The whole page."""
    lines: list[str] = [INTRODUCTION]
    shown: dict[type, str] = {}
    for program, config in PROGRAMS.items():
        lines += [f"## {program}", "", *_of_config(program, config, shown)]
    lines += ["## Options of tasks", ""]
    for name, definition in TASK_DEFINITIONS.items():
        table = _table(definition.options, get_type_hints(definition.options), f"{name}.")
        lines += [f"**{name}**", "", *table] if table else []
    for name, tool in TOOLS.items():
        table = _table(tool.options, get_type_hints(tool.options), f"{name}.")
        lines += [f"**{name}**, with which any task can be played: `--task countdown+{name}`", "", *table]
    return "\n".join(lines).rstrip() + "\n"


def _of_config(program: str, config: type, shown: dict[type, str]) -> Iterator[str]:
    """The config's own settings, then each group; one that was shown before is referred to."""
    hints = get_type_hints(config)
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    yield from _table(config, hints.keys() - groups.keys())
    for name, group in groups.items():
        assert isinstance(group, type)
        if group in shown:
            yield from (f"**{name}**: as `{shown[group]}` has them{_other_defaults(config, name)}.", "")
            continue
        shown[group] = program
        yield from (f"**{name}**: {first_paragraph(group)}", "", *_table(group, get_type_hints(group)))


def _other_defaults(config: type, name: str) -> str:
    """The settings of a group that a program has other defaults for."""
    (field,) = (field for field in dataclasses.fields(config) if field.name == name)
    own = field.default
    given = [key for key in vars(own) if key in own.given]
    said = ", ".join(f"`--{key.replace('_', '-')} {getattr(own, key)}`".replace(" `", "`") for key in given)
    return f", by default with {said}" if said else ""


def _table(config: type, names: Iterable[str], prefix: str = "") -> list[str]:
    hints, rows = get_type_hints(config), []
    for field in dataclasses.fields(config):
        if field.name in names:
            flag = f"--{prefix}{field.name}".replace("_", "-")
            choices = field.metadata.get(ROWS) or _choices(hints[field.name])
            said = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
            meaning = (meanings(config)[field.name] + said).replace("|", "\\|")
            rows.append(f"| `{flag}` | {_default(field)} | {meaning} |")
    return ["| flag | default | meaning |", "|---|---|---|", *rows, ""] if rows else []


def _choices(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _default(field: dataclasses.Field[Any]) -> str:
    """As it is written on the command line; nothing where the default is empty, or there is none."""
    value = field.default
    if value is dataclasses.MISSING or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page())
