"""The summary on a terminal: coloured where there is one, plain text where there is none."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from cadenza.analysis.summary import Summary
from cadenza.report.machine import MACHINE
from cadenza.report.table import INTERVALS, footnotes, lay_out, nothing_measured, title

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Columns of text that is piped or kept; enough for the widest row.
_PLAIN_WIDTH = 110
_COLOURS = {"VALID": "green", "SUSPECT": "yellow", "CLIENT-LIMITED": "red", "INVALID": "bold red"}


def show(summary: Summary, stream: TextIO | None = None) -> None:
    """Print `summary` on `stream` (stdout). Text that came from the server is neither markup nor escapes by then."""
    from rich.console import Console
    from rich.text import Text

    out = stream if stream is not None else sys.stdout
    plain = not out.isatty()
    console = Console(file=out, highlight=False, markup=False, emoji=False, width=_PLAIN_WIDTH if plain else None)
    console.print(Text(title(summary), style="bold yellow" if summary.simulated else "bold"))
    if (sentence := nothing_measured(summary)) is not None:
        console.print(Text(sentence))
    for section in lay_out(summary):
        console.print()
        console.print(Text(section.title, style="bold"))
        _print_whole(console, _table(section.header, section.rows))
        for remark in section.remarks:
            console.print(Text(f"  {remark}"))
        if section.intervals:
            console.print()
            console.print(Text(f"{section.title}: {INTERVALS}", style="dim"))
            _print_whole(console, _table(section.interval_header, section.intervals))
        if section.machine is not None:
            console.print()
            console.print(Text(f"{section.title}: {MACHINE}", style="dim"))
            if section.machine.rows:
                _print_whole(console, _table(section.machine.header, section.machine.rows))
            for remark in section.machine.remarks:
                console.print(Text(f"  {remark}"))
    notes = footnotes(summary)
    if notes:
        console.print()
    for note in notes:
        console.print(Text(note, style="dim"))


def _table(header: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False)
    for above, name in header:
        table.add_column(f"{above}\n{name}", justify="left" if name == "verdict" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    return table


def _print_whole(console: "Console", table: "Table") -> None:
    """A line that is too long wraps; rich would cut digits off the numbers instead."""
    from rich.measure import Measurement

    width = console.width
    needed = Measurement.get(console, console.options.update(max_width=10 * _PLAIN_WIDTH), table).maximum
    console.width = max(width, needed)
    console.print(table, soft_wrap=False, crop=False)
    console.width = width
