"""Tensors as files are to hold them: readable where there is no such device."""

from __future__ import annotations

from typing import Any

import torch

from nbaccel.runtime.devices import DEVICES
from nbaccel.runtime.nested import leaves, map_structure


def on_host(state: Any) -> Any:
    """``state`` with CPU copies of those tensors that couldn't be read back without their device.

    Each device's tensors are fetched together; what shares memory there shares it here too.
    """
    by_type: dict[str, list[torch.Tensor]] = {}
    for _, leaf in leaves(state):
        if isinstance(leaf, torch.Tensor) and leaf.device.type in DEVICES:
            by_type.setdefault(leaf.device.type, []).append(leaf)
    copies: dict[int, torch.Tensor] = {}
    for kind, tensors in by_type.items():
        fetched = DEVICES[kind].fetch(tensors)
        copies |= {id(own): copy for own, copy in zip(tensors, fetched, strict=True) if own is not copy}
    if not copies:
        return state
    return map_structure(lambda leaf: copies.get(id(leaf), leaf), state)
