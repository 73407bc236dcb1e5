"""In a worker: what a cell has bound, and what of it goes home to the notebook.

Home goes plain data: numbers, texts, containers of such, arrays, tensors on the CPU, data frames; each
up to a size. So do functions and classes that the cell defined, for a notebook that has none of that
name, and whatever can be imported and the notebook has imported already. Models, optimizers, loaders,
tensors of accelerators and all other objects stay. Must not change or copy what stays.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import io
import pathlib
import pickle
import sys
import types
import uuid
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from cloudpickle import cloudpickle as _cp

from nbaccel.launch.payload import standins
from nbaccel.launch.payload.pickling import ResultPickler, _MainGlobals
from nbaccel.launch.shipping import names, stamps
from nbaccel.launch.shipping.shipping import is_shippable

_ATOMS = (
    bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), type(Ellipsis),
    dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone,
    decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath,
)  # fmt: skip
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)

_SHELL_LIST = "IPython.utils.text.SList"
"""What ``!command`` gives."""

_TORCH_VALUES = frozenset({"torch.Size", "torch.dtype", "torch.device"})
_FRAMES = frozenset({"DataFrame", "Series", "Index", "RangeIndex", "Timestamp", "Timedelta", "DatetimeIndex"})

_MAX_DEPTH = 20
_SMALL_TEXT = 1 << 10

_STAMPED_WHOLE = 16 << 20
"""Bytes of a large array up to which every element counts in finding out whether a cell has changed it."""


@dataclass(frozen=True)
class CellReport:
    """What a cell did to the namespace of one rank."""

    bound: dict[str, frozenset[str]] = field(default_factory=dict)
    """Names that it bound, or whose plain value it changed -> the names that the value's code uses."""
    unbound: frozenset[str] = frozenset()
    """Names that it deleted."""
    home: dict[str, Any] = field(default_factory=dict)
    """Plain values for the notebook; of one rank only."""
    code: dict[str, bytes] = field(default_factory=dict)
    """Pickled functions and classes for a notebook that has none of that name."""
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Module, and name in it or an empty text, of what can be imported; for a notebook that has done so."""
    stays: dict[str, str] = field(default_factory=dict)
    """Name -> kind of what was bound and is not sent."""
    displaced: frozenset[str] = frozenset()
    """Names that were sent in place of something prepared, and aren't prepared themselves."""
    received: int = 0
    """Number of the last shipment that arrived."""


# --- watching the namespace ---------------------------------------------------------------------------


class Watch:
    """Finds out what a cell has bound or changed. Keeps nothing alive that takes memory."""

    def __init__(self, namespace: dict[str, Any], named: Collection[str], limit: int) -> None:
        """Look at the namespace before the cell.

        Args:
            namespace: the worker's ``__main__``.
            named: names that the cell's code mentions: of these, changes in place are looked for.
            limit: bytes of a plain value up to which they are.
        """
        self._namespace = namespace
        self._limit = limit
        self._before = {name: _Sight(value) for name, value in namespace.items() if is_shippable(name)}
        self._contents = {name: _content(namespace[name], limit) for name in named if name in self._before}

    def bound(self) -> set[str]:
        """Names that have another value now, or a plain one that was changed in place."""
        found = set()
        for name, value in self._namespace.items():
            if not is_shippable(name):
                continue
            before = self._before.get(name)
            is_new = before is None or not before.is_still(value)
            if is_new or (name in self._contents and self._contents[name] != _content(value, self._limit)):
                found.add(name)
        return found

    def unbound(self) -> set[str]:
        """Names that are gone."""
        return self._before.keys() - self._namespace.keys()


class _Sight:
    """An object as it was seen, without keeping a large one alive."""

    __slots__ = ("_id", "_kept", "_ref")

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        self._kept: Any = None
        self._ref: weakref.ref[Any] | None = None
        if isinstance(value, (int, float, complex, types.NoneType)) or (
            isinstance(value, (str, bytes)) and len(value) <= _SMALL_TEXT
        ):
            self._kept = value  # so that its identity can't become another one's
        else:
            try:
                self._ref = weakref.ref(value)
            except TypeError:
                self._ref = None  # a list: its content is compared besides

    def is_still(self, value: Any) -> bool:
        """Whether ``value`` is the same object."""
        return self._id == id(value) and (self._ref is None or self._ref() is value)


