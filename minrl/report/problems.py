"""The held-out problems of a run, from the files of its evaluations before the first step and after the last one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minrl.models.chat import question_of
from minrl.report.runs import RunCurves
from minrl.utils.files import read_packed
from minrl.utils.text import printable

MOST, LONGEST = 20, 100
"""Problems of a run in the table of changed verdicts, and characters of each."""

CATEGORIES = ("run", "task", "category", "problems", "pass@1 before", "after")
CHANGED = ("run", "task", "problem", "greedy before", "after")

Line = Mapping[str, Any]
Rows = list[list[str]]


def problems(runs: Sequence[RunCurves]) -> tuple[Rows, Rows, list[str]]:
    """Cells of `CATEGORIES` and of `CHANGED`, and a sentence on each run that was evaluated before and after."""
    categories, changed, remarks = Rows(), Rows(), list[str]()
    for run in runs:
        before, after = ends(run)
        categories += [[run.name, *row] for row in by_category(before, after)]
        found = changes(before, after)
        changed += [[run.name, *row] for row in found[:MOST]]
        if before and after:
            right = sum(verdict == "right" for *_, verdict in found)
            more = f"; {MOST} of them are below" if len(found) > MOST else ""
            said = f"{right} problems became right, {len(found) - right} became wrong"
            remarks.append(f"{run.name}, greedy: {said}{more}")
    return categories, changed, remarks


def ends(run: RunCurves) -> tuple[list[Line], list[Line]]:
    """The lines of the evaluations before the first step and after the last; none where it was not made."""
    steps = list(run.evaluations)
    before = read_packed(run.evaluations[0]) if 0 in steps else []
    return before, read_packed(run.evaluations[steps[-1]]) if steps and steps[-1] else []


def by_category(before: Sequence[Line], after: Sequence[Line]) -> Iterator[list[str]]:
    """The number of problems of each task and category, and the share of sampled completions that are right."""
    tables: list[dict[tuple[str, str], list[Line]]] = [{}, {}]
    for table, lines in zip(tables, (before, after), strict=True):
        for line in lines:
            for name, value in line["category"].items() if line["mode"] == "sampled" else ():
                table.setdefault((line["task"], f"{name}={value}"), []).append(line)
    for key in sorted({*tables[0], *tables[1]}):
        found = [table.get(key, []) for table in tables]
        shares = [f"{sum(bool(one['solved']) for one in own) / len(own):.1%}" if own else "-" for own in found]
        yield [*key, str(len({one["example_id"] for own in found for one in own})), *shares]


def changes(before: Sequence[Line], after: Sequence[Line]) -> Rows:
    """Task and question of each problem whose greedy completion has another verdict after, those that became wrong
    first.
    """
    was, now = (
        {(one["task"], one["example_id"], one["role"]): one for one in lines if one["mode"] == "greedy"}
        for lines in (before, after)
    )
    changed = [one for key, one in now.items() if key in was and bool(was[key]["solved"]) != bool(one["solved"])]
    verdicts = {False: ["right", "wrong"], True: ["wrong", "right"]}
    changed.sort(key=lambda one: bool(one["solved"]))
    asked = [printable(question_of(one["prompt"]))[:LONGEST] for one in changed]
    return [[one["task"], text, *verdicts[bool(one["solved"])]] for one, text in zip(changed, asked, strict=True)]
