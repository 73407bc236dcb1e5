"""Checks of what a caller passes to a launch: each bad value is an error before anything starts.

The kind of the exception follows Python's own rule: a wrong type is a ``TypeError``, a wrong value of
the right type a ``ValueError``. Each message names the value, the reason and the remedy. What the values
mean together with the machine is :mod:`nbaccel.launch.resolve`'s.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import os
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from nbaccel.launch import spawners
from nbaccel.launch.devices import IDLE
from nbaccel.launch.output import MODES as OUTPUT_MODES
from nbaccel.runtime import environment

RETURNS = ("main", "all")
"""Choices of ``returns``."""

RENDEZVOUS_BACKENDS = ("static", "c10d")
"""Choices of ``rdzv_backend``; on one machine they mean the same."""

DEFAULT_ADDRESS = "127.0.0.1"
"""``master_addr`` when nothing is said."""

LABEL_MACROS = ("role_name", "rank", "local_rank")
"""What ``log_line_prefix_template`` may name, as in torch's elastic agent."""

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
_ROLE = "default"  # what torch's agent calls workers that nobody named
_MAX_SHOWN = 60


@dataclass(frozen=True)
class LaunchOptions:
    """How a launch is carried out, checked; what it runs on is the :class:`~nbaccel.config.LaunchSpec`."""

    start_method: str = "auto"
    output: str = "all"
    returns: str = "main"
    timeout: float | None = None
    """Seconds; None for no limit."""
    max_restarts: int = 0
    master_addr: str = DEFAULT_ADDRESS
    port: int | None = None
    """None: a free one."""
    label_template: str | None = None
    """What stands before each line; None: the usual ``[rank 1] `` where there are several."""

    def labels(self, ranks: range) -> dict[int, str] | None:
        """What stands before the lines of each of this machine's ranks; None: the usual."""
        if self.label_template is None:
            return None
        template = string.Template(self.label_template)
        return {
            rank: template.substitute(role_name=_ROLE, rank=rank, local_rank=local_rank)
            for local_rank, rank in enumerate(ranks)
        }


def check_call(function: object, args: object, kwargs: object = None) -> None:
    """Refuse what can't be called with these arguments.

    Raises:
        TypeError: ``function`` isn't callable or is a coroutine function, ``args`` isn't a tuple or
            list, ``kwargs`` isn't a mapping with names as keys, or they don't fit the signature.
    """
    if not callable(function):
        raise TypeError(
            f"function={_shown(function)} can't be called; pass the function itself: "
            "notebook_launcher(train, args=(...)), not notebook_launcher(train(...))"
        )
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"function={_shown(function)} is a coroutine function, which nobody would await; "
            "launch a function that calls asyncio.run(...)"
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args={_shown(args)} is not a tuple or list; for a single argument write a one-element tuple, "
            f"args=({_shown(args)},)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs={_shown(kwargs)} is not a mapping; write kwargs={{'name': value}}")
    bad = [key for key in kwargs or () if not isinstance(key, str)]
    if bad:
        raise TypeError(f"kwargs has the key {_shown(bad[0])}, which is no name; use texts as keys")
    _check_signature(function, args, kwargs or {})


