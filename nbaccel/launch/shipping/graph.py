"""What the workers have of the kernel's objects: each object's key, and whether it has changed.

::

    names ──▶ values ──▶ tracked objects ──▶ tracked objects inside them ...
                              │
                              └─ stream: how it pickles without those inside; their keys

Tracked are tensors, models, optimizers, larger arrays, functions and classes of the notebook, and
whatever a name of the notebook holds, as far as it can be referred to weakly. An object is the same as
the one that was sent under its key when its stream is the same and the objects inside have their keys
still. A change thus gives new keys to all that leads to it, and objects in a circle change together.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudpickle import cloudpickle as _cp

from nbaccel.launch.payload import unpicklable
from nbaccel.launch.shipping import stamps
from nbaccel.launch.shipping.pickling import CellPickler, LookingPickler

_OWN_KEY_SIZE = 256 << 10
"""Bytes of an array from which on it is sent by itself, so that it isn't sent again with what holds it."""

LARGE = 8 << 20
"""Bytes of a pickled list, dictionary or object from which on in-place changes aren't looked for."""


@dataclass
class Record:
    """An object that the workers have."""

    key: int
    stream: object
    inside: tuple[object, ...]
    """Keys of the tracked objects inside; for those of its own circle their place in it."""
    ref: weakref.ref[Any] = field(repr=False)


class Table:
    """The records of all objects that were sent, by identity. They end with their objects."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._forgotten: list[int] = []
        self._next_key = 0
        self.large: dict[int, tuple[Any, Node]] = {}
        """Large containers: the object, kept so that its identity means something, and its node."""

    def new_key(self) -> int:
        """A key that was never used."""
        self._next_key += 1
        return self._next_key

    def find(self, obj: Any) -> Record | None:
        """What is known of this very object."""
        record = self._records.get(id(obj))
        return record if record is not None and record.ref() is obj else None

    def put(self, obj: Any, key: int, stream: object, inside: tuple[object, ...]) -> None:
        """The workers have ``obj`` now."""
        address = id(obj)
        old = self._records.get(address)
        if old is not None:
            self._forgotten.append(old.key)

        def end(ref: weakref.ref[Any]) -> None:
            record = self._records.get(address)
            if record is not None and record.ref is ref:
                del self._records[address]
                self._forgotten.append(record.key)

        self._records[address] = Record(key, stream, inside, weakref.ref(obj, end))

    def drop(self, keys: Iterable[int]) -> None:
        """The workers have these no longer."""
        gone = set(keys)
        self._records = {where: record for where, record in self._records.items() if record.key not in gone}

    def take_forgotten(self) -> tuple[int, ...]:
        """Keys that nobody refers to any more, each told once."""
        taken, self._forgotten = tuple(self._forgotten), []
        return taken


@dataclass(eq=False)
class Node:
    """One object as it is now."""

    obj: Any
    stream: object
    children: list[Node]
    needs: frozenset[str]
    """Names of the namespace that its own code refers to."""
    modules: frozenset[str] = frozenset()
    error: Exception | None = None
    """Why it can't be pickled."""
    key: int | None = None
    """Set by :meth:`Graph.settle`."""
    is_new: bool = True
    """The workers don't have it as it is now."""
    inside: tuple[object, ...] = ()


