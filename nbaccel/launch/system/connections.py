"""Connections between the workers of a group, and how to cut them.

A rank that waits in a collective sits in C and sees no signal. It is freed when its connection is
shut down, by itself from another thread or by its peer, even while models hold on to the process
group. Which connections those are only the kernel can tell, who knows all workers: those of which
both ends are workers of the group. Others (to the store, to a tracker, to a server) are left alone.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

from nbaccel.launch.system import process


def between_workers(pids: Iterable[int]) -> Mapping[int, frozenset[tuple[int, int]]]:
    """For each worker its connections with the others, or with itself: local and remote port.

    Args:
        pids: processes of the group on this machine.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for pid in pids:
        found[pid] = []
        with suppress(psutil.Error):  # it has ended: it has none
            owner = psutil.Process(pid)
            # psutil 5.9, which hosted notebooks have, knows it by its old name only.
            listed = getattr(owner, "net_connections", None) or owner.connections
            for connection in listed("tcp"):
                if connection.raddr and connection.status == psutil.CONN_ESTABLISHED:
                    found[pid].append((connection.laddr.port, connection.raddr.port))
    ends = {pair for pairs in found.values() for pair in pairs}
    return {
        pid: frozenset(pair for pair in pairs if (pair[1], pair[0]) in ends) for pid, pairs in found.items()
    }


def sever(connections: frozenset[tuple[int, int]]) -> None:
    """Shut down those sockets of this process that are such connections. Their owners close them."""
    for number in process.socket_numbers():
        try:
            # A duplicate, where there is such a thing: the number may be given out again meanwhile.
            ours = number if sys.platform == "win32" else os.dup(number)
        except OSError:
            continue  # closed since it was listed
        try:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=ours)
        except OSError:
            if ours != number:
                os.close(ours)
            continue  # no socket
        try:
            # A listening socket has no peer, and addresses of other families have no port in second place.
            pair = (connection.getsockname()[1], connection.getpeername()[1])
            if pair in connections:
                connection.shutdown(socket.SHUT_RDWR)
        except (OSError, IndexError):
            continue  # it isn't connected, or was cut by the other end already
        finally:
            if ours == number:
                connection.detach()
            else:
                connection.close()
