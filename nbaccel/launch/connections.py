"""Connections between the workers of a group, and how to cut them.

A rank that waits in a collective sits in C and sees no signal. It is freed when its connection is
shut down, by itself from another thread or by its peer, even while models hold on to the process
group. Which connections those are only the kernel can tell, who knows all workers: those of which
both ends are workers of the group. Others (to the store, to a tracker, to a server) are left alone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil


def between_workers(pids: Iterable[int]) -> Mapping[int, frozenset[tuple[int, int]]]:
    """For each worker its connections with the others, or with itself: local and remote port.

    Args:
        pids: processes of the group on this machine.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for pid in pids:
        found[pid] = []
        with suppress(psutil.Error):  # it has ended: it has none
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.raddr and connection.status == psutil.CONN_ESTABLISHED:
                    found[pid].append((connection.laddr.port, connection.raddr.port))
    ends = {pair for pairs in found.values() for pair in pairs}
    return {
        pid: frozenset(pair for pair in pairs if (pair[1], pair[0]) in ends) for pid, pairs in found.items()
    }


def sever(connections: frozenset[tuple[int, int]]) -> None:
    """Shut down those sockets of this process that are such connections. Their owners close them."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # closed since it was listed
        with duplicate:
            try:
                pair = (duplicate.getsockname()[1], duplicate.getpeername()[1])
                if duplicate.family in (socket.AF_INET, socket.AF_INET6) and pair in connections:
                    duplicate.shutdown(socket.SHUT_RDWR)
            except (OSError, IndexError):
                continue  # listens, isn't an internet socket, or was cut by the other end already
