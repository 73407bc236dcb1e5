"""Checks of what a caller passes to a launch: each bad value is an error before anything starts.

The kind of the exception follows Python's own rule: a wrong type is a ``TypeError``, a wrong value of
the right type a ``ValueError``. Each message names the value, the reason and the remedy. What the values
mean together with the machine is :mod:`nbaccel.launch.request.resolve`'s.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from nbaccel.launch.devices import IDLE
from nbaccel.launch.request.values import as_index, shown
from nbaccel.runtime import environment

_OWN_NAMES = (
    environment.RANK,
    environment.LOCAL_RANK,
    environment.WORLD_SIZE,
    environment.LOCAL_WORLD_SIZE,
    environment.MASTER_ADDR,
    environment.MASTER_PORT,
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
)


def check_call(function: object, args: object, kwargs: object = None) -> None:
    """Refuse what can't be called with these arguments.

    Raises:
        TypeError: ``function`` isn't callable or is a coroutine function, ``args`` isn't a tuple or
            list, ``kwargs`` isn't a mapping with names as keys, or they don't fit the signature.
    """
    if not callable(function):
        raise TypeError(
            f"function={shown(function)} can't be called; pass the function itself: "
            "notebook_launcher(train, args=(...)), not notebook_launcher(train(...))"
        )
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"function={shown(function)} is a coroutine function, which nobody would await; "
            "launch a function that calls asyncio.run(...)"
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args={shown(args)} is not a tuple or list; for a single argument write a one-element tuple, "
            f"args=({shown(args)},)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs={shown(kwargs)} is not a mapping; write kwargs={{'name': value}}")
    bad = [key for key in kwargs or () if not isinstance(key, str)]
    if bad:
        raise TypeError(f"kwargs has the key {shown(bad[0])}, which is no name; use texts as keys")
    _check_signature(function, args, kwargs or {})


def _check_signature(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    # Only where the signature can't lie: a plain function tells by its code what it takes.
    inner = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(inner, FunctionType) or hasattr(inner, "__signature__"):
        return
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError as error:
        given = f"args={shown(tuple(args))}" + (f", kwargs={shown(dict(kwargs))}" if kwargs else "")
        raise TypeError(
            f"{inner.__name__}{_shown_signature(function)} can't be called with {given}: {error}"
        ) from None


def check_env(env: object) -> dict[str, str]:
    """The further environment variables of the workers, as texts.

    Raises:
        TypeError: it isn't a mapping, or a name or value isn't a text, number or path.
        ValueError: a name or value that no environment can hold, or a name that the launcher sets.
    """
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env={shown(env)} is not a mapping; write env={{'NAME': 'value'}}")
    checked: dict[str, str] = {}
    for name, value in env.items():
        if not isinstance(name, str):
            raise TypeError(f"env has the name {shown(name)}, which is no text; write {str(name)!r}")
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"env has the name {name!r}; names can't be empty, nor hold '=' or a zero byte")
        if name in _OWN_NAMES:
            raise ValueError(
                f"env sets {name}={shown(value)}, but the launcher sets {name} for each process itself; "
                "leave it out (see num_processes, num_nodes, node_rank, master_addr, use_port)"
            )
        checked[name] = _environment_text(name, value)
    return checked


def check_devices(devices: object) -> tuple[int, ...] | str | None:
    """Device numbers as a tuple, ``"idle"`` or None.

    Raises:
        TypeError: it is none of these.
        ValueError: another word, or an empty list.
    """
    if devices is None:
        return None
    if isinstance(devices, str):
        if devices.lower() == "cpu":
            raise ValueError(f"devices={devices!r} names no accelerators; for the CPU write cpu=True")
        if devices != IDLE:
            raise ValueError(
                f"devices={devices!r} is not known; write {IDLE!r}, or a list of numbers, e.g. devices=[0, 2]"
            )
        return devices
    if as_index(devices) is not None:
        raise TypeError(f"devices={devices!r} is a number; write a list, devices=[{devices!r}]")
    if not isinstance(devices, (Sequence, range)) or isinstance(devices, (bytes, bytearray)):
        raise TypeError(
            f"devices={shown(devices)} is not a list of numbers; write e.g. devices=[0, 2], or {IDLE!r}"
        )
    ids = [as_index(number) for number in devices]
    wrong = [given for given, number in zip(devices, ids, strict=True) if number is None]
    if wrong:
        raise TypeError(
            f"devices={shown(devices)} holds {shown(wrong[0])}, which is no whole number; "
            "write e.g. devices=[0, 2]"
        )
    if not ids:
        raise ValueError("devices=[] names no device; leave devices out, or pass cpu=True")
    return tuple(number for number in ids if number is not None)


def _environment_text(name: str, value: object) -> str:
    if not isinstance(value, (str, int, float, os.PathLike)):
        raise TypeError(
            f"env sets {name}={shown(value)}, which is no text, number or path; "
            "write the text that the workers shall see, or leave the name out"
        )
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if "\0" in text:
        raise ValueError(f"env sets {name}={shown(value)}; no environment can hold a zero byte: remove it")
    return text


def _shown_signature(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function, follow_wrapped=False))
