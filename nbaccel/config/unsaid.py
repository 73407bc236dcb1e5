"""Defaults of arguments that can be told from the same value written by the caller.

``def launch(num_nodes: int = UnsaidInt(1))`` behaves and prints as ``1``, and still a configured value
may take its place: the caller has said nothing. An explicit ``num_nodes=1`` is an ordinary int, and wins.
"""

from __future__ import annotations


class UnsaidInt(int):
    """A default number that nobody asked for."""

    __slots__ = ()


class UnsaidText(str):
    """A default text that nobody asked for."""

    __slots__ = ()


def said(value: object) -> object | None:
    """``value`` if the caller wrote it, else None."""
    return None if isinstance(value, (UnsaidInt, UnsaidText)) else value
