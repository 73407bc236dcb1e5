"""Objects of daily notebook life that pickle can't send, and what goes in their place.

One table, by the name of the class, so that nothing is imported to find out that it isn't used.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import sys
from collections.abc import Callable
from typing import Any

_UNWRAP = (
    "it belongs to the process group of the process that made it; "
    "send the model inside instead: accelerator.unwrap_model(model), or model.module"
)


def reduce_lru_cache(wrapper: Any) -> Any:
    """A function under ``functools.cache`` or ``lru_cache``: without what it has cached."""
    if is_importable(wrapper):
        return NotImplemented
    state = {name: value for name, value in vars(wrapper).items() if name != "__wrapped__"}
    return _make_lru_cache, (wrapper.__wrapped__, wrapper.cache_parameters()), state, None, None, _update


def reduce_cached_property(prop: Any) -> Any:
    """It holds a lock up to Python 3.11."""
    return _make_cached_property, (prop.func, prop.attrname)


def reduce_weak_dict(mapping: Any) -> Any:
    """A dictionary with weak keys or values (``functools.singledispatch`` has one): what is alive now."""
    return type(mapping), (dict(mapping),)


def reduce_loader(loader: Any) -> Any:
    """A DataLoader whose worker processes run: they are its maker's, and are started anew."""
    if getattr(loader, "_iterator", None) is None:
        return NotImplemented
    return _make_bare, (type(loader), {**vars(loader), "_iterator": None})


def reduce_script_module(module: Any) -> Any:
    """A TorchScript module in its own format."""
    import torch

    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return _load_script_module, (buffer.getvalue(),)


def reduce_ipython_exit(_: Any) -> Any:
    """``exit`` and ``quit`` of a notebook hold the shell; a worker has Python's."""
    return getattr, (builtins, "exit")


def reduce_method(method: Any) -> Any:
    """A notebook's ``get_ipython`` is a method of its shell."""
    if method.__name__ != "get_ipython" or "IPython" not in sys.modules:
        return NotImplemented
    return getattr, (importlib.import_module("IPython.core.getipython"), "get_ipython")


def refuse_wrapped_model(model: Any) -> Any:
    """A model in a wrapper of a running process group."""
    raise TypeError(f"cannot pickle a {type(model).__name__}: {_UNWRAP}")


def refuse_sharded_model(model: Any) -> Any:
    """A model of which each process holds a piece."""
    raise TypeError(
        f"cannot pickle a {type(model).__name__}: each process holds only a piece of it; "
        "send its weights instead: accelerator.get_state_dict(model)"
    )


def reduce_wrapped_model(model: Any) -> Any:
    """On the way home a wrapper of the worker's process group is taken off."""
    return _same, (model.module,)


REDUCERS: dict[str, Callable[[Any], Any]] = {
    "functools._lru_cache_wrapper": reduce_lru_cache,
    "functools.cached_property": reduce_cached_property,
    "weakref.WeakKeyDictionary": reduce_weak_dict,
    "weakref.WeakValueDictionary": reduce_weak_dict,
    "torch.utils.data.dataloader.DataLoader": reduce_loader,
    "torch.jit._script.ScriptModule": reduce_script_module,
    "builtins.method": reduce_method,
    "IPython.core.autocall.ExitAutocall": reduce_ipython_exit,
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": refuse_sharded_model,
}
"""Class, subclasses included, to reducer; in both directions."""

CALL_REDUCERS: dict[str, Callable[[Any], Any]] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": refuse_wrapped_model,
}
"""Further ones from the kernel to a worker."""

RESULT_REDUCERS: dict[str, Callable[[Any], Any]] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": reduce_wrapped_model,
}
"""Further ones on the way home."""


def standard_streams() -> dict[int, Any]:
    """The output streams in use, by identity: a notebook's hold its sockets, and the reader has its own."""
    return {id(getattr(sys, name)): (getattr, (sys, name)) for name in ("stdout", "stderr")}


def is_importable(obj: Any) -> bool:
    """Whether the reader can import ``obj`` by its name."""
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or getattr(module, "__spec__", None) is None:
        return False
    found: Any = module
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is obj


# --- the reader's side ------------------------------------------------------------------------


def _make_lru_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _make_cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    prop = functools.cached_property(function)
    if name is not None:
        prop.attrname = name
    return prop


def _make_bare(cls: type, attributes: dict[str, Any]) -> Any:
    made: Any = object.__new__(cls)
    made.__dict__.update(attributes)
    return made


def _load_script_module(content: bytes) -> Any:
    import torch

    return torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]


def _update(obj: Any, state: dict[str, Any]) -> None:
    obj.__dict__.update(state)


def _same(obj: Any) -> Any:
    return obj
