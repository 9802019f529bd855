"""Attack a task's reward before anyone trains on it, from the command line.

    python -m minrl audit --task mine.py:name
    python -m minrl audit --task mine.py:accuracy --data-path rows.jsonl --gold-column answer

Texts that earn nothing by construction are paid by the task's reward, in the workers that a run has, and so are right
answers. Each family of attacks has a row: what was tried, what was paid most, and what to do. The exit status is 0
where no family found a fault, 1 where one did, 2 where the command was wrong. No model is loaded.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from minrl.tasks import load_task
from minrl.tasks.columns import ColumnOptions
from minrl.tools.audit.answers import Answers
from minrl.tools.audit.attack import audit
from minrl.tools.audit.config import AuditConfig
from minrl.tools.audit.families import FAMILIES
from minrl.tools.audit.findings import Finding
from minrl.types import require
from minrl.utils.cli import Command
from minrl.utils.files import write_text
from minrl.utils.task_names import task_key
from minrl.utils.text import json_text, one_line, printable

FAULTY = 1
"""Exit status where a fault was found."""

SHOWN, KEPT = 30, 2000
"""Characters of a text in the table, and in the JSON file."""

WIDTH = 100
"""Columns of the table at most."""


def main(command: Command[AuditConfig]) -> int:
    """Audit the reward, print the table, and write the findings."""
    config, options = command.config, command.options
    key = task_key(config.reward.task)
    if isinstance(options.get(key), ColumnOptions):  # nothing is trained here: all rows may be attacked
        options = {**options, key: replace(options[key], held_out_share=1.0)}  # type: ignore[type-var]
    task = load_task(config.reward.task, options, config.reward.data_path)
    require(
        not (config.gold_column and task.episode), "--gold-column: a task of several turns has no single right text"
    )
    for note in task.notes():  # before the workers start: they have the walls that it finds
        sys.stderr.write(f"{config.reward.task}: {note}\n")
    findings, answers = audit(task, config)
    sys.stdout.write("\n".join([*table(findings), "", summary(key, findings, answers)]) + "\n")
    if config.output:
        Path(config.output).parent.mkdir(parents=True, exist_ok=True)
        write_text(Path(config.output), json_text(as_json(config, findings, answers), indent=1) + "\n")
    return FAULTY if any(one.verdict == "fault" for one in findings) else 0


def table(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each family, with a further one for what to do."""
    width = min(WIDTH, max(80, shutil.get_terminal_size((WIDTH, 24)).columns))
    yield f"{'family':<11} {'verdict':<9} {'tried':>5}  {'given':<{SHOWN}}  paid"
    for one in findings:
        head = f"{one.family:<11} {one.verdict.upper() if one.verdict == 'fault' else one.verdict:<9} "
        if one.verdict == "not tried":
            yield from textwrap.wrap(one.do, width, initial_indent=head, subsequent_indent=" " * len(head))
            continue
        line = f"{head}{one.tried:>5}  {shortened(one.given) if one.given or one.paid else '':<{SHOWN}}  "
        yield from textwrap.wrap(one_line(one.paid), width, initial_indent=line, subsequent_indent=" " * len(line)) or [
            line.rstrip()
        ]
        if one.verdict == "fault":
            do = f"{FAMILIES[one.family].tries}: {one.do}"
            yield from textwrap.wrap(do, width, initial_indent=" " * 12, subsequent_indent=" " * 12)


def shortened(text: str) -> str:
    """A text in quotes, in one line, with its end where it is long."""
    shown = one_line(text.replace("\n", "\\n")) if text.strip() else repr(text)[1:-1]
    return f'"{shown}"' if len(shown) <= SHOWN - 2 else f'"{shown[: SHOWN - 14]} ... {shown[-7:]}"'


def summary(key: str, findings: Sequence[Finding], answers: Answers) -> str:
    """The counts of the verdicts, and where the right answers are from."""
    counts = {name: sum(one.verdict == name for one in findings) for name in ("fault", "ok", "not tried")}
    source = f"right answers: {answers.source}" if answers.source else "no right answers"
    said = f"{counts['fault']} faults" if counts["fault"] != 1 else "1 fault"
    return printable(f"{key}: {said}, {counts['ok']} ok, {counts['not tried']} not tried; {source}")


def as_json(config: AuditConfig, findings: Sequence[Finding], answers: Answers) -> dict[str, object]:
    """The findings with the settings that they were made with."""
    return {
        "task": config.reward.task,
        "data_path": config.reward.data_path,
        "examples": config.examples,
        "seed": config.seed,
        "answers": answers.source,
        "faults": [one.family for one in findings if one.verdict == "fault"],
        "findings": [{**asdict(one), "given": one.given[:KEPT]} for one in findings],
    }
