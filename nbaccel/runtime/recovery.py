"""Makes replicas equal again after ranks were stopped at different places.

Models get rank 0's parameters when they are bound to the new process group, or bound anew where there is
none. Optimizers and schedulers are tracked here and get rank 0's state; gradients of a window that was
broken off are dropped on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nbaccel.runtime.rank_local import RankLocal

if TYPE_CHECKING:
    from nbaccel.runtime.collectives.communicator import Communicator

T = TypeVar("T")


class Replicated(Protocol):
    """Has state that must be the same on all ranks."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state."""

    def forget_window(self) -> None:
        """Drop what belongs to a window of accumulation that was broken off."""


_tracked: RankLocal[list[weakref.ref[Replicated]]] = RankLocal(list)


def track(replicated: Replicated) -> None:
    """Have ``replicated`` aligned after a hard stop. Ranks track in the same order."""
    _tracked.get().append(weakref.ref(replicated))


def _alive() -> list[Replicated]:
    mine = _tracked.get()
    alive = [(ref, found) for ref in mine if (found := ref()) is not None]
    mine[:] = [ref for ref, _ in alive]
    return [found for _, found in alive]


def forget_windows() -> None:
    """Drop the gradients of windows of accumulation that were broken off. Not collective."""
    for replicated in _alive():
        replicated.forget_window()


def align(communicator: Communicator) -> None:
    """Give every tracked object rank 0's state. Collective."""
    found = _alive()
    if communicator.world_size > 1:
        keys = [_key(replicated) for replicated in found]
        for replicated in common_prefix(found, keys, communicator.all_gather_object):
            share(replicated, communicator)
    for replicated in found:
        replicated.forget_window()


def share(replicated: Replicated, communicator: Communicator) -> None:
    """Give it rank 0's state. Collective."""
    from nbaccel.runtime.checkpoints.host import on_host

    # From the host, so that no rank rebuilds a tensor on rank 0's device.
    own = on_host(replicated.state_dict()) if communicator.rank == 0 else None
    state = communicator.broadcast_object(own, 0)
    if communicator.rank != 0:
        replicated.load_state_dict(state)


def equalise(replicated: Replicated, communicator: Communicator) -> None:
    """Give it rank 0's state, unless it is the same on all ranks, as after loading a file. Collective."""
    if len(set(communicator.all_gather_object(repr(_gist(replicated.state_dict()))))) > 1:
        share(replicated, communicator)


def _gist(state: Any) -> Any:
    """Numbers that are the same for equal states, and hardly ever for others."""
    import torch

    if isinstance(state, torch.Tensor):
        return tuple(state.shape), state.sum(dtype=torch.float64).item(), state.float().norm().item()
    if isinstance(state, dict):
        return [(key, _gist(value)) for key, value in state.items()]
    if isinstance(state, (list, tuple)):
        return [_gist(value) for value in state]
    return state if isinstance(state, (int, float, str, bool, type(None))) else type(state).__name__


def common_prefix(
    objects: Sequence[T], keys: Sequence[str], gather: Callable[[list[str]], list[list[str]]]
) -> list[T]:
    """Those objects that all ranks have, in order, up to the first difference. Collective.

    A cell that failed on one rank may have made more on the others; a collective on those would
    wait for ever.

    Args:
        objects: this rank's.
        keys: for each object a text that is the same on ranks which have the same one.
        gather: gives every rank's value, by rank.
    """
    everybody = gather(list(keys))
    shared = 0
    while all(len(one) > shared for one in everybody) and len({one[shared] for one in everybody}) == 1:
        shared += 1
    return list(objects[:shared])


def _key(replicated: Replicated) -> str:
    groups = getattr(replicated, "param_groups", [])
    shapes = [[tuple(parameter.shape) for parameter in group["params"]] for group in groups]
    return f"{type(replicated).__name__} {shapes}"