class Graph:
    """One look at the namespace: objects are looked at once, however many names lead to them."""

    def __init__(self, table: Table, namespace: Mapping[str, Any]) -> None:
        self._table = table
        self._named = set(map(id, namespace.values()))
        self._nodes: dict[int, Node] = {}
        self._file = _Digest()
        self._pickler = LookingPickler(self._file, self._file.buffer, self.is_tracked)  # type: ignore[arg-type]
        self._types = _Types()
        table.large = {where: kept for where, kept in table.large.items() if where in self._named}

    # --- looking ------------------------------------------------------------------------------

    def node(self, obj: Any) -> Node:
        """What ``obj`` is made of, now."""
        found = self._nodes.get(id(obj))
        if found is None:
            found = self._look(obj)
            self._nodes[id(obj)] = found  # it keeps the object, so the identity stays its own
            waiting = [found]
            while waiting:
                node = waiting.pop()
                for place, child in enumerate(node.children):
                    known = self._nodes.get(id(child.obj))
                    if known is None:
                        known = self._nodes[id(child.obj)] = self._look(child.obj)
                        waiting.append(known)
                    node.children[place] = known
        return found

    def reach(self, root: Node) -> Iterator[Node]:
        """``root`` and all tracked objects inside."""
        seen = {id(root)}
        waiting = [root]
        while waiting:
            node = waiting.pop()
            yield node
            for child in node.children:
                if id(child) not in seen:
                    seen.add(id(child))
                    waiting.append(child)

    def is_tracked(self, obj: Any) -> bool:
        """Whether the object has a key of its own."""
        kind = self._types.kind(type(obj))
        if kind == "code":
            return not _cp._should_pickle_by_reference(obj)  # noqa: SLF001
        if kind == "array":
            return id(obj) in self._named or (obj.nbytes > _OWN_KEY_SIZE and not obj.dtype.hasobject)
        return kind in ("tracked", "tensor") or (kind == "other" and id(obj) in self._named)

    def _look(self, obj: Any) -> Node:
        kind = self._types.kind(type(obj))
        if kind == "tensor":
            return Node(obj, stamps.of_tensor(obj), [], frozenset())
        if kind == "array" and not obj.dtype.hasobject:
            return Node(obj, stamps.of_array(obj), [], frozenset())
        if (kept := self._table.large.get(id(obj))) is not None and kept[0] is obj:
            old = kept[1]
            return Node(obj, old.stream, [_unseen(child.obj) for child in old.children], old.needs)
        self._file.clear()
        self._pickler.modules.clear()
        try:
            self._pickler.look(obj)
        except Exception as error:  # noqa: BLE001  # any object's own pickling
            return Node(obj, None, [], frozenset(), error=error)
        node = Node(
            obj,
            self._file.digest(),
            [_unseen(child) for child in self._pickler.children],
            frozenset(self._pickler.needs),
            frozenset(self._pickler.modules),
        )
        if self._file.size > LARGE and kind in ("", "other"):
            self._table.large[id(obj)] = (obj, node)
        return node

    # --- comparing with what the workers have -------------------------------------------------

    def settle(self, roots: Iterable[Node]) -> None:
        """Give each object below ``roots`` its key: the one it had, or a new one when it has changed."""
        for circle in _circles(roots):
            place = {id(node): number for number, node in enumerate(circle)}
            insides = [
                tuple(
                    ("circle", place[id(child)]) if id(child) in place else self._mark(child)
                    for child in node.children
                )
                for node in circle
            ]
            records = [self._table.find(node.obj) for node in circle]
            is_new = any(
                record is None or record.stream != node.stream or record.inside != inside
                for record, node, inside in zip(records, circle, insides, strict=True)
            )
            for record, node, inside in zip(records, circle, insides, strict=True):
                node.inside = inside
                node.is_new = is_new
                if is_new or record is None:
                    node.key = self._table.new_key() if self.is_tracked(node.obj) else None
                else:
                    node.key = record.key

    @staticmethod
    def _mark(node: Node) -> object:
        return node.key if node.key is not None else (node.stream, node.inside)

    def mark(self, root: Node) -> object:
        """After :meth:`settle`: equal for what was not changed since."""
        return self._mark(root)

    def content(self, obj: Any) -> object:
        """Equal for what looks the same as before; of models and functions only the identity counts."""
        kind = self._types.kind(type(obj))
        if kind in ("code", "tracked"):
            return None
        node = self.node(obj)
        if node.error is not None:
            return id(obj)
        return node.stream, tuple((id(child.obj), child.stream) for child in node.children)

    def known(self, obj: Any) -> int | None:
        """The key under which the workers have ``obj`` as it is now."""
        node = self._nodes.get(id(obj))
        return None if node is None or node.is_new else node.key

    def fresh(self, roots: Iterable[Node]) -> list[Node]:
        """Tracked objects below ``roots`` that the workers don't have yet."""
        found = {id(n): n for root in roots for n in self.reach(root) if n.is_new and n.key is not None}
        return list(found.values())

    def references(self, roots: Iterable[Node]) -> set[int]:
        """Keys that a shipment of ``roots`` refers to."""
        return {n.key for root in roots for n in self.reach(root) if not n.is_new and n.key is not None}


def why_not(obj: Any, error: Exception) -> str:
    """Why an object can't be sent, with the way to the part of it that can't."""
    found = unpicklable.explain(obj, error, CellPickler)
    text = str(found or error)
    return text.removeprefix("can't be sent to another process: ")


def _unseen(obj: Any) -> Node:
    """Stands in a list of children until the object is looked at."""
    return Node(obj, None, [], frozenset())


class _Types:
    """How objects of a type are treated."""

    def __init__(self) -> None:
        self._kinds: dict[type, str] = {types.FunctionType: "code", type: "code"}

    def kind(self, cls: type) -> str:
        """``code``, ``tensor``, ``array``, ``tracked`` or ``other``; empty for what is never tracked."""
        found = self._kinds.get(cls)
        if found is None:
            found = self._kinds[cls] = self._find(cls)
        return found

    @staticmethod
    def _find(kind: type) -> str:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if issubclass(kind, type):
            return "code"
        if issubclass(kind, types.ModuleType) or not kind.__weakrefoffset__:
            # Of what can't be referred to weakly nobody knows when it ends.
            return ""
        if torch is not None and hasattr(torch, "nn"):
            if issubclass(kind, torch.Tensor):
                return "tensor"
            if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)):
                return "tracked"
        if numpy is not None and hasattr(numpy, "ndarray") and issubclass(kind, numpy.ndarray):
            return "array"
        return "other"


class _Digest:
    """A file that keeps nothing but a digest of what was written."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.size += count
        self._hash.update(data)
        return count

    def buffer(self, buffer: pickle.PickleBuffer) -> None:
        """Take in what pickle would hand out beside its stream."""
        with buffer.raw() as raw:
            self.write(raw)

    def digest(self) -> bytes:
        return self._hash.digest()


def _circles(roots: Iterable[Node]) -> Iterator[list[Node]]:
    """Strongly connected components below ``roots``, the inner ones first (Tarjan's algorithm)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[Node] = []
    on_stack: set[int] = set()
    for root in roots:
        if id(root) in index:
            continue
        work: list[tuple[Node, Iterator[Node]]] = []

        def enter(node: Node, work: list[tuple[Node, Iterator[Node]]] = work) -> None:
            index[id(node)] = low[id(node)] = len(index)
            stack.append(node)
            on_stack.add(id(node))
            work.append((node, iter(node.children)))

        enter(root)
        while work:
            node, children = work[-1]
            for child in children:
                if id(child) not in index:
                    enter(child)
                    break
                if id(child) in on_stack:
                    low[id(node)] = min(low[id(node)], index[id(child)])
            else:
                work.pop()
                if work:
                    outer = work[-1][0]
                    low[id(outer)] = min(low[id(outer)], low[id(node)])
                if low[id(node)] == index[id(node)]:
                    circle: list[Node] = []
                    while not circle or circle[-1] is not node:
                        circle.append(stack.pop())
                        on_stack.discard(id(circle[-1]))
                    circle.reverse()
                    yield circle
