"""The table of ``%accelerate status``, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from nbaccel.launch import quantities

_COLUMNS = ("rank", "pid", "device", "memory", "does", "since")


class StatusTable:
    """What each worker does; shown by a notebook as the value of the magic."""

    def __init__(self, title: str, workers: Sequence[Mapping[str, Any]]) -> None:
        """Take a look.

        Args:
            title: what the session runs on.
            workers: as :meth:`nbaccel.launch.session.Session.status` tells.
        """
        self.title = title
        self.workers = [dict(worker) for worker in workers]

    def rows(self) -> list[tuple[str, ...]]:
        """A text for each column, a row for each worker."""
        return [
            (
                str(worker["rank"]),
                str(worker["pid"]),
                str(worker["device"]),
                quantities.size(worker["memory"]),
                str(worker["doing"]),
                quantities.duration(worker["since"]),
            )
            for worker in self.workers
        ]

    def __repr__(self) -> str:
        table = [_COLUMNS, *self.rows()]
        widths = [max(len(row[place]) for row in table) for place in range(len(_COLUMNS))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in table
        ]
        return "\n".join([self.title, *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in self.rows()
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{html.escape(self.title)}</p>{table}"
