"""Whether anything in this process keeps replicas of a model in step. Looks; changes nothing."""

from __future__ import annotations

import gc

from torch import nn

_SYNCHRONISING = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def synchronised_by_hand() -> bool:
    """Whether there is a model that the user wrapped to be kept in step. Slow: it looks at every object."""
    kinds = {type(each) for each in gc.get_objects() if issubclass(type(each), nn.Module)}
    return any(base.__name__ in _SYNCHRONISING for kind in kinds for base in kind.__mro__)
