"""Ways to train on several ranks. A new way is a new file with a subclass of Strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.strategies.base import Strategy
from nbaccel.runtime.strategies.ddp import DdpStrategy
from nbaccel.runtime.strategies.single import SingleStrategy
from nbaccel.runtime.strategies.xla import XlaStrategy

# Hardware with a way of its own; all other goes through DistributedDataParallel.
_OWN_WAYS: dict[str, Callable[[Any], Strategy]] = {"xla": XlaStrategy}


def own_strategy(device_type: str, communicator: Communicator) -> Strategy | None:
    """The strategy of hardware that has one of its own, for one rank or many; None elsewhere."""
    way = _OWN_WAYS.get(device_type)
    return None if way is None else way(communicator)


__all__ = ["DdpStrategy", "SingleStrategy", "Strategy", "XlaStrategy", "own_strategy"]
