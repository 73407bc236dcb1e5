"""Cells on a session, seen from the kernel: what is sent before, what comes home after.

::

    text ──▶ names ──▶ shipping.plan ──▶ one task on all workers ──▶ reports ──▶ namespace, ledger

Also after a cell that failed or was interrupted the reports are fetched: what it did until then counts.
Must not touch IPython; the namespace is any dictionary.
"""

from __future__ import annotations

import ast
import contextlib
import pickle
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nbaccel.launch import notices
from nbaccel.launch.cells import cells
from nbaccel.launch.cells.cells import CellTask
from nbaccel.launch.cells.results import CellReport
from nbaccel.launch.failures import describe_ranks
from nbaccel.launch.payload import payload
from nbaccel.launch.progress.progress import mode_of
from nbaccel.launch.session import Session
from nbaccel.launch.shipping import names as shipping_names
from nbaccel.launch.shipping.modules import ModuleWatch
from nbaccel.launch.shipping.shipping import Plan, Shipping, is_shippable
from nbaccel.launch.worker import standing_functions

HOME_LIMIT = 1 << 20
"""Bytes up to which a plain value comes home by itself."""

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


@dataclass(frozen=True)
class CellText:
    """A cell, as the notebook has it."""

    source: str
    """Python, after IPython's transformations; without the line of the magic."""
    raw: str
    filename: str
    text: str
    """The whole cell."""
    offset: int
    count: int


