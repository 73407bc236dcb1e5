"""Completion of the magics' options and commands, for IPython's ``complete_command`` hook."""

from __future__ import annotations

from typing import Any

from nbaccel.launch.current import current_session
from nbaccel.magics.help import COMMANDS
from nbaccel.magics.options import OPTIONS, OptionError, find


def complete(shell: Any, event: Any) -> list[str]:
    """Words that may stand where the cursor is.

    Args:
        shell: IPython's.
        event: has the ``line``, its ``text_until_cursor`` and the ``symbol`` that is being written.
    """
    line = event.text_until_cursor.lstrip()
    words = line.split()
    if not line.endswith((" ", "\t")) and words:
        words.pop()
    return candidates(line.startswith("%%"), words[1:], list(shell.user_ns))


def candidates(is_cell: bool, before: list[str], names: list[str]) -> list[str]:
    """What may follow the words ``before``."""
    if is_cell:
        if before:
            try:
                option = find(before[-1])
            except OptionError:
                option = None
            if option is not None and option.parse is not None:
                return list(option.choices)
        return [name for each in OPTIONS for name in each.names]
    if not before:
        return list(COMMANDS)
    if before[0] == "push":
        return [name for name in names if not name.startswith("_")]
    if before[0] == "pull":
        return _names_of_workers()
    return []


def _names_of_workers() -> list[str]:
    from nbaccel.magics import hints

    return hints.names_of_workers() if current_session() is not None else []
