"""The form where widgets can't be shown: the settings as a table, and the code that sets them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from nbaccel.config import SETTINGS, Resolved
from nbaccel.widgets.form_draft import Reading

HOW_TO = 'nbaccel.configure(num_processes=2, mixed_precision="bf16")'
"""An example of the call that says something."""


def rows(settings: Resolved) -> list[tuple[str, str, str]]:
    """Name, value and origin of each setting."""
    return [(name, SETTINGS[name].shown(value.value), value.place) for name, value in settings.values.items()]


def plain(settings: Resolved, reading: Reading, code: Mapping[str, str], why: str = "") -> str:
    """The table as text.

    Args:
        settings: what holds.
        reading: what stands in the form.
        code: lines to copy, by what they are for.
        why: why there is no form, if there is none.
    """
    table = rows(settings)
    widths = [max(len(row[place]) for row in table) for place in (0, 1)]
    lines = [_head(reading)]
    lines += [
        f"  {name:{widths[0]}}  {value:{widths[1]}}  {origin}".rstrip() for name, value, origin in table
    ]
    lines += [f"{what}: {line}" for what, line in code.items()]
    lines.append(f"To change something, e.g.: {HOW_TO}")
    if why:
        lines.append(f"({why})")
    return "\n".join(lines)


def as_html(settings: Resolved, reading: Reading, code: Mapping[str, str], why: str = "") -> str:
    """The table for a page that can't run widgets: a saved notebook, a converted one."""
    head = _cells("th", ("setting", "value", "from"))
    body = "".join(_cells("td", row) for row in rows(settings))
    lines = "".join(
        f"<p>{html.escape(what)}: <code>{html.escape(line)}</code></p>" for what, line in code.items()
    )
    end = f"<p>To change something, e.g.: <code>{html.escape(HOW_TO)}</code></p>"
    end += f"<p>{html.escape(why)}</p>" if why else ""
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
    return f"<p>{html.escape(_head(reading))}</p>{table}{lines}{end}"


def _head(reading: Reading) -> str:
    if reading.problems:
        return f"nbaccel: {next(iter(reading.problems.values()))}"
    return f"nbaccel would run {reading.would_run}"


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"
