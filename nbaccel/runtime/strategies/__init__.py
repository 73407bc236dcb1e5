"""Ways to train on several ranks. A new way is a new file with a subclass of Strategy."""

from nbaccel.runtime.strategies.base import Strategy
from nbaccel.runtime.strategies.ddp import DdpStrategy
from nbaccel.runtime.strategies.single import SingleStrategy

__all__ = ["DdpStrategy", "SingleStrategy", "Strategy"]
