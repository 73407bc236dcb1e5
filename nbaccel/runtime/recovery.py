"""Makes replicas equal again after ranks were stopped at different places.

Models get rank 0's parameters when they are bound to the new process group. Optimizers and schedulers
are tracked here and get rank 0's state; gradients of a window that was broken off are dropped on
every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

from nbaccel.runtime.collectives.objects import all_gather_object, broadcast_object

T = TypeVar("T")


class Replicated(Protocol):
    """Has state that must be the same on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state."""

    def forget_window(self) -> None:
        """Drop what belongs to a window of accumulation that was broken off."""


_tracked: list[weakref.ref[Replicated]] = []


def track(replicated: Replicated) -> None:
    """Have ``replicated`` aligned after a hard stop. Ranks track in the same order."""
    _tracked.append(weakref.ref(replicated))


def align() -> None:
    """Give every tracked object rank 0's state. Collective, over the default process group."""
    alive = [(ref, found) for ref in _tracked if (found := ref()) is not None]
    _tracked[:] = [ref for ref, _ in alive]
    for replicated in common_prefix([found for _, found in alive], [_key(found) for _, found in alive]):
        state = broadcast_object(replicated.state_dict() if dist.get_rank() == 0 else None, 0)
        if dist.get_rank() != 0:
            replicated.load_state_dict(state)
        replicated.forget_window()


def common_prefix(objects: Sequence[T], keys: Sequence[str]) -> list[T]:
    """Those objects that all ranks have, in order, up to the first difference. Collective.

    A cell that failed on one rank may have made more on the others; a collective on those would
    wait for ever.

    Args:
        objects: this rank's.
        keys: for each object a text that is the same on ranks which have the same one.
    """
    if dist.get_world_size() == 1:
        return list(objects)
    everybody = all_gather_object(list(keys))
    shared = 0
    while all(len(one) > shared for one in everybody) and len({one[shared] for one in everybody}) == 1:
        shared += 1
    return list(objects[:shared])


def _key(replicated: Replicated) -> str:
    groups = getattr(replicated, "param_groups", [])
    shapes = [[tuple(parameter.shape) for parameter in group["params"]] for group in groups]
    return f"{type(replicated).__name__} {shapes}"
