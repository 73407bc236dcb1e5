"""The default process group of this process: how it comes up, and how it ends without trapping a peer.

Four facts shape this module.

- ``torch.distributed.nn`` keeps the default group alive in the defaults of its functions when it is
  imported after the group was made, so it is imported first.
- A ``DistributedDataParallel`` model holds the group through its reducer, its logger and
  ``process_group``. Only when these are gone does destroying the group close its connections, and
  only closed connections free a peer that waits in a collective.
- A process that exits with a live gloo group aborts more often than not, so whoever brought the
  group up also ends it.
- gloo lets a rank go as soon as its own connections stand. One that then ends its group at once closes
  them on a peer that is still connecting, so no rank goes on before all are through.

It must never be imported by ``import nbaccel`` itself: it pulls in torch.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d

from nbaccel.runtime.collectives.objects import all_gather_object
from nbaccel.runtime.collectives.served import served_device_types
from nbaccel.runtime.environment import MASTER_ADDR, MASTER_PORT, ProcessEnvironment
from nbaccel.runtime.rank_local import RankLocal
from nbaccel.runtime.recovery import common_prefix

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
DEFAULT_TIMEOUT = timedelta(minutes=30)

_stores: dict[tuple[str, int], TCPStore] = {}
_generation = 0
_round: int | None = None
_made_here = False
_timeout = DEFAULT_TIMEOUT
_exit_hook = False


@runtime_checkable
class GroupUser(Protocol):
    """Something that holds the default group and can let go of it."""

    def release_group(self) -> None:
        """Drop every reference to the group. The object can't communicate until it is bound again."""

    def group_key(self) -> str:
        """A text that is the same for the same object on all ranks."""

    def rebind_group(self) -> None:
        """Take up the new default group. Collective: called on all ranks in the same order."""


_users: RankLocal[list[weakref.ref[GroupUser]]] = RankLocal(list)


def add_group_user(user: GroupUser) -> None:
    """Have ``user`` released when the group ends, and bound again when a new one comes up."""
    _users.get().append(weakref.ref(user))


def _live_users() -> list[GroupUser]:
    mine = _users.get()
    alive = [(ref, user) for ref in mine if (user := ref()) is not None]
    mine[:] = [ref for ref, _ in alive]
    return [user for _, user in alive]


def begin_round(number: int) -> None:
    """From now on groups meet under ``number``, which whoever supervises the ranks gives to all of them.

    Needed where ranks have failed at different places: they may have made different numbers of groups.
    """
    global _generation, _round
    _round = number
    _generation = 0


def is_initialized() -> bool:
    """Whether this process has a default process group."""
    return dist.is_available() and dist.is_initialized()


def ensure_process_group(
    env: ProcessEnvironment,
    device_type: str,
    timeout: timedelta | None = None,
    *,
    backend: str | None = None,
    init_method: str | None = None,
    device: torch.device | None = None,
) -> None:
    """Bring the default process group up, or keep the one there is.

    Rendezvous is over ``MASTER_ADDR`` and ``MASTER_PORT``. When ``TORCHELASTIC_USE_AGENT_STORE`` is
    ``True`` the launcher hosts the store and every rank is its client; otherwise rank 0 hosts it.
    A later call after :func:`shutdown_process_group` makes a fresh group over the same store.

    Args:
        env: rank and world size.
        device_type: what the ranks compute on; picks the backend when ``backend`` is None.
        timeout: of each collective; 30 minutes by default.
        backend: a torch backend name, e.g. ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``.
        init_method: a torch rendezvous URL, in place of the store above.
        device: the accelerator this rank is bound to, passed on to torch.

    Raises:
        RuntimeError: the group that is already up has another rank or world size than ``env``, or
            has no backend for ``device_type``; or no rendezvous address is set.
    """
    global _generation, _made_here, _timeout
    if is_initialized():
        _check_fits(env, device_type)
        return
    # First, see the module's text.
    import torch.distributed.nn  # noqa: F401

    chosen = backend or default_backend(device_type)
    wait = _timeout = timeout or DEFAULT_TIMEOUT
    bound = device if device is not None and device.type != "cpu" and chosen != "gloo" else None
    common = {"backend": chosen, "rank": env.rank, "world_size": env.world_size, "timeout": wait}
    if init_method not in (None, "env://"):
        dist.init_process_group(init_method=init_method, device_id=bound, **common)  # type: ignore[arg-type]
    else:
        base = rendezvous_store(env, wait)
        attempt = os.environ.get(RESTART_COUNT, "0") if _round is None else f"round {_round}"
        prefix = f"nbaccel/{attempt}/{_generation}"
        store = PrefixStore(prefix, base)
        dist.init_process_group(store=store, device_id=bound, **common)  # type: ignore[arg-type]
    _generation += 1
    _made_here = True
    _end_at_exit()
    _wait_until_all_are_connected(env, wait)
    if _live_users() or _round is not None:
        # In a round every rank takes part, whatever a failed cell left of users on it.
        rebind_users(all_gather_object)


