"""Where processes of several machines wait for each other before user code runs.

Without it the first collective is the first sign of a machine that doesn't come, and it waits for half an
hour without a word on which one. Only sockets and the store are asked here, in short looks, so that an
interrupt gets through and nothing is written by the libraries below.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from nbaccel.errors import LaunchTimeout
from nbaccel.runtime.environment import MASTER_ADDR, MASTER_PORT, ProcessEnvironment
from nbaccel.runtime.process_group import rendezvous_store

LOOK_S = 0.05
"""Between two looks at who has come."""

NOTICE_S = 5.0
"""After this long a line says who is waited for."""

_HERE = "nbaccel/here"
_SEEN = "nbaccel/seen"


def wait_for_machines(env: ProcessEnvironment, timeout: float) -> None:
    """Return when every rank of every machine has come to the store.

    Ranks of the first machine, where the store lives, also wait until the others have seen it: their
    function may return at once, and the store goes with it.

    Args:
        env: this process's place; ``local_world_size`` is the same on every machine.
        timeout: seconds to wait.

    Raises:
        LaunchTimeout: nobody listens at the address, or machines are missing; names which.
    """
    where = f"{os.environ[MASTER_ADDR]}:{os.environ[MASTER_PORT]}"
    deadline = time.monotonic() + timeout
    _wait_until_somebody_listens(env, where, timeout, deadline)
    store = rendezvous_store(env, timedelta(seconds=timeout))
    ranks = range(env.world_size)
    store.set(f"{_HERE}/{env.rank}", "")
    notice_at = time.monotonic() + NOTICE_S
    while not store.check([f"{_HERE}/{rank}" for rank in ranks]):
        now = time.monotonic()
        if now >= deadline:
            raise LaunchTimeout(
                f"{_missing(store, env)} not come to {where} within {timeout:g} s; start the same launch "
                "there with its node_rank, and check that it reaches this address and port",
                rank=env.rank,
            )
        if now >= notice_at and env.local_rank == 0:
            _say(f"waiting at {where}: {_missing(store, env)} not come")
            notice_at = float("inf")
        time.sleep(LOOK_S)
    store.set(f"{_SEEN}/{env.rank}", "")
    if env.rank < env.local_world_size:
        others = [f"{_SEEN}/{rank}" for rank in ranks[env.local_world_size :]]
        while not store.check(others) and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def _wait_until_somebody_listens(
    env: ProcessEnvironment, where: str, timeout: float, deadline: float
) -> None:
    address, port = os.environ[MASTER_ADDR], int(os.environ[MASTER_PORT])
    notice_at = time.monotonic() + NOTICE_S
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((address, port), timeout=max(LOOK_S, left)).close()
        except OSError as error:
            now = time.monotonic()
            if now >= deadline:
                raise LaunchTimeout(
                    f"nobody answered at {where} within {timeout:g} s ({error}); start the launch on the "
                    "first machine, and check master_addr, use_port and the firewall",
                    rank=env.rank,
                ) from None
            if now >= notice_at and env.local_rank == 0:
                _say(f"nobody answers at {where} yet ({error})")
                notice_at = float("inf")
            time.sleep(LOOK_S)
        else:
            return


def _missing(store: TCPStore, env: ProcessEnvironment) -> str:
    """Which machines lack ranks, counted from 0, and how many are whole: the start of a sentence."""
    size = env.local_world_size
    machines = env.world_size // size
    missing = [
        machine
        for machine in range(machines)
        if not store.check([f"{_HERE}/{rank}" for rank in range(machine * size, (machine + 1) * size)])
    ]
    names = ", ".join(map(str, missing))
    come = machines - len(missing)
    if len(missing) == 1:
        return f"{come} of {machines} machines are here, machine {names} has"
    return f"{come} of {machines} machines are here, machines {names} have"


def _say(text: str) -> None:
    sys.stderr.write(f"nbaccel: {text}\n")
    sys.stderr.flush()
