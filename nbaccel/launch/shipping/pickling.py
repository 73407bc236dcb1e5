"""The pickling rules of cells: functions without the names they use, known objects by reference.

What a function of the notebook takes from the namespace travels under its own name (see
:mod:`nbaccel.launch.shipping.shipping`), not inside the function: so a function stays small, and finds what
the worker has under that name when it runs. An object that the workers have already is named by its key.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from typing import IO, Any

from cloudpickle import cloudpickle as _cp

from nbaccel.launch.payload import standins
from nbaccel.launch.payload.pickling import Pickler, _MainGlobals, _set_class_state
from nbaccel.launch.shipping import names, store

# ruff: noqa: SLF001  # as in nbaccel.launch.payload.pickling


class CellPickler(Pickler):
    """Kernel to worker, everything by value."""

    further_reducers = standins.CALL_REDUCERS

    def __init__(self, file: IO[bytes], buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, buffer_callback)
        self._main = vars(sys.modules["__main__"])
        self.globals_ref[id(self._main)] = _MainGlobals()
        self.modules.add("IPython.core.interactiveshell")  # cells run in its shell
        self.needs: set[str] = set()
        """Names of the namespace that what was pickled refers to."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        if isinstance(obj, type) and reduced[5] is _cp._class_setstate:
            self.classes.append(obj)
            self._note_own_name(obj)
            return (*reduced[:5], _set_class_state)
        if isinstance(obj, types.FunctionType) and obj.__globals__ is self._main:
            self._note_own_name(obj)
            self.needs |= names.of_code(obj.__code__) & self._main.keys()
            # A dictionary that was made for this reduction: without the values of the globals.
            reduced[2][1]["__globals__"] = {}
        return reduced

    def _note_own_name(self, obj: Any) -> None:
        """Whoever pickles in the worker (a DataLoader's processes, torch.save) looks it up by name."""
        name: str = obj.__qualname__
        if obj.__module__ == "__main__" and self._main.get(name) is obj:
            self.needs.add(name)


class LookingPickler(CellPickler):
    """Pickles one object to see what it is made of; objects that are tracked by themselves are set aside."""

    def __init__(
        self,
        file: IO[bytes],
        buffer_callback: Callable[[pickle.PickleBuffer], Any],
        is_tracked: Callable[[Any], bool],
    ) -> None:
        super().__init__(file, buffer_callback)
        self._is_tracked = is_tracked
        self._root: Any = None
        self.children: list[Any] = []

    def look(self, root: Any) -> None:
        """Pickle ``root``; :attr:`children` and :attr:`needs` are then its own."""
        self.clear_memo()
        self._root = root
        self.children = []
        self.needs = set()
        self.dump(root)

    def reducer_override(self, obj: Any) -> Any:
        if obj is not self._root and self._is_tracked(obj):
            self.children.append(obj)
            return _child, (len(self.children),)
        return super().reducer_override(obj)


class SendingPickler(CellPickler):
    """Pickles a shipment: objects that the workers have go by reference."""

    def __init__(
        self,
        file: IO[bytes],
        buffer_callback: Callable[[pickle.PickleBuffer], Any],
        known: Callable[[Any], int | None],
    ) -> None:
        super().__init__(file, buffer_callback)
        self._known = known

    @classmethod
    def without_objects(
        cls, file: IO[bytes], buffer_callback: Callable[[pickle.PickleBuffer], Any]
    ) -> SendingPickler:
        """For a call that holds nothing of the notebook."""
        return cls(file, buffer_callback, lambda _obj: None)

    def reducer_override(self, obj: Any) -> Any:
        key = self._known(obj)
        if key is not None:
            return store.resolve, (key,)
        return super().reducer_override(obj)


def _child(index: int) -> None:
    raise AssertionError(f"child {index} of an object that was only looked at")