def rebind_users(gather: Callable[[Any], list[Any]]) -> None:
    """Have every user take up the group that is up now. Collective.

    Args:
        gather: gives every rank's value, by rank.
    """
    users = _live_users()
    for user in common_prefix(users, [user.group_key() for user in users], gather):
        user.rebind_group()


def shutdown_process_group() -> None:
    """End the default process group so that peers waiting in a collective are freed at once.

    Prepared models let go of it first; they can be used again after the next
    :func:`ensure_process_group`. Without a group it does nothing.
    """
    global _made_here
    if not is_initialized():
        return
    for user in _live_users():
        user.release_group()
    dist.destroy_process_group()
    _made_here = False


def shutdown_own_process_group() -> None:
    """As :func:`shutdown_process_group`, but only for a group that this module brought up."""
    if _made_here:
        shutdown_process_group()


def current_timeout() -> timedelta:
    """How long a collective of the group that this module brought up may wait."""
    return _timeout if _made_here else DEFAULT_TIMEOUT


def default_backend(device_type: str) -> str:
    """The torch backend string for ranks that compute on ``device_type``.

    Accelerators get a gloo side too, so that objects and CPU tensors travel without a copy to the
    device.
    """
    from nbaccel.runtime.devices import device_named

    own = device_named(device_type).backend
    if own is None:
        raise RuntimeError(f"processes on {device_type!r} can't form a process group; run one process")
    return own if device_type == "cpu" else f"cpu:gloo,{device_type}:{own}"


def _check_fits(env: ProcessEnvironment, device_type: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if (rank, world) != (env.rank, env.world_size):
        raise RuntimeError(
            f"the default process group has rank {rank} of {world}, but the environment says rank "
            f"{env.rank} of {env.world_size}; end the group (torch.distributed.destroy_process_group()) "
            "or set RANK and WORLD_SIZE to match"
        )
    served = served_device_types()
    if device_type not in served:
        raise RuntimeError(
            f"the default process group serves {', '.join(sorted(served))}, not {device_type}; end it "
            "(nbaccel.reset()) before asking for another device"
        )


def rendezvous_store(env: ProcessEnvironment, timeout: timedelta) -> TCPStore:
    """The store at ``MASTER_ADDR`` and ``MASTER_PORT``, connected to once; ``timeout`` is that of its waits.

    Raises:
        RuntimeError: no address is set, or nobody could be reached there.
    """
    address, port = os.environ.get(MASTER_ADDR), os.environ.get(MASTER_PORT)
    if not address or not port:
        raise RuntimeError(
            f"{env.world_size} processes are to train together but {MASTER_ADDR} and {MASTER_PORT} aren't "
            "both set; start them with nbaccel or torchrun, or unset RANK and WORLD_SIZE to run alone"
        )
    key = (address, int(port))
    if key not in _stores:
        hosts = env.rank == 0 and os.environ.get(AGENT_STORE) != "True"
        _stores[key] = TCPStore(
            address, key[1], env.world_size, is_master=hosts, timeout=timeout, multi_tenant=True
        )
    _stores[key].set_timeout(timeout)
    return _stores[key]


def _wait_until_all_are_connected(env: ProcessEnvironment, timeout: timedelta) -> None:
    """Over the store, which is up in any case; it costs one round trip."""
    store = distributed_c10d._get_default_store()
    keys = [f"nbaccel/connected/{rank}" for rank in range(env.world_size)]
    store.set(keys[env.rank], "")
    store.wait(keys, timeout)


def _end_at_exit() -> None:
    global _exit_hook
    if not _exit_hook:
        atexit.register(shutdown_own_process_group)
        _exit_hook = True
