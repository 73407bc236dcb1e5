"""A picture of a run in plain text: one line, or a few. Pure functions."""

from __future__ import annotations

from nbaccel.launch import quantities
from nbaccel.launch.progress.model import FAILED, RUNNING, Picture
from nbaccel.widgets.panel_ranks import COLUMNS, text_rows, used_columns

_SHOWN_VALUES = 6

LEAST_LEFT, LEAST_LEFT_OF_EPOCH = 1.0, 5.0
"""Seconds left of a run, and of an epoch, that are worth telling: less is over before it is read."""


def plain(text: str) -> str:
    """``text`` without anything that would move a terminal's cursor or change its colours."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def how_far(picture: Picture) -> str:
    """``epoch 2/3, batch 120/1000, step 620, 34 batches/s, 12 s left``."""
    lead = picture.lead
    parts: list[str] = []
    if lead is not None:
        if lead.epoch is not None:
            parts.append(f"epoch {lead.epoch + 1}" + (f"/{picture.epochs}" if picture.epochs else ""))
        if lead.batch is not None:
            parts.append(f"batch {lead.batch}" + (f"/{lead.length}" if lead.length else ""))
        if lead.steps:
            parts.append(f"step {lead.steps}" + (f"/{picture.total_steps}" if picture.total_steps else ""))
        if lead.rate is not None:
            parts.append(quantities.pace(lead.rate, picture.unit))
    whole = bool(picture.epochs or picture.total_steps)
    if picture.left is not None and picture.left >= (LEAST_LEFT if whole else LEAST_LEFT_OF_EPOCH):
        parts.append(f"{quantities.duration(picture.left)} left" + ("" if whole else " of the epoch"))
    return ", ".join(parts)


def values(picture: Picture) -> str:
    """``loss 0.123, lr 0.001``: what was logged last."""
    shown = [f"{plain(c.name)} {quantities.number(c.last)}" for c in picture.curves[:_SHOWN_VALUES]]
    more = len(picture.curves) - len(shown) + picture.further_names
    return ", ".join([*shown, f"{more} more"] if more else shown)


def status(picture: Picture) -> str:
    """What became of it, or how long it has been running."""
    seconds = quantities.brief(picture.elapsed)
    if picture.state == RUNNING:
        return f"running for {seconds}"
    return f"{plain(picture.outcome)} after {seconds}"


def line(picture: Picture) -> str:
    """All that fits in a line; the first goes on with what isn't as for the others."""
    parts = [status(picture), how_far(picture), values(picture)]
    parts += [
        f"rank {row.rank} {plain(row.doing)}"
        + (f" for {quantities.duration(row.since)}" if row.since is not None and row.since >= 1 else "")
        for row in picture.rows
        if row.doing.startswith("waits in") or (row.state == FAILED and picture.state != FAILED)
    ][:2]
    return "; ".join(part for part in parts if part)


def block(picture: Picture) -> str:
    """The whole picture, without its curves."""
    head = f"{plain(picture.title)}: {status(picture)}"
    lines = [head, how_far(picture), values(picture)]
    rows = text_rows(picture)
    used = used_columns(rows)
    table = [COLUMNS, *(tuple(map(plain, row.texts)) for row in rows)]
    widths = {place: max(len(row[place]) for row in table) for place in used}
    lines += ["  ".join(row[place].ljust(widths[place]) for place in used).rstrip() for row in table]
    return "\n".join(text for text in lines if text)