def _content(value: Any, limit: int) -> object:
    """What tells whether a plain value was changed in place, of large ones most changes; None for others."""
    if isinstance(value, _ATOMS):
        return None
    return _dumped(value) if is_plain(value, limit) else _stamp(value)


def _stamp(value: Any) -> object:
    kind = type(value)
    if kind in _SEQUENCES or kind in _MAPPINGS:
        return len(value)
    module = kind.__module__.partition(".")[0]
    if module == "numpy" and kind is sys.modules["numpy"].ndarray and not value.dtype.hasobject:
        return _stamp_of_array(value)
    if module == "torch" and kind is sys.modules["torch"].Tensor:
        return stamps.of_tensor(value, whole_up_to=_STAMPED_WHOLE)
    if module == "pandas" and kind.__name__ == "DataFrame":
        numbers = value.select_dtypes("number")
        columns = [_stamp_of_array(numbers.iloc[:, place].to_numpy()) for place in range(numbers.shape[1])]
        return value.shape, [*map(str, value.columns)], columns
    return None


def _stamp_of_array(array: Any) -> object:
    # A column of a frame may be a copy, which is elsewhere each time.
    if array.dtype.hasobject:
        return None
    return stamps.of_array(array, whole_up_to=_STAMPED_WHOLE, by_place=False)


def _dumped(value: Any) -> bytes | None:
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = ResultPickler(file, buffers.append)
    try:
        pickler.dump(value)
    except Exception:  # noqa: BLE001  # a broken object stays where it is
        return None
    for buffer in buffers:
        storage = pickler.tensors.storage_behind(buffer)
        if storage is None:
            with buffer.raw() as raw:
                file.write(raw)
        else:
            with storage.memory() as raw:
                file.write(raw)
    return file.getvalue()


# --- what goes home -----------------------------------------------------------------------------------


def report(
    watch: Watch, namespace: Mapping[str, Any], *, sends: bool, wanted: Collection[str], limit: int
) -> dict[str, Any]:
    """The fields of a :class:`CellReport`.

    Args:
        watch: made before the cell.
        namespace: the worker's ``__main__``.
        sends: values are sent, not only names told.
        wanted: names that are sent whatever they are.
        limit: bytes up to which a value goes home.
    """
    bound = watch.bound()
    fields: dict[str, Any] = {
        "bound": {name: needs_of(namespace[name]) for name in bound},
        "unbound": frozenset(watch.unbound()),
    }
    if not sends:
        return fields
    home: dict[str, Any] = {}
    code: dict[str, bytes] = {}
    imported: dict[str, tuple[str, str]] = {}
    stays: dict[str, str] = {}
    for name in sorted(bound - set(wanted)):
        value = namespace[name]
        if is_plain(value, limit):
            home[name] = _for_home(value)
        elif isinstance(value, types.ModuleType):
            imported[name] = (value.__name__, "")
        elif _is_by_reference(value):
            imported[name] = (value.__module__, value.__qualname__)
        elif isinstance(value, (types.FunctionType, type)):
            if (packed := _pack_code(value, limit)) is not None:
                code[name] = packed
        else:
            stays[name] = type(value).__name__
    return {**fields, "home": home, "code": code, "imported": imported, "stays": stays}


def needs_of(value: Any) -> frozenset[str]:
    """Names of the namespace that the code of ``value`` uses: a function's, a class's, its instance's."""
    found: set[str] = set()
    for cls in _classes(value):
        for member in vars(cls).values():
            found |= _function_needs(member)
    return frozenset(found | _function_needs(value))


def _classes(value: Any) -> Iterator[type]:
    """Classes of the notebook that ``value`` is, or is made of."""
    roots = {value} if isinstance(value, type) else {type(value)}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        roots |= {type(module) for module in value.modules()}
    for root in roots:
        yield from (cls for cls in root.__mro__ if cls.__module__ == "__main__")


