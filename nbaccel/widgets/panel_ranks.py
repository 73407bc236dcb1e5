"""The ranks of a picture as rows of texts: a row each, or where they are many, a row for those alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nbaccel.launch import quantities
from nbaccel.launch.failures import describe_ranks
from nbaccel.launch.progress.model import Picture, RankRow

MOST_ROWS = 8
"""Ranks that get a row each."""

COLUMNS = ("rank", "does", "epoch", "batch", "step", "memory", "cores", "device memory", "device load")
DOES = COLUMNS.index("does")


@dataclass(frozen=True)
class TextRow:
    """A row of the table; texts of the user's are in it as they are."""

    state: str
    texts: tuple[str, ...]
    """In the order of :data:`COLUMNS`; empty where nothing is known."""


def text_rows(picture: Picture) -> list[TextRow]:
    """The table's rows."""
    rows = picture.rows
    if len(rows) <= MOST_ROWS:
        return [_row([row]) for row in rows]
    alike: dict[tuple[str, str], list[RankRow]] = {}
    for row in rows:
        alike.setdefault((row.state, row.doing), []).append(row)
    return [_row(group) for group in alike.values()]


def used_columns(rows: Sequence[TextRow]) -> list[int]:
    """Places of the columns in which anything stands."""
    return [place for place in range(len(COLUMNS)) if any(row.texts[place] for row in rows)]


def _row(rows: Sequence[RankRow]) -> TextRow:
    ranks = describe_ranks(row.rank for row in rows).split(" ", 1)[1]
    return TextRow(
        rows[0].state,
        (
            ranks,
            _does(rows),
            _span((None if row.epoch is None else row.epoch + 1 for row in rows), str),
            _batch(rows),
            _span((row.steps or None for row in rows), str),
            _span((row.memory for row in rows), quantities.size),
            _span((row.load for row in rows), lambda load: f"{load:.1f}"),
            _device_memory(rows),
            _span((row.device_load for row in rows), lambda load: f"{100 * load:.0f} %"),
        ),
    )


def _does(rows: Sequence[RankRow]) -> str:
    since = [row.since for row in rows if row.since is not None]
    told = f", {_span(since, quantities.duration)}" if since and max(since) >= 1 else ""
    return rows[0].doing + told


def _batch(rows: Sequence[RankRow]) -> str:
    batches = _span((row.batch for row in rows), str)
    lengths = {row.length for row in rows}
    return f"{batches}/{lengths.pop()}" if batches and len(lengths) == 1 and None not in lengths else batches


def _device_memory(rows: Sequence[RankRow]) -> str:
    used = [row.device_memory for row in rows if row.device_memory is not None]
    if not used:
        return ""
    most = max(total for _, total in used)
    return f"{_span((now for now, _ in used), quantities.size)} of {quantities.size(most)}"


def _span(values: Iterable[Any], text: Callable[[Any], str]) -> str:
    """``12`` or ``12 to 15``; empty when nothing is known."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = text(min(known)), text(max(known))
    return low if low == high else f"{low} to {high}"
