"""A cell on a worker: a call like any other, whose function runs the cell's text in a shell.

::

    CellTask, Sent ──▶ bind names ──▶ shell ──▶ CellReport (what was bound, plain values)

The report of a cell that failed is fetched by :func:`report_state` after it. Must not catch what a cell
raises: failures are the worker's to report.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from nbaccel.launch.cells import results
from nbaccel.launch.cells.results import CellReport, Watch
from nbaccel.launch.shipping import store
from nbaccel.launch.shipping.shipping import Sent
from nbaccel.launch.worker import display, standing_functions


@dataclass(frozen=True)
class CellTask:
    """A cell as its workers get it."""

    source: str
    """Python, after IPython's transformations."""
    raw: str
    """As the user wrote it, without the line of the magic."""
    filename: str
    text: str
    """The whole cell, for tracebacks."""
    offset: int
    """Lines of the cell in front of ``source``."""
    count: int
    """Number of the cell."""
    ranks: frozenset[int]
    """Who runs it; the others only take the names."""
    main_rank: int
    """Whose last expression is shown, and whose plain data goes home."""
    named: frozenset[str]
    """Names that the cell's code mentions."""
    wanted: tuple[str, ...] = ()
    """Names that go home whatever they are."""
    limit: int = 1 << 20
    """Bytes up to which plain data goes home by itself."""


@dataclass
class _Pending:
    """What is needed to report on a cell."""

    watch: Watch
    task: CellTask


_pending: _Pending | None = None
_displaced: frozenset[str] = frozenset()
"""Names that held something prepared until values for them arrived; not reported yet."""


def run_cell(task: CellTask | None, sent: Sent | None) -> CellReport:
    """Take the names that were sent, run the cell, report.

    Args:
        task: None only takes the names.
        sent: None when nothing has to be sent.

    Raises:
        BaseException: what the cell raised.
    """
    global _pending, _displaced
    namespace = vars(sys.modules["__main__"])
    rank = int(os.environ["RANK"])
    _pending = None
    if sent is not None:
        store.receive(sent.number, sent.objects, sent.forgotten)
        arriving = {name: value for name, value in sent.names.items() if rank in sent.ranks[name]}
        _displaced = standing_functions.prepared_names(namespace, arriving)
        namespace.update(arriving)
        # Our caller keeps `sent` while the cell runs, which may want to free something of it.
        arriving.clear()
        sent.names.clear()
        sent.objects.clear()
    if task is None or rank not in task.ranks:
        return report_state()
    from nbaccel.launch.worker import cell_shell

    outlet = display.current_outlet()
    assert outlet is not None
    shell = cell_shell.shell_of(outlet)
    cell_shell.remember_source(task.filename, task.text)
    is_main = rank == task.main_rank
    _pending = _Pending(Watch(namespace, task.named, task.limit), task)
    shell.run_source(
        task.source, task.raw, task.filename, count=task.count, offset=task.offset, shows=is_main
    )
    return report_state()


def report_state() -> CellReport:
    """What the last cell did, if that wasn't reported yet, and how far shipments have come."""
    global _pending, _displaced
    namespace = vars(sys.modules["__main__"])
    received = store.received()
    # What the cell has prepared anew by now needs no mention.
    displaced = _displaced - standing_functions.prepared_names(namespace, _displaced)
    _displaced = frozenset()
    pending, _pending = _pending, None
    if pending is None:
        return CellReport(received=received, displaced=displaced)
    fields = results.report(
        pending.watch,
        namespace,
        sends=int(os.environ["RANK"]) == pending.task.main_rank,
        wanted=pending.task.wanted,
        limit=pending.task.limit,
    )
    return CellReport(received=received, displaced=displaced, **fields)


def pin(keys: Collection[int]) -> frozenset[int]:
    """Keep objects that the next shipment refers to; returns the keys of those that are gone."""
    return store.pin(keys)


def reload_modules(names: Collection[str]) -> tuple[str, ...]:
    """Reload modules that were imported here; returns the names of those that were.

    Raises:
        Exception: what a module raises.
    """
    importlib.invalidate_caches()
    known = tuple(name for name in names if name in sys.modules)
    for name in known:
        importlib.reload(sys.modules[name])
    return known


def get_values(names: Collection[str]) -> dict[str, Any]:
    """Values of names, without what ``prepare`` put around them.

    Raises:
        NameError: one isn't defined here.
    """
    return {name: standing_functions.get_name(name) for name in names}
