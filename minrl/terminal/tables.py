"""Tables on a terminal, for results that a pipe gets as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.text import Text

from minrl.system.foreign_text import one_line, printable

NAME_WIDTH, HEAD_WIDTH, UNLIMITED = 12, 8, 10_000
"""Characters: the least for a name, those of a heading that is not broken, and more than any table has."""

LEAST_WIDTH = 80
"""Columns that a table may have. A narrower terminal breaks its lines: figures stay whole."""


@dataclass(frozen=True)
class Table:
    """Texts by line and column, the first column aligned to the left. `notes` stand below."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def print_tables(tables: Iterable[Table], elsewhere: str, console: Console | None = None) -> None:
    """Write tables to the console (None: standard output), as wide as the terminal but at least `LEAST_WIDTH`. Long
    names are broken; a table that is too wide all the same is left out, and `elsewhere` says where it is.
    """
    console = console or Console()
    width = max(LEAST_WIDTH, console.width)
    for table in tables:
        drawn = _drawn(table)
        least = Measurement.get(console, console.options.update(max_width=UNLIMITED), drawn).minimum
        if least > width:
            console.print(Text(f"\n{printable(table.title)}: too wide for this terminal, see {elsewhere}"))
            continue
        console.print(Text(f"\n{printable(table.title)}", style="bold"))
        console.print(Segments(console.render(drawn, console.options.update(width=width))), crop=False)
        for note in table.notes:
            console.print(Text(printable(note)))


def _drawn(table: Table) -> rich_table.Table:
    """The table. Only the first column gets narrower where there is no room: figures stay whole."""
    drawn = rich_table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    first, *others = map(one_line, table.columns)
    lines = [[one_line(cell) for cell in line] for line in table.lines]
    drawn.add_column(Text(first), overflow="fold", min_width=NAME_WIDTH)
    for place, column in enumerate(others, 1):
        width = max(HEAD_WIDTH, *(len(line[place]) for line in lines))
        drawn.add_column(Text("\n".join(wrap(column, width))), justify="right", no_wrap=True)
    for line in lines:
        drawn.add_row(*map(Text, line))
    return drawn