class Runner:
    """Runs cells on one session for one namespace."""

    def __init__(self, session: Session, namespace: dict[str, Any], transform: Callable[[str], str]) -> None:
        """Prepare.

        Args:
            session: whose workers run the cells.
            namespace: the notebook's.
            transform: IPython's transformation of a cell's text.
        """
        self.session = session
        self._namespace = namespace
        self._transform = transform
        self._generation = -1
        self._shipping = Shipping(())
        self._modules = ModuleWatch()
        self._told: set[str] = set()
        self._taken: dict[str, Any] = {}
        """Functions and classes that came home from cells."""
        self._gone: frozenset[str] = frozenset()
        """Names that lived on workers which have ended."""
        self._unreported = False
        """The last cell failed, and what it did isn't known yet."""
        self._in_doubt: Plan | None = None
        self.limit = HOME_LIMIT

    # --- cells --------------------------------------------------------------------------------

    def run(
        self,
        cell: CellText,
        *,
        ranks: Collection[int] | None = None,
        output: str | None = None,
        timeout: float | None = None,
        out: Collection[str] = (),
        progress: bool | None = None,
    ) -> None:
        """Run a cell, and take home what it made.

        Args:
            cell: what to run.
            ranks: who runs it; None for all.
            output: whose lines are shown.
            timeout: seconds.
            out: names that come home whatever they are.
            progress: whether a live panel is shown; None: as configured.

        Raises:
            SyntaxError: it isn't Python.
            ValueError: a rank that isn't there.
            TypeError: a name that it uses can't be sent, or one of ``out`` can't come home.
            BaseException: what it raised.
        """
        tree = _parse(cell)
        mode = mode_of(progress)
        names = shipping_names.of_cell(tree, self._transform)
        self._come_alive()
        chosen = self._checked(ranks)
        plan = self._plan(names.uses)
        self._refuse(plan, names.uses)
        self._tell_of_changes(plan)
        task = CellTask(
            source=cell.source,
            raw=cell.raw,
            filename=cell.filename,
            text=cell.text,
            offset=cell.offset,
            count=cell.count,
            ranks=chosen,
            main_rank=min(chosen),
            named=frozenset(names.uses) | names.binds,
            wanted=tuple(out),
            limit=self.limit,
        )
        try:
            self._run_task(task, plan, output=output, timeout=timeout, progress=mode)
        except NameError as error:
            self._explain(error, plan, names.uses)
            raise
        if out:
            self._bring(out, min(chosen))

    def push(self, names: Iterable[str]) -> None:
        """Send names, also when the workers have bound them later.

        Raises:
            NameError: the notebook has no such name.
            TypeError: one can't be sent.
        """
        uses = {name: frozenset[str]() for name in names}
        missing = [name for name in uses if name not in self._namespace]
        if missing:
            raise NameError(f"name {missing[0]!r} is not defined in the notebook", name=missing[0])
        self._come_alive()
        plan = self._plan(uses, force=True)
        self._refuse(plan, uses)
        self._run_task(None, plan)

    def pull(self, names: Iterable[str]) -> None:
        """Bring names home: rank 0's values, on the CPU, unwrapped.

        Raises:
            NameError: the workers have no such name.
            TypeError: one can't be sent.
        """
        if not self.session.is_alive:
            raise RuntimeError("no workers run, so there is nothing to pull")
        self._come_alive()
        self._bring(names, 0)

    # --- the steps ----------------------------------------------------------------------------

    def _come_alive(self) -> None:
        """What is known of the workers. When none run, those that the next task starts know nothing."""
        generation = self.session.generation + (0 if self.session.is_alive else 1)
        if generation != self._generation:
            self._generation = generation
            self._gone |= frozenset(self.names_of_workers)
            self._shipping = Shipping(range(self.session.spec.num_processes))
            self._modules = ModuleWatch()
            self._told.clear()
            self._unreported = False
            self._in_doubt = None
        if self._unreported:
            self._fetch_reports()

    def _checked(self, ranks: Collection[int] | None) -> frozenset[int]:
        there = self._shipping.ranks
        chosen = there if ranks is None else frozenset(ranks)
        if not chosen <= there:
            missing = describe_ranks(chosen - there)
            raise ValueError(f"--ranks: there is no {missing}; the workers are {describe_ranks(there)}")
        return chosen

    def _plan(self, uses: Mapping[str, frozenset[str]], *, force: bool = False) -> Plan:
        reloaded = self._modules.reloaded()
        if reloaded:
            self._ask(cells.reload_modules, reloaded)
        plan = self._shipping.plan(uses, self._namespace, force=force)
        keys = plan.references()
        if keys:
            gone = frozenset().union(*self._ask(cells.pin, keys).values())
            if gone:
                self._shipping.lost(gone)
                plan = self._shipping.plan(uses, self._namespace, force=force)
        return plan

    def _refuse(self, plan: Plan, direct: Collection[str]) -> None:
        """What the cell itself names has to arrive; what only its functions use may not be needed."""
        for name, reason in plan.refused.items():
            if name in direct:
                raise TypeError(f"{name} can't be sent to the workers: {reason}")

    def _tell_of_changes(self, plan: Plan) -> None:
        changed = sorted(plan.passed_over)
        if changed:
            was, own = ("were", "those") if len(changed) > 1 else ("was", "the one")
            notices.warn(
                f"{', '.join(changed)} {was} changed in the notebook; the workers go on with {own} that they "
                f"have: %accelerate push {' '.join(changed)} sends the notebook's"
            )
            self._shipping.told_of(changed, self._namespace)

    def _run_task(
        self,
        task: CellTask | None,
        plan: Plan,
        *,
        output: str | None = None,
        timeout: float | None = None,
        progress: str = "off",
    ) -> None:
        with self._shipping.pack(plan, cells.run_cell, task) as call:
            self._unreported = True
            self._in_doubt = None if plan.is_empty else plan
            try:
                reports = self.session.run_packed(call, output=output, timeout=timeout, progress=progress)
            except BaseException:
                # A second interrupt, or a worker that has died: what is unknown is asked for later, or gone.
                with contextlib.suppress(Exception):
                    if self.session.is_alive:
                        self._fetch_reports()
                raise
        self._take(reports)

    def _fetch_reports(self) -> None:
        self._take(self._ask(cells.report_state))

    def _ask(self, function: Callable[..., Any], *args: Any) -> dict[int, Any]:
        """A question to all workers, by the same way as any task."""
        with payload.dump_call((function, args, {})) as call:
            return self.session.run_packed(call, output="none")

    def _bring(self, names: Iterable[str], rank: int) -> None:
        wanted = tuple(names)
        with payload.dump_call((cells.get_values, (wanted,), {})) as call:
            values = self.session.run_packed(call, ranks=[rank], output="none")[rank]
        self._namespace.update(values)
        for name in wanted:
            holders = self._shipping.holders(name) | {rank}
            self._shipping.bound_by_workers(name, holders, self._namespace)

    # --- reports ------------------------------------------------------------------------------

    def _take(self, reports: Mapping[int, CellReport | None]) -> None:
        """Bring home what came, and remember who has what now."""
        # A cell that ended with sys.exit() has returned nothing: ask for its report.
        if any(report is None for report in reports.values()):
            reports = self._ask(cells.report_state)
        told = {rank: report for rank, report in reports.items() if report is not None}
        self._unreported = False
        plan, self._in_doubt = self._in_doubt, None
        if plan is not None and all(report.received == plan.number for report in told.values()):
            self._shipping.arrived(plan)
        for report in told.values():
            self._bind(report)
        bound: dict[str, set[int]] = {}
        needs: dict[str, frozenset[str]] = {}
        for rank, report in told.items():
            for name, names in report.bound.items():
                bound.setdefault(name, set()).add(rank)
                needs[name] = needs.get(name, frozenset()) | names
            for name in report.unbound:
                self._shipping.unbound_by_workers(name, [rank])
        for name, ranks in bound.items():
            self._shipping.bound_by_workers(name, ranks, self._namespace, needs[name])
        self._tell({name: kind for report in told.values() for name, kind in report.stays.items()})
        if displaced := frozenset[str]().union(*(report.displaced for report in told.values())):
            notices.warn(standing_functions.describe_displaced(displaced))

    def _bind(self, report: CellReport) -> None:
        self._namespace.update(report.home)
        for name, (module_name, qualname) in report.imported.items():
            found: Any = sys.modules.get(module_name)
            for part in qualname.split(".") if qualname else ():
                found = getattr(found, part, None)
            if found is not None:
                self._namespace[name] = found
        for name, packed in report.code.items():
            self._take_code(name, packed)

    def _take_code(self, name: str, packed: bytes) -> None:
        """A function or class of a cell, unless the notebook has one of its own."""
        if name in self._namespace and self._namespace[name] is not self._taken.get(name):
            return
        try:
            self._namespace[name] = self._taken[name] = pickle.loads(packed)
        except Exception:  # noqa: BLE001  # it needs something that only the workers have: it stays there
            return

    def _tell(self, stays: Mapping[str, str]) -> None:
        new = [name for name in sorted(stays) if name not in self._told and not name.startswith("_")]
        if new:
            self._told.update(new)
            notices.announce(f"on the workers: {', '.join(new)} (pull with %accelerate pull NAME)")

    def _explain(self, error: NameError, plan: Plan, uses: Collection[str]) -> None:
        """Why a worker lacks a name that the notebook has."""
        match = _UNDEFINED.search(str(error))
        if match is None:
            return
        name = match[1]
        if name in plan.refused:
            error.add_note(
                f"The notebook has {name}, but it can't be sent to the workers: {plan.refused[name]}"
            )
        elif name in self._namespace and is_shippable(name):
            why = (
                "the cell had bound it itself, or deleted it"
                if name in uses or name in plan.roots
                else "neither the cell nor a function that it uses names it (names in texts aren't seen)"
            )
            error.add_note(
                f"The notebook has {name}. It wasn't sent, because {why}: %accelerate push {name} sends it"
            )
        elif name in self._gone:
            error.add_note(f"{name} lived on workers that have ended: run the cell again that makes it")
        elif holders := self._shipping.holders(name) - {getattr(error, "rank", None)}:
            error.add_note(f"{describe_ranks(holders)} has {name}: it was bound by a cell with --ranks")

    def inherit(self, other: Runner) -> None:
        """Know what lived on the workers of another one, which have ended."""
        self._gone = other._gone | frozenset(other.names_of_workers)

    @property
    def names_of_workers(self) -> list[str]:
        """Names that live on the workers."""
        return self._shipping.names_of_workers()


def _parse(cell: CellText) -> ast.Module:
    """The cell's tree.

    Raises:
        SyntaxError: with the cell's own file name and line.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = compile(cell.source, cell.filename, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        compile(tree, cell.filename, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        if error.lineno is not None:
            error.lineno += cell.offset
        if error.end_lineno is not None:
            error.end_lineno += cell.offset
        raise
    return tree
