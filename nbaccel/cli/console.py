"""How commands show things: tables and colours on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click


def is_terminal() -> bool:
    """Whether standard output is looked at."""
    return sys.stdout.isatty()


def heading(text: str) -> None:
    """The title of a section."""
    click.echo()
    click.secho(text, bold=True)


def table(rows: Iterable[Sequence[str]], *, indent: str = "  ") -> None:
    """Rows in columns. Nothing is cut in a pipe; on a terminal long cells are wrapped."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return
    if is_terminal():
        _rich_table(cells)
        return
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        click.echo(indent + "  ".join(map(str.ljust, row, widths)).rstrip())


def _rich_table(cells: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for column in range(len(cells[0])):
        grid.add_column(overflow="fold", style="cyan" if column == 0 else None, no_wrap=column == 0)
    for row in cells:
        grid.add_row(*(Text(cell) for cell in row))
    Console().print(grid)


def warn(texts: Iterable[str]) -> None:
    """One line each on standard error."""
    for text in texts:
        click.secho(f"nbaccel: {text}", err=True, fg="yellow")
