"""Pickling by cloudpickle with the rules of the launcher.

* Functions keep the file name of their code, and the source of notebook cells travels along
  (:mod:`nbaccel.launch.payload.sources`).
* Functions of the kernel's ``__main__`` get the worker's ``__main__`` as their globals. What the
  kernel has there under its own name is there in the worker too, so that DataLoader workers,
  ``torch.save`` and ``pickle`` find notebook classes and functions.
* The memory of tensors and arrays goes out of band (:mod:`nbaccel.launch.payload.tensors`, ``arrays``).
* On the way home a class that came from the kernel is named, not copied: the kernel resolves it to
  its own class, which is never written to. Functions come home as copies with globals of their own.
"""

from __future__ import annotations

import pickle
import sys
import threading
import types
from collections.abc import Callable
from typing import IO, Any, ClassVar

import cloudpickle
from cloudpickle import cloudpickle as _cp

from nbaccel.launch.payload import arrays, sources, standins
from nbaccel.launch.payload.tensors import TensorReducers

# ruff: noqa: SLF001
# Where cloudpickle leaves a rule to be changed, its private reducers are what a rule is made of; each
# use is covered by a test, so that a release that renames one is noticed.

_DYNAMIC = "<dynamic-code>"

_Reducer = Callable[[Any], Any]


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The rules that hold in both directions."""

    further_reducers: ClassVar[dict[str, _Reducer]] = {}
    """Of one direction."""
    to_cpu = False
    """Tensors of an accelerator stay on the CPU."""

    def __init__(self, file: IO[bytes], buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.modules: set[str] = set()
        """Modules that the reader will import."""
        self.classes: list[type] = []
        """Classes sent by value."""
        self.tensors = TensorReducers(to_cpu=self.to_cpu)
        # None may refer to this pickler: in a cycle it would keep what it has seen until a collection.
        self._reducers: dict[str, _Reducer] = {
            **standins.REDUCERS,
            **self.further_reducers,
            "numpy.ndarray": arrays.reduce_array,
            "torch.Tensor": self.tensors.reduce_tensor,
            "torch.nn.parameter.Parameter": self.tensors.reduce_parameter,
            "torch.storage.TypedStorage": self.tensors.reduce_typed_storage,
            "torch.storage.UntypedStorage": self.tensors.reduce_untyped_storage,
            "builtins.BaseException": _reduce_exception,
        }
        self._reducer_of: dict[type, _Reducer | None] = {}
        self._streams = standins.standard_streams()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.ModuleType):
            self.modules.add(obj.__name__)
        elif isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType)):
            module = getattr(obj, "__module__", None)
            if isinstance(module, str):
                self.modules.add(module)
        elif type(obj) is types.CodeType:
            return self._reduce_code(obj)
        elif id(obj) in self._streams:
            return self._streams[id(obj)]
        else:
            reducer = self._reducer_for(type(obj))
            if reducer is not None:
                reduced = reducer(obj)
                if reduced is not NotImplemented:
                    return reduced
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and "__slots__" in vars(obj) and isinstance(reduced, tuple):
            return _with_slots(obj, reduced)
        return reduced

    def _reducer_for(self, cls: type) -> _Reducer | None:
        try:
            return self._reducer_of[cls]
        except KeyError:
            names = (f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__)
            found = next((self._reducers[name] for name in names if name in self._reducers), None)
            self._reducer_of[cls] = found
            return found

    def _reduce_code(self, code: types.CodeType) -> Any:
        # What the code imports when it runs, as far as that is loaded here already.
        self.modules.update(name for name in code.co_names if name in sys.modules)
        constructor, args = _cp._code_reduce(code)
        args = tuple(code.co_filename if arg == _DYNAMIC else arg for arg in args)
        source = sources.of_cell(code.co_filename)
        if source is None:
            return constructor, args
        return _make_code, (args, code.co_filename, source)


class CallPickler(Pickler):
    """Kernel to worker."""

    further_reducers = standins.CALL_REDUCERS

    def __init__(self, file: IO[bytes], buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, buffer_callback)
        self._main = vars(sys.modules["__main__"])
        self.globals_ref[id(self._main)] = _MainGlobals()

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        if isinstance(obj, type) and reduced[5] is _cp._class_setstate:
            self.classes.append(obj)
            return (*reduced[:5], _set_main_class_state if self._is_in_main(obj) else _set_class_state)
        if isinstance(obj, types.FunctionType) and self._is_in_main(obj):
            return (*reduced[:5], _set_main_function_state)
        return reduced

    def _is_in_main(self, obj: Any) -> bool:
        """Whether the kernel has it in ``__main__`` under its own name, where pickle looks it up."""
        return obj.__module__ == "__main__" and self._main.get(obj.__qualname__) is obj


class ResultPickler(Pickler):
    """Worker to kernel."""

    further_reducers = standins.RESULT_REDUCERS
    to_cpu = True

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            tracker_id = _cp._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(obj)
            if tracker_id in _classes_from_kernel:
                return _kernel_class, (tracker_id, obj.__qualname__)
        return super().reducer_override(obj)


class _MainGlobals(dict[str, Any]):
    """Stands for ``__main__``'s namespace in a pickle stream."""

    def __init__(self) -> None:
        super().__init__(__name__="__main__")  # not empty, or cloudpickle would fill it

    def __reduce__(self) -> Any:
        return _main_globals, ()


