"""Names of the kernel on their way to a session's workers: what a cell needs, when it is new or changed.

::

    names of the cell ──▶ values ──▶ names that their functions use ──▶ values ...
                            │
                            ├─ the workers have it as it is: nothing is sent
                            ├─ the workers bound the name later than the kernel did: it stays theirs
                            └─ else it is sent; what they have of its inside goes by reference

For each name the ledger keeps who bound it last. A shipment that isn't known to have arrived is as if
it had never been made. Must not touch the namespace it looks at.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nbaccel.launch.payload import payload
from nbaccel.launch.payload.payload import Payload
from nbaccel.launch.shipping import graph as shipping_graph
from nbaccel.launch.shipping import stamps
from nbaccel.launch.shipping.graph import Graph, Node, Table
from nbaccel.launch.shipping.pickling import SendingPickler

_HIDDEN = frozenset(
    [
        "In",
        "Out",
        "exit",
        "quit",
        "get_ipython",
        "open",
        "_",
        "__",
        "___",
        "_i",
        "_ii",
        "_iii",
        "_ih",
        "_oh",
        "_dh",
        "_sh",
        "_exit_code",
    ]
)
"""Names that a shell has of its own; a worker's shell has its own ones."""

MISSING: Any = object()
"""In place of the value of a name that isn't there."""

_numbers = itertools.count(1)


def is_shippable(name: str) -> bool:
    """Whether a name is the user's, and not the interpreter's or the shell's."""
    return name not in _HIDDEN and not (name.startswith("__") and name.endswith("__"))


@dataclass
class Entry:
    """Who has what under one name."""

    holders: frozenset[int]
    """Ranks that have the current value."""

    mark: object = None
    """The kernel's value as it was sent; see :meth:`Graph.mark`."""

    snapshot: Snapshot | None = None
    """Set when the workers bound the name last: what the kernel had then."""

    needs: frozenset[str] = frozenset()
    """Names that the code of the workers' own value uses."""


@dataclass(frozen=True)
class Sent:
    """One shipment as the worker gets it; a part of the payload."""

    number: int
    names: dict[str, Any]
    ranks: dict[str, frozenset[int]]
    """For each name the ranks that bind it."""
    forgotten: tuple[int, ...]
    objects: list[tuple[int, Any]]
    """Key and object of each that may be referred to later. Last: all of them stand in the stream by now."""


