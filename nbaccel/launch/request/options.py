"""How a launch is carried out: checks of the options that have nothing to do with the machine's devices."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass

from nbaccel.config import OUTPUT_MODES, RENDEZVOUS_BACKENDS, START_METHODS
from nbaccel.launch.request.values import as_index, choice, number, shown, whole_number

RETURNS = ("main", "all")
"""Choices of ``returns``."""

DEFAULT_ADDRESS = "127.0.0.1"
"""``master_addr`` when nothing is said."""

LABEL_MACROS = ("role_name", "rank", "local_rank")
"""What ``log_line_prefix_template`` may name, as in torch's elastic agent."""

_ROLE = "default"  # what torch's agent calls workers that nobody named


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
        raise TypeError(f"rdzv_conf={shown(rdzv_conf)} is not a mapping; leave it out")
    if not isinstance(rdzv_id, (str, int)):
        raise TypeError(f"rdzv_id={shown(rdzv_id)} is not a text; leave it out")
    _check_backend(rdzv_backend, num_nodes)
    number("monitor_interval", monitor_interval, at_least=0.0)
    address, port = _rendezvous(master_addr, use_port, rdzv_endpoint)
    return LaunchOptions(
        start_method=choice("start_method", start_method, START_METHODS),
        output=choice("output", output, OUTPUT_MODES),
        returns=choice("returns", returns, RETURNS),
        timeout=check_timeout(timeout),
        max_restarts=whole_number("max_restarts", max_restarts, at_least=0),
        master_addr=address,
        port=port,
        label_template=_label_template(log_line_prefix_template),
    )


def _rendezvous(master_addr: object, use_port: object, endpoint: object) -> tuple[str, int | None]:
    address = _address("master_addr", master_addr)
    port = _port("use_port", use_port)
    if not isinstance(endpoint, str):
        raise TypeError(f"rdzv_endpoint={shown(endpoint)} is not a text; write rdzv_endpoint='host:29500'")
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
    text = shown(value if whole is None else whole)
    if not isinstance(value, str):
        raise TypeError(f"{name}={text} is not a text; write the first machine's name or address")
    if not value or any(sign.isspace() or sign == "/" for sign in value):
        raise ValueError(
            f"{name}={text} is not a host; write the first machine's name or address, e.g. '10.0.0.1'"
        )
    return value


def _port(name: str, value: object, *, whole: str | None = None) -> int | None:
    text = shown(value if whole is None else whole)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    port = as_index(value)
    if port is None:
        if not isinstance(value, str):
            raise TypeError(f"{name}={text} is not a port number; write e.g. 29500, or leave it out")
        port = int(value) if value.strip().isdecimal() else -1
    if port == 0:
        return None
    if not 0 < port < 65536:
        raise ValueError(f"{name}={text} is not a port number, 1 to 65535; leave it out to take a free one")
    return port


def _check_backend(value: object, num_nodes: object) -> None:
    backend = choice("rdzv_backend", value, RENDEZVOUS_BACKENDS)
    if backend != "static" and num_nodes not in (None, 1):
        raise ValueError(
            f"rdzv_backend={backend!r} and num_nodes={shown(num_nodes)} don't go together: each machine is "
            "told its place by node_rank; use rdzv_backend='static'"
        )


def check_timeout(value: object) -> float | None:
    if value is None:
        return None
    seconds = number("timeout", value, at_least=-math.inf)
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
        raise TypeError(f"log_line_prefix_template={shown(value)} is not a text; it may name {known}")
    template = string.Template(value)
    strange = [name for name in template.get_identifiers() if name not in LABEL_MACROS]
    if not template.is_valid() or strange or "\n" in value:
        what = f"${{{strange[0]}}} in it is not known" if strange else "it is no one-line template"
        raise ValueError(
            f"log_line_prefix_template={value!r}: {what}; it may name {known}, and a plain $ is written $$"
        )
    return value