def _reduce_exception(error: BaseException) -> Any:
    if not _needs_help(type(error)):
        return NotImplemented
    state = dict(vars(error))
    return _rebuild_exception, (type(error), error.args), state, None, None, _set_exception_state


# --- the reader's side ------------------------------------------------------------------------

_classes_from_kernel: set[str] = set()
"""In a worker: tracker ids of classes that the kernel sent."""


_of_thread = threading.local()


def use_globals(namespace: dict[str, Any]) -> None:
    """What the calling thread loads gets this namespace instead of ``__main__``'s.

    Ranks that share a process would otherwise rebind each other's names.
    """
    _of_thread.globals = namespace


def _main_globals() -> dict[str, Any]:
    own: dict[str, Any] | None = getattr(_of_thread, "globals", None)
    return vars(sys.modules["__main__"]) if own is None else own


def _define(name: str, value: Any) -> None:
    """Let ``value`` be found under its name: by the code that uses it, and by pickle in ``__main__``."""
    _main_globals()[name] = value
    if _main_globals() is not vars(sys.modules["__main__"]):
        vars(sys.modules["__main__"]).setdefault(name, value)


def _make_code(args: tuple[Any, ...], filename: str, source: str) -> types.CodeType:
    sources.remember(filename, source)
    return types.CodeType(*args)


def _set_class_state(cls: type, state: tuple[Any, Any]) -> type:
    """What cloudpickle does, and a note that the kernel has this class."""
    if (
        hasattr(_of_thread, "globals")
        and _cp._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls) in _classes_from_kernel
    ):
        return cls  # another rank of this process has it already, and may be using it
    _cp._class_setstate(cls, state)
    _classes_from_kernel.add(_cp._get_or_create_tracker_id(cls))
    sources.teach_inspect()
    return cls


def _set_main_class_state(cls: type, state: tuple[Any, Any]) -> type:
    # First of all: what its state brings along may look it up.
    _define(cls.__name__, cls)
    return _set_class_state(cls, state)


def _set_main_function_state(function: types.FunctionType, state: tuple[Any, Any]) -> None:
    _cp._function_setstate(function, state)
    _define(function.__name__, function)


def _kernel_class(tracker_id: str, name: str) -> type:
    found = _cp._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
    if found is None:
        raise pickle.UnpicklingError(f"class {name} no longer exists in this process")
    return found  # type: ignore[no-any-return]


def _rebuild_exception(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = cls.__new__(cls, *args)
    # What the class's own __init__ handed up to it; attributes follow as state.
    _builtin_base(cls).__init__(error, *args)
    return error


def _set_exception_state(error: BaseException, state: dict[str, Any]) -> None:
    vars(error).update(state)  # not by setattr, which the class may refuse: a frozen dataclass


# --- helpers ----------------------------------------------------------------------------------


def _with_slots(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """A class that is sent by value is made with its slots: cloudpickle would give instances a dict."""
    slots = cls.__dict__["__slots__"]
    # typing.NamedTuple makes its own empty ones, and doesn't want to be told.
    if not slots or len(reduced) != 6 or reduced[0] is not _cp._make_skeleton_class:
        return reduced
    metaclass, name, bases, namespace, *more = reduced[1]
    members, further = reduced[2]
    members = {
        key: value
        for key, value in members.items()
        if not isinstance(value, types.MemberDescriptorType)  # left in where the name is a private one
    }
    namespace = {**namespace, "__slots__": slots}
    return (reduced[0], (metaclass, name, bases, namespace, *more), (members, further), *reduced[3:])


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _needs_help(cls: type[BaseException]) -> bool:
    """Whether pickle's own way, ``cls(*args)``, would call an ``__init__`` that takes something else."""
    base = _builtin_base(cls)
    return cls.__init__ is not base.__init__ and cls.__reduce__ is base.__reduce__
