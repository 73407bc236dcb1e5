"""The key-value store through which ranks find each other.

torch's ``TCPStore`` listens on all interfaces whatever address it is given, and a port that was
looked up and freed can be taken by somebody else before it is used. So the socket is bound here, to
the loopback interface when all ranks are on this machine, and handed to the store as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from nbaccel.launch.system import process

DEFAULT_MULTI_NODE_PORT = 29500

DESCRIPTORS_NEEDED = 16
"""That must be free. A store that finds none left tries again for half a minute, with a trace each time."""


@dataclass
class Rendezvous:
    """Where ranks meet; on the first node also the store itself."""

    address: str
    port: int
    store: Any
    loopback_only: bool

    def environ(self) -> dict[str, str]:
        """What a worker needs to meet its peers."""
        names = {
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            # Workers are clients: the store lives in the process that launches.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        interface = process.loopback_interface() if self.loopback_only else None
        if interface is not None:
            names["GLOO_SOCKET_IFNAME"] = interface
            names["NCCL_SOCKET_IFNAME"] = interface
        return names

    def close(self) -> None:
        """Stop listening."""
        self.store = None


def open_rendezvous(address: str, port: int | None, *, num_nodes: int, node_rank: int) -> Rendezvous:
    """Choose a port, and on the first node bring up the store.

    Args:
        address: address of the first node.
        port: port on the first node; None or 0 takes a free one (one node) or
            :data:`DEFAULT_MULTI_NODE_PORT`.
        num_nodes: machines that take part.
        node_rank: index of this one.

    Raises:
        OSError: the port is in use, or may not be bound; the message names it. Or this process may open
            no further files.
    """
    _check_descriptors()
    if num_nodes > 1 and not port:
        port = DEFAULT_MULTI_NODE_PORT
    if node_rank > 0:
        assert port is not None
        return Rendezvous(address, port, None, loopback_only=False)
    loopback_only = num_nodes == 1
    host = "127.0.0.1" if loopback_only else ""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # On Windows reuse would let two programs have the same port at once.
        if sys.platform == "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port or 0))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                error.errno,
                f"port {port} is in use on this machine; leave use_port out and a free one is taken",
            ) from None
        raise OSError(error.errno, f"port {port} can't be used: {error.strerror}") from None
    bound = listener.getsockname()[1]
    store = _serve_store(listener.detach(), bound)
    return Rendezvous(host or address, bound, store, loopback_only)


def _check_descriptors() -> None:
    with contextlib.ExitStack() as stack:
        try:
            for _ in range(DESCRIPTORS_NEEDED):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            raise OSError(
                error.errno,
                f"too few file descriptors are left to this process, a launch needs {DESCRIPTORS_NEEDED} or "
                "more: close files, restart the kernel, or raise the limit (ulimit -n)",
            ) from None


def _serve_store(listen_fd: int, port: int) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=listen_fd,
    )