def _function_needs(value: Any) -> frozenset[str]:
    for name in ("__func__", "fget", "func"):
        value = getattr(value, name, value) if not isinstance(value, type) else value
    code = getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType):
        return frozenset()
    found = set(names.of_code(code))
    for cell in getattr(value, "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:
            continue  # a variable that has no value yet
        if isinstance(inner, types.FunctionType) and inner is not value:
            found |= names.of_code(inner.__code__)
    return frozenset(found)


def is_plain(value: Any, limit: int) -> bool:
    """Whether ``value`` is plain data of at most about ``limit`` bytes."""
    return _size(value, limit, 0, set()) <= limit


def _size(value: Any, left: int, depth: int, path: set[int]) -> float:
    """About how many bytes; infinite for what isn't plain."""
    kind = type(value)
    if kind in _ATOMS or (isinstance(value, pathlib.PurePath)):
        return len(value) if isinstance(value, (str, bytes, bytearray)) else 16
    if kind in _SEQUENCES or kind in _MAPPINGS or _is_named_tuple(kind) or _name_of(kind) == _SHELL_LIST:
        return _container_size(value, left, depth, path)
    module = kind.__module__.partition(".")[0]
    if module == "numpy":
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.generic) or (kind is numpy.ndarray and not value.dtype.hasobject):
            return int(value.nbytes)
    elif module == "torch":
        return _torch_size(value)
    elif module == "pandas" and kind.__name__ in _FRAMES:
        usage = getattr(value, "memory_usage", None)
        return 16 if usage is None else int(sys.modules["numpy"].sum(usage(deep=True)))
    return float("inf")


def _container_size(value: Any, left: int, depth: int, path: set[int]) -> float:
    if depth >= _MAX_DEPTH or id(value) in path:
        return float("inf")
    if isinstance(value, collections.defaultdict) and not (
        value.default_factory is None or value.default_factory.__module__ == "builtins"
    ):
        return float("inf")
    parts = (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
    total: float = 56
    path.add(id(value))
    for part in parts:
        total += 8 + _size(part, left, depth + 1, path)
        if total > left:
            break
    path.discard(id(value))
    return total


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _torch_size(value: Any) -> float:
    torch = sys.modules["torch"]
    kind = type(value)
    if _name_of(kind) in _TORCH_VALUES:
        return 16
    if kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        return int(value.numel() * value.element_size())
    return float("inf")


def _for_home(value: Any) -> Any:
    """A loss that hangs on its graph goes home as a number in a tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and not value.is_leaf:
        return value.detach()
    if type(value) in (list, tuple):
        parts = [_for_home(part) for part in value]
        is_same = all(part is old for part, old in zip(parts, value, strict=True))
        return value if is_same else type(value)(parts)
    if type(value) is dict:
        items = {key: _for_home(part) for key, part in value.items()}
        return value if all(items[key] is value[key] for key in items) else items
    return value


def _is_by_reference(value: Any) -> bool:
    if not isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return False
    return standins.is_importable(value)


def _pack_code(value: Any, limit: int) -> bytes | None:
    file = io.BytesIO()
    try:
        CodePickler(file).dump(value)
    except Exception:  # noqa: BLE001  # its closure holds something that can't be sent: it stays here
        return None
    return file.getvalue() if file.tell() <= limit else None


class CodePickler(ResultPickler):
    """Functions and classes of a cell: in the notebook they use the notebook's own names."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, None)  # type: ignore[arg-type]  # all of it in the stream
        self._main = vars(sys.modules["__main__"])
        self.globals_ref[id(self._main)] = _MainGlobals()

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if (
            isinstance(obj, types.FunctionType)
            and obj.__globals__ is self._main
            and isinstance(reduced, tuple)
            and len(reduced) == 6
            and reduced[5] is _cp._function_setstate  # noqa: SLF001
        ):
            reduced[2][1]["__globals__"] = {}
        return reduced
