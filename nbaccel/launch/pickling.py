"""Pickling by cloudpickle with the rules of the launcher.

* Functions keep the file name of their code, and the source of notebook cells travels along, so a
  traceback in a worker shows the line of the cell.
* Functions of the kernel's ``__main__`` get the worker's ``__main__`` as their globals, so that
  DataLoader workers, ``torch.save`` and ``pickle`` find notebook classes there.
* CPU tensors hand out their storage as a buffer; views of one storage stay views of one storage.
  Tensors of an accelerator travel as CPU copies.
* On the way home a class that came from the kernel is named, not copied: the kernel resolves it to
  its own class, which is never written to.
"""

from __future__ import annotations

import ctypes
import linecache
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import cloudpickle
from cloudpickle import cloudpickle as _cp

# ruff: noqa: SLF001
# Where cloudpickle leaves a rule to be changed, its private reducers are what a rule is made of; each
# use is covered by a test, so that a release that renames one is noticed.

_DYNAMIC = "<dynamic-code>"


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The rules that hold in both directions."""

    def __init__(self, file: IO[bytes], buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.modules: set[str] = set()
        """Modules that the reader will import."""
        self._storages: dict[int, tuple[_Storage, Any]] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            return self._reduce_code(obj)
        if isinstance(obj, types.ModuleType):
            self.modules.add(obj.__name__)
        elif isinstance(obj, (type, types.FunctionType)):
            module = getattr(obj, "__module__", None)
            if isinstance(module, str):
                self.modules.add(module)
        if isinstance(obj, BaseException) and _needs_help(type(obj)):
            return _rebuild_exception, (type(obj), obj.args), dict(vars(obj))
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor:
            reduced = self._reduce_tensor(obj, torch)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)

    # --- code ---------------------------------------------------------------------------------

    def _reduce_code(self, code: types.CodeType) -> Any:
        constructor, args = _cp._code_reduce(code)
        args = tuple(code.co_filename if arg == _DYNAMIC else arg for arg in args)
        source = _cell_source(code.co_filename)
        if source is None:
            return constructor, args
        return _make_code, (args, code.co_filename, source)

    # --- tensors ------------------------------------------------------------------------------

    def _reduce_tensor(self, tensor: Any, torch: Any) -> Any:
        plain = (
            tensor.layout is torch.strided
            and not tensor.is_quantized
            and not tensor.is_conj()
            and not tensor.is_neg()
            and not tensor._backward_hooks
            and not tensor.__dict__
            and tensor.device.type != "meta"
        )
        if not plain:
            return NotImplemented  # torch's own way: right, only slower
        if tensor.device.type != "cpu":
            return _tensor_to_device, (tensor.detach().cpu(), self._home_of(tensor), tensor.requires_grad)
        storage = tensor.untyped_storage()
        if storage.nbytes() and not storage.data_ptr():
            return NotImplemented
        key = storage.data_ptr() or id(tensor)
        if key not in self._storages:
            # The storage object is kept too, so that its memory can't be given to another one.
            self._storages[key] = (_Storage(storage), storage)
        return _rebuild_tensor, (
            self._storages[key][0],
            str(tensor.dtype).removeprefix("torch."),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.requires_grad,
        )

    def _home_of(self, _tensor: Any) -> str:
        """Device type on which the reader puts a tensor of an accelerator."""
        return "cpu"


class CallPickler(Pickler):
    """Kernel to worker."""

    def __init__(self, file: IO[bytes], buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, buffer_callback)
        main = sys.modules["__main__"]
        self.globals_ref[id(vars(main))] = _MainGlobals()
        self.classes: list[type] = []
        """Classes shipped by value; kept alive until the results are home."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and not _by_reference(obj):
            self.classes.append(obj)
            return _with_own_state_setter(reduced)
        return reduced

    def _home_of(self, tensor: Any) -> str:
        return str(tensor.device.type)


class ResultPickler(Pickler):
    """Worker to kernel."""

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


class _Storage:
    """Pickles the memory of one tensor storage as an out-of-band buffer."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __reduce__(self) -> Any:
        nbytes = self._storage.nbytes()
        if nbytes == 0:
            return _rebuild_storage, (b"",)
        memory = (ctypes.c_char * nbytes).from_address(self._storage.data_ptr())
        return _rebuild_storage, (pickle.PickleBuffer(memory),)


# --- the reader's side ------------------------------------------------------------------------

_classes_from_kernel: set[str] = set()
"""In a worker: tracker ids of classes that the kernel shipped."""


def _main_globals() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _make_code(args: tuple[Any, ...], filename: str, source: str) -> types.CodeType:
    if filename not in linecache.cache and not Path(filename).exists():
        # No modification time: an entry that linecache.checkcache() must leave alone.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return types.CodeType(*args)


def _set_class_state(cls: type, state: tuple[Any, Any]) -> type:
    """What cloudpickle does, a note that the kernel has this class, and its place in ``__main__``."""
    _cp._class_setstate(cls, state)
    _classes_from_kernel.add(_cp._get_or_create_tracker_id(cls))
    if cls.__module__ == "__main__" and "." not in cls.__qualname__:
        vars(sys.modules["__main__"])[cls.__name__] = cls  # where pickle looks it up
    return cls


def _kernel_class(tracker_id: str, name: str) -> type:
    found = _cp._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
    if found is None:
        raise pickle.UnpicklingError(f"class {name} no longer exists in this process")
    return found  # type: ignore[no-any-return]


def _rebuild_storage(buffer: Any) -> Any:
    import torch

    if len(buffer) == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _rebuild_tensor(
    storage: Any,
    dtype: str,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    import torch

    tensor = torch.empty(0, dtype=getattr(torch, dtype)).set_(storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor


def _tensor_to_device(tensor: Any, device_type: str, requires_grad: bool) -> Any:
    import torch

    if device_type != "cpu" and getattr(torch, device_type).is_available():
        tensor = tensor.to(device_type)  # the current device, which the worker has set to its own
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor


def _rebuild_exception(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = cls.__new__(cls, *args)
    # What the class's own __init__ handed up to it; attributes follow as state.
    _builtin_base(cls).__init__(error, *args)
    return error


# --- helpers ----------------------------------------------------------------------------------


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _needs_help(cls: type[BaseException]) -> bool:
    """Whether pickle's own way, ``cls(*args)``, would call an ``__init__`` that takes something else."""
    base = _builtin_base(cls)
    return cls.__init__ is not base.__init__ and cls.__reduce__ is base.__reduce__


def _by_reference(cls: type) -> bool:
    return bool(_cp._should_pickle_by_reference(cls))


def _with_own_state_setter(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(reduced) == 6 and reduced[5] is _cp._class_setstate:
        return (*reduced[:5], _set_class_state)
    return reduced


def _cell_source(filename: str) -> str | None:
    """Source of a notebook cell: in :mod:`linecache`, but not a file that the worker can read."""
    entry = linecache.cache.get(filename)
    if entry is None or len(entry) != 4 or Path(filename).exists():
        return None
    return "".join(entry[2])


def explain(obj: Any, error: Exception) -> TypeError:
    """A TypeError that says what can't be pickled and where it was found."""
    from nbaccel.launch.unpicklable import find

    found = find(obj)
    reason = f"{type(error).__name__}: {error}" if found is None else found
    return TypeError(f"can't be sent to another process: {reason}")