def _check_signature(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    # Only where the signature can't lie: a plain function tells by its code what it takes.
    inner = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(inner, FunctionType) or hasattr(inner, "__signature__"):
        return
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError as error:
        given = f"args={_shown(tuple(args))}" + (f", kwargs={_shown(dict(kwargs))}" if kwargs else "")
        raise TypeError(
            f"{inner.__name__}{_shown_signature(function)} can't be called with {given}: {error}"
        ) from None


def check_options(
    *,
    use_port: object = None,
    master_addr: object = DEFAULT_ADDRESS,
    num_nodes: object = 1,
    rdzv_backend: object = "static",
    rdzv_endpoint: object = "",
    rdzv_conf: object = None,
    rdzv_id: object = "none",
    max_restarts: object = 0,
    monitor_interval: object = 0.1,
    log_line_prefix_template: object = None,
    start_method: object = "auto",
    output: object = "all",
    returns: object = "main",
    timeout: object = None,
) -> LaunchOptions:
    """Check everything that says how to launch.

    Raises:
        TypeError: a value of the wrong type.
        ValueError: a value that is none of its choices or out of range, or two that contradict each
            other.
    """
    if rdzv_conf is not None and not isinstance(rdzv_conf, Mapping):
        raise TypeError(f"rdzv_conf={_shown(rdzv_conf)} is not a mapping; leave it out")
    if not isinstance(rdzv_id, (str, int)):
        raise TypeError(f"rdzv_id={_shown(rdzv_id)} is not a text; leave it out")
    _check_backend(rdzv_backend, num_nodes)
    _number("monitor_interval", monitor_interval, at_least=0.0)
    address, port = _rendezvous(master_addr, use_port, rdzv_endpoint)
    return LaunchOptions(
        start_method=_choice("start_method", start_method, spawners.START_METHODS),
        output=_choice("output", output, OUTPUT_MODES),
        returns=_choice("returns", returns, RETURNS),
        timeout=_timeout(timeout),
        max_restarts=whole_number("max_restarts", max_restarts, at_least=0),
        master_addr=address,
        port=port,
        label_template=_label_template(log_line_prefix_template),
    )


def check_env(env: object) -> dict[str, str]:
    """The further environment variables of the workers, as texts.

    Raises:
        TypeError: it isn't a mapping, or a name or value isn't a text, number or path.
        ValueError: a name or value that no environment can hold, or a name that the launcher sets.
    """
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"env={_shown(env)} is not a mapping; write env={{'NAME': 'value'}}")
    checked: dict[str, str] = {}
    for name, value in env.items():
        if not isinstance(name, str):
            raise TypeError(f"env has the name {_shown(name)}, which is no text; write {str(name)!r}")
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"env has the name {name!r}; names can't be empty, nor hold '=' or a zero byte")
        if name in _OWN_NAMES:
            raise ValueError(
                f"env sets {name}={_shown(value)}, but the launcher sets {name} for each process itself; "
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
        if devices != IDLE:
            raise ValueError(
                f"devices={devices!r} is not known; write {IDLE!r}, or a list of numbers, e.g. devices=[0, 2]"
            )
        return devices
    if _as_index(devices) is not None:
        raise TypeError(f"devices={devices!r} is a number; write a list, devices=[{devices!r}]")
    if not isinstance(devices, (Sequence, range)) or isinstance(devices, (bytes, bytearray)):
        raise TypeError(
            f"devices={_shown(devices)} is not a list of numbers; write e.g. devices=[0, 2], or {IDLE!r}"
        )
    ids = [_as_index(number) for number in devices]
    wrong = [given for given, number in zip(devices, ids, strict=True) if number is None]
    if wrong:
        raise TypeError(
            f"devices={_shown(devices)} holds {_shown(wrong[0])}, which is no whole number; "
            "write e.g. devices=[0, 2]"
        )
    if not ids:
        raise ValueError("devices=[] names no device; leave devices out, or pass cpu=True")
    return tuple(number for number in ids if number is not None)


def check_flag(name: str, value: object) -> bool:
    """True or False.

    Raises:
        TypeError: anything else; ``"false"`` would be true.
    """
    if not isinstance(value, bool):
        raise TypeError(
            f"{name}={_shown(value)} is neither True nor False; write {name}=True or leave it out"
        )
    return value


def whole_number(name: str, value: object, *, at_least: int) -> int:
    """``value`` as an int.

    Raises:
        TypeError: it isn't a whole number.
        ValueError: it is less than ``at_least``.
    """
    number = _as_index(value)
    if number is None:
        raise TypeError(f"{name}={_shown(value)} is not a whole number; write e.g. {name}={max(at_least, 2)}")
    if number < at_least:
        raise ValueError(f"{name}={number} is too small; it must be at least {at_least}")
    return number


# --- inside -----------------------------------------------------------------------------------------


def _rendezvous(master_addr: object, use_port: object, endpoint: object) -> tuple[str, int | None]:
    address = _address("master_addr", master_addr)
    port = _port("use_port", use_port)
    if not isinstance(endpoint, str):
        raise TypeError(f"rdzv_endpoint={_shown(endpoint)} is not a text; write rdzv_endpoint='host:29500'")
    if not endpoint:
        return address, port
    if endpoint.endswith(":"):
        raise ValueError(f"rdzv_endpoint={endpoint!r} ends without a port; add one, e.g. {endpoint}29500")
    host, separator, tail = endpoint.rpartition(":")
    if not separator or endpoint.endswith("]"):
        host, tail = endpoint, ""
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(
            f"rdzv_endpoint={endpoint!r}: which colon leads the port can't be told; write the address in "
            "brackets, e.g. '[::1]:29500'"
        )
    host = _address("rdzv_endpoint", host.removeprefix("[").removesuffix("]"), whole=endpoint)
    named_port = _port("rdzv_endpoint", tail, whole=endpoint)
    if address not in (DEFAULT_ADDRESS, host):
        raise ValueError(
            f"rdzv_endpoint={endpoint!r} and master_addr={address!r} contradict each other; leave one out"
        )
    if port is not None and named_port is not None and port != named_port:
        raise ValueError(
            f"rdzv_endpoint={endpoint!r} and use_port={use_port!r} contradict each other; leave one out"
        )
    return host, named_port if named_port is not None else port


def _address(name: str, value: object, *, whole: str | None = None) -> str:
    shown = _shown(value if whole is None else whole)
    if not isinstance(value, str):
        raise TypeError(f"{name}={shown} is not a text; write the first machine's name or address")
    if not value or any(sign.isspace() or sign == "/" for sign in value):
        raise ValueError(
            f"{name}={shown} is not a host; write the first machine's name or address, e.g. '10.0.0.1'"
        )
    return value


def _port(name: str, value: object, *, whole: str | None = None) -> int | None:
    shown = _shown(value if whole is None else whole)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    number = _as_index(value)
    if number is None:
        if not isinstance(value, str):
            raise TypeError(f"{name}={shown} is not a port number; write e.g. 29500, or leave it out")
        number = int(value) if value.strip().isdecimal() else -1
    if number == 0:
        return None
    if not 0 < number < 65536:
        raise ValueError(f"{name}={shown} is not a port number, 1 to 65535; leave it out to take a free one")
    return number


def _check_backend(value: object, num_nodes: object) -> None:
    backend = _choice("rdzv_backend", value, RENDEZVOUS_BACKENDS)
    if backend != "static" and num_nodes != 1:
        raise ValueError(
            f"rdzv_backend={backend!r} and num_nodes={_shown(num_nodes)} don't go together: each machine is "
            "told its place by node_rank; use rdzv_backend='static'"
        )


def _choice(name: str, value: object, choices: Sequence[str]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}={_shown(value)} is not a text; choose one of {', '.join(choices)}")
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; choose one of {', '.join(choices)}")
    return value


def _number(name: str, value: object, *, at_least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={_shown(value)} is not a number; write seconds, e.g. {name}=10")
    number = float(value)
    if math.isnan(number) or number < at_least:
        raise ValueError(f"{name}={value!r} must be a number of seconds, at least {at_least:g}")
    return number


def _timeout(value: object) -> float | None:
    if value is None:
        return None
    seconds = _number("timeout", value, at_least=-math.inf)
    if seconds <= 0:
        raise ValueError(
            f"timeout={value!r} leaves no time; write a positive number of seconds, or None for no limit"
        )
    return None if math.isinf(seconds) else seconds


def _label_template(value: object) -> str | None:
    if value is None:
        return None
    known = ", ".join(f"${{{macro}}}" for macro in LABEL_MACROS)
    if not isinstance(value, str):
        raise TypeError(f"log_line_prefix_template={_shown(value)} is not a text; it may name {known}")
    template = string.Template(value)
    strange = [name for name in template.get_identifiers() if name not in LABEL_MACROS]
    if not template.is_valid() or strange or "\n" in value:
        what = f"${{{strange[0]}}} in it is not known" if strange else "it is no one-line template"
        raise ValueError(
            f"log_line_prefix_template={value!r}: {what}; it may name {known}, and a plain $ is written $$"
        )
    return value


def _environment_text(name: str, value: object) -> str:
    if not isinstance(value, (str, int, float, os.PathLike)):
        raise TypeError(
            f"env sets {name}={_shown(value)}, which is no text, number or path; "
            "write the text that the workers shall see, or leave the name out"
        )
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if "\0" in text:
        raise ValueError(f"env sets {name}={_shown(value)}; no environment can hold a zero byte: remove it")
    return text


def _as_index(value: object) -> int | None:
    """Whole numbers of any library; True and False aren't meant."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _shown(value: object) -> str:
    """A value for a message, which must stay one that can be read."""
    if hasattr(value, "shape"):  # arrays and tensors print pages
        return f"<{type(value).__name__} of shape {tuple(value.shape)}>"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]} ..."


def _shown_signature(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function, follow_wrapped=False))