@dataclass
class Plan:
    """What would be sent for one cell."""

    graph: Graph
    ranks: frozenset[int]
    """All ranks of the session."""
    roots: dict[str, Node] = field(default_factory=dict)
    """Names to be sent."""
    marks: dict[str, object] = field(default_factory=dict)
    targets: dict[str, frozenset[int]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Names that can't be sent, and why."""
    passed_over: set[str] = field(default_factory=set)
    """Models and optimizers that the notebook has changed in place while the workers go on with their own."""
    modules: frozenset[str] = frozenset()
    """What the workers will import."""
    number: int = 0

    def references(self) -> set[int]:
        """Keys of objects that the workers must still have."""
        return self.graph.references(self.roots.values())

    @property
    def is_empty(self) -> bool:
        """Nothing has to be sent."""
        return not self.roots


def entry_holders(entry: Entry | None) -> frozenset[int]:
    """Ranks that have the current value of a name."""
    return frozenset() if entry is None else entry.holders


class Shipping:
    """The kernel's side: what the workers of one session are known to have."""

    def __init__(self, ranks: Collection[int]) -> None:
        self.ranks = frozenset(ranks)
        self._table = Table()
        self._entries: dict[str, Entry] = {}

    # --- before a cell ------------------------------------------------------------------------

    def plan(
        self, uses: Mapping[str, frozenset[str]], namespace: Mapping[str, Any], *, force: bool = False
    ) -> Plan:
        """What has to be sent for a cell.

        Args:
            uses: names that the cell uses, each with those that it has bound by then.
            namespace: the kernel's.
            force: send them in any case, also those that the workers bound later.
        """
        graph = Graph(self._table, namespace)
        plan = Plan(graph, self.ranks)
        visited: dict[str, frozenset[str]] = {}
        candidates: dict[str, Node] = {}
        theirs: set[str] = set()
        waiting = list(uses.items())
        while waiting:
            name, bound = waiting.pop()
            before = visited.get(name)
            if before is not None and before <= bound:
                continue
            visited[name] = bound if before is None else bound & before
            entry = self._entries.get(name)
            value = namespace.get(name, MISSING)
            needs: frozenset[str] = frozenset()
            snapshot = entry.snapshot if entry is not None and not (force and name in uses) else None
            if entry is not None and snapshot is not None and snapshot.still_holds(value, graph):
                theirs.add(name)
                needs = entry.needs
                if name in uses and snapshot.has_changed_inside(value):
                    plan.passed_over.add(name)
            lacks_it = name not in theirs or bool(self.ranks - entry_holders(entry))
            if lacks_it and is_shippable(name) and value is not MISSING:
                node = candidates[name] = graph.node(value)
                needs = needs.union(*(each.needs for each in graph.reach(node)))
            waiting += [(needed, bound) for needed in needs if needed not in bound]
        self._choose(plan, candidates, theirs, frozenset(uses) if force else frozenset())
        return plan

    def _choose(
        self, plan: Plan, candidates: dict[str, Node], theirs: set[str], forced: frozenset[str]
    ) -> None:
        graph = plan.graph
        for name, node in list(candidates.items()):
            broken = next((each for each in graph.reach(node) if each.error is not None), None)
            if broken is not None:
                assert broken.error is not None
                plan.refused[name] = shipping_graph.why_not(node.obj, broken.error)
                del candidates[name]
        graph.settle(candidates.values())
        modules: set[str] = set()
        for name, node in candidates.items():
            mark = graph.mark(node)
            entry = self._entries.get(name)
            if entry is None or name in forced or (name not in theirs and entry.mark != mark):
                targets = self.ranks
            else:
                targets = self.ranks - entry.holders
            if targets:
                plan.roots[name] = node
                plan.marks[name] = mark
                plan.targets[name] = targets
                modules.update(*(each.modules for each in graph.reach(node)))
        plan.modules = frozenset(modules)

    def pack(self, plan: Plan, function: Any, task: Any) -> Payload:
        """The call ``function(task, sent)`` for the workers.

        Raises:
            TypeError: something can't be pickled after all.
            OSError: there is no room for it.
        """
        if plan.is_empty:
            return payload.dump_by((function, (task, None), {}), SendingPickler.without_objects)
        plan.number = next(_numbers)
        fresh = plan.graph.fresh(plan.roots.values())
        sent = Sent(
            plan.number,
            {name: node.obj for name, node in plan.roots.items()},
            plan.targets,
            self._table.take_forgotten(),
            [(node.key, node.obj) for node in fresh if node.key is not None],
        )
        return payload.dump_by((function, (task, sent), {}), partial(SendingPickler, known=plan.graph.known))

    # --- after a cell -------------------------------------------------------------------------

    def arrived(self, plan: Plan) -> None:
        """All workers have what was sent."""
        for node in plan.graph.fresh(plan.roots.values()):
            assert node.key is not None
            self._table.put(node.obj, node.key, node.stream, node.inside)
        for name, targets in plan.targets.items():
            old = self._entries.get(name)
            if targets == self.ranks or old is None:
                self._entries[name] = Entry(targets, plan.marks[name])
            else:
                self._entries[name] = replace(old, holders=old.holders | targets)

    def told_of(self, names: Iterable[str], namespace: Mapping[str, Any]) -> None:
        """The user knows of the changes in place of these: only later ones are told again."""
        for name in names:
            snapshot = self._entries[name].snapshot
            if snapshot is not None:
                snapshot.take_inside(namespace[name])

    def lost(self, keys: Collection[int]) -> None:
        """Some worker no longer has these objects."""
        self._table.drop(keys)

    def bound_by_workers(
        self, name: str, ranks: Collection[int], namespace: Mapping[str, Any], needs: Collection[str] = ()
    ) -> None:
        """``ranks`` have bound ``name``; what the kernel has under it is older from now on."""
        old = self._entries.get(name)
        holders = frozenset(ranks) | (old.holders if old is not None else frozenset())
        graph = Graph(self._table, namespace)
        snapshot = Snapshot(namespace.get(name, MISSING), graph)
        self._entries[name] = Entry(holders, snapshot=snapshot, needs=frozenset(needs))

    def unbound_by_workers(self, name: str, ranks: Collection[int]) -> None:
        """``ranks`` have deleted ``name``."""
        entry = self._entries.get(name)
        if entry is None:
            return
        holders = entry.holders - frozenset(ranks)
        if holders:
            entry.holders = holders
        else:
            del self._entries[name]

    def holders(self, name: str) -> frozenset[int]:
        """Ranks that are known to have ``name``."""
        return entry_holders(self._entries.get(name))

    def names_of_workers(self) -> list[str]:
        """Names that the workers bound last."""
        return sorted(name for name, entry in self._entries.items() if entry.snapshot is not None)


class Snapshot:
    """What the kernel had under a name, for finding out whether that has changed since."""

    def __init__(self, value: Any, graph: Graph) -> None:
        """As it is now; ``value`` is :data:`MISSING` when the kernel has no such name."""
        self._ref: weakref.ref[Any] | None = None
        self._content: object = None
        self._is_missing = value is MISSING
        self.take_inside(value)
        if not self._is_missing:
            self._content = graph.content(value)
            try:
                self._ref = weakref.ref(value)
            except TypeError:
                self._ref = None  # a number, a list: its content tells

    def take_inside(self, value: Any) -> None:
        """What a later change in place is told from."""
        self._inside = stamps.of_inside(value)

    def has_changed_inside(self, value: Any) -> bool:
        """Whether a model or an optimizer that is still the same object was changed in place."""
        return self._inside != stamps.of_inside(value)

    def still_holds(self, value: Any, graph: Graph) -> bool:
        """Whether the kernel has neither bound another value nor changed this one."""
        if self._is_missing or value is MISSING:
            return self._is_missing and value is MISSING
        if self._ref is not None and self._ref() is not value:
            return False
        return self._content == graph.content(value)
