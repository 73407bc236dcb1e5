"""Who is there? A bounded wait for all ranks that says who is missing, and where each one was last.

Runs over the group's store and not over a collective, so that it works where a collective would hang.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from nbaccel.runtime.process_group import current_timeout, is_initialized


class MissingRanksError(TimeoutError):
    """Not all ranks came to a collective in time."""


def checked_timeout(timeout: float | timedelta | None) -> timedelta | None:
    """A timeout as a caller passes it, in seconds or as it is.

    Raises:
        ValueError: it isn't a positive, finite number of seconds.
    """
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < timedelta.max.total_seconds():
        raise ValueError(
            f"timeout={timeout!r}: pass a positive number of seconds, or None for the process group's limit"
        )
    return timedelta(seconds=seconds)


def roll_call(operation: str, timeout: timedelta | None = None) -> None:
    """Return when every rank has called it.

    Args:
        operation: what the ranks are about to do.
        timeout: how long to wait for the others; that of the process group by default.

    Raises:
        MissingRanksError: after the timeout; names the ranks that didn't call.
    """
    if not is_initialized():
        return
    store = distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    # Counted in the store and not here: ranks that were interrupted at different calls begin anew with a
    # new group, and its store.
    calls = store.add(f"nbaccel/rollcall/calls/{rank}", 1)
    keys = [f"nbaccel/rollcall/{calls}/{other}" for other in range(world)]
    store.set(keys[rank], operation)
    wait = timeout or current_timeout()
    until = time.monotonic() + wait.total_seconds()
    for key in keys:
        left = max(0.001, until - time.monotonic())
        try:
            store.wait([key], timedelta(seconds=left))
        except RuntimeError as error:
            missing = [other for other, key in enumerate(keys) if not store.check([key])]
            if not missing:
                continue
            plural = "s" if len(missing) > 1 else ""
            raise MissingRanksError(
                f"{operation}: rank{plural} {', '.join(map(str, missing))} did not call it within "
                f"{wait.total_seconds():g} s. It needs all ranks: call it outside of `if is_main_process`, "
                "or give those that work longer a longer timeout"
            ) from error
    # The call before the last one is behind every rank.
    store.delete_key(f"nbaccel/rollcall/{calls - 2}/{rank}")
