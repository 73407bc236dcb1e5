"""Bringing batches to the device, ahead of their use where the hardware can copy while it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nbaccel.runtime.devices import device_named
from nbaccel.runtime.nested import leaves, send_to_device


@dataclass(frozen=True)
class Mover:
    """Two steps, so that a copy can run between them."""

    start: Callable[[Any], Any]
    """Takes a batch and begins to move it."""

    finish: Callable[[Any], Any]
    """Takes what ``start`` returned, and returns the batch, ready for use."""

    ahead: bool = False
    """Whether anything is gained by starting early."""

    done: Callable[[], None] | None = None
    """Called when the loop asks for more after a batch; None where nobody has to know."""


def _as_it_is(batch: Any) -> Any:
    return batch


def _to_host(batch: Any) -> Any:
    """A fast way for the usual batch: a few tensors that are on the host already."""
    kind = type(batch)
    items = (batch,) if kind is torch.Tensor else batch.values() if kind is dict else batch
    if kind in _USUAL:
        for item in items:
            if type(item) is not torch.Tensor or not item.is_cpu:
                break
        else:
            return batch
    return send_to_device(batch, "cpu")


_USUAL = (torch.Tensor, list, tuple, dict)
_STAY = Mover(_as_it_is, _as_it_is)
_TO_HOST = Mover(_as_it_is, _to_host)


def mover_for(device: torch.device | None, non_blocking: bool) -> Mover:
    """How batches get to ``device``; None leaves them where they are."""
    if device is None:
        return _STAY
    if device.type == "cpu":
        return _TO_HOST
    kind = device_named(device.type)
    upload = kind.uploader(device)
    if upload is not None:
        return Mover(upload, _as_it_is, ahead=True, done=kind.batch_is_done())
    stream = kind.copy_stream(device)
    if stream is None:
        return Mover(_as_it_is, lambda batch: send_to_device(batch, device, non_blocking))
    return _ahead(device, stream)


def _ahead(device: torch.device, stream: Any) -> Mover:
    module = torch.get_device_module(device.type)

    def start(batch: Any) -> Any:
        with module.stream(stream):
            # Pinned memory makes this return at once; from other memory it waits for the copy, as usual.
            return send_to_device(batch, device, True)

    def finish(batch: Any) -> Any:
        current = module.current_stream(device)
        current.wait_stream(stream)
        _used_on(batch, current)
        return batch

    return Mover(start, finish, ahead=True)


def _used_on(batch: Any, stream: Any) -> None:
    """Tell the allocator that ``stream`` uses the tensors, so that their memory isn't reused early."""
    for _, leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor):
            leaf.record_stream(stream)
