"""Loaders of torchdata, which keep the place of an iterable data set, so that resuming reads nothing again.

Where a pass is, prepared loaders know by themselves (:mod:`nbaccel.runtime.data.position`); for data that
is read by index that is all. An iterable data set would have to be read up to there. If it (or its
iterator) has ``state_dict`` and ``load_state_dict``, torchdata's StatefulDataLoader saves and restores it,
in loader workers too. Here is what goes between it and a prepared loader; nothing here draws random
numbers, and without torchdata nothing here is needed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

_SAVED = ("state_dict", "load_state_dict")


def is_stateful_loader(loader: Any) -> bool:
    """Whether ``loader`` is torchdata's."""
    return any(kind.__module__.startswith("torchdata.") for kind in type(loader).__mro__)


def is_stateful(thing: Any) -> bool:
    """Whether ``thing`` can save and restore where it is."""
    return all(callable(getattr(thing, name, None)) for name in _SAVED)


def keeps_its_place(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` can be put back to where it was without reading up to there."""
    return is_stateful_loader(loader) and isinstance(loader.dataset, IterableDataset)


def loader_class(like: DataLoader[Any]) -> tuple[type[DataLoader[Any]], dict[str, Any]]:
    """The class, and further arguments of it, of a loader that keeps its place if ``like`` does."""
    if not keeps_its_place(like):
        return DataLoader, {}
    from torchdata.stateful_dataloader import StatefulDataLoader

    every: int = like.snapshot_every_n_steps  # type: ignore[attr-defined]
    return StatefulDataLoader, {"snapshot_every_n_steps": every}


def with_state(loader: DataLoader[Any], options: dict[str, Any]) -> DataLoader[Any]:
    """``loader``, as torchdata's where that gains something.

    Args:
        loader: any; only a plain DataLoader over an iterable data set is replaced.
        options: how it loads.

    Warns:
        UserWarning: torchdata isn't installed, and the data set has a state that it would keep.
    """
    if type(loader) is not DataLoader or not isinstance(loader.dataset, IterableDataset):
        return loader
    if find_spec("torchdata") is None:
        if is_stateful(loader.dataset):
            warnings.warn(
                f"{type(loader.dataset).__name__} has a state of its own, which only torchdata's loader "
                "keeps: pip install torchdata. Without it, a resumed pass reads the data set up to where it "
                "was",
                stacklevel=4,
            )
        return loader
    from torchdata.stateful_dataloader import StatefulDataLoader

    stateful: DataLoader[Any] = StatefulDataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        **options,
    )
    return stateful


def place_of(loader: Any, num_processes: int) -> dict[str, Any]:
    """Where the running pass of ``loader`` is, after the batch it yielded last."""
    return {
        "num_processes": num_processes,
        "num_workers": loader.num_workers,
        "data": type(loader.dataset).__qualname__,
        # A copy, since the data set may hand out what it goes on changing.
        "state": copy.deepcopy(loader.state_dict()),
    }


def fits(loader: DataLoader[Any], num_processes: int, place: dict[str, Any] | None) -> bool:
    """Whether ``loader`` can be put to ``place``.

    It can't when that was saved by another number of ranks or loader workers, or of other data: then the
    pass has to be read up to there.
    """
    if place is None or not keeps_its_place(loader):
        return False
    found = (num_processes, loader.num_workers, type(loader.dataset).__qualname__)
    return found == (place["num_processes"], place["num_workers"], place["data"])


class ResumableGroups:
    """Groups of samples of a data set, from its start or from where it was.

    Mixed into the shards of iterable data sets. What is saved is the state of the data set, or of its
    iterator, after the group that was read last. The first group, which fills up the last one, isn't
    saved: it is read again.
    """

    dataset: Any
    _read = 0
    """Groups read in this pass."""
    _stream: Any = None
    _began: Any = None
    """State of the data set at the start of this pass."""
    _resumed: dict[str, Any] | None = None

    def groups(self, size: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Each group of up to ``size`` samples, with the first one of the pass."""
        start: list[Any] = []
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self._began, self._read, self._stream = _state_of(self.dataset), 0, iter(self.dataset)
        else:
            start = self._go_on(resumed, size)
        while group := list(islice(self._stream, size)):
            self._read += 1
            start = start or group
            yield group, start

    def _go_on(self, state: dict[str, Any], size: int) -> list[Any]:
        """Put the data set to where it was. Returns the first group of the pass."""
        self._began, self._read = state["began"], state["read"]
        if self._began is not None:
            self.dataset.load_state_dict(self._began)
        start = list(islice(iter(self.dataset), size))
        if state["dataset"] is not None:
            self.dataset.load_state_dict(state["dataset"])
        self._stream = iter(self.dataset)
        if state["stream"] is not None:
            self._stream.load_state_dict(state["stream"])
        elif state["dataset"] is None:
            # Neither has a state.
            for _ in islice(self._stream, self._read * size):
                pass
        return start

    def state_dict(self) -> dict[str, Any]:
        """Where the running pass is."""
        return {
            "read": self._read,
            "began": self._began,
            "dataset": _state_of(self.dataset),
            "stream": None if self._stream is self.dataset else _state_of(self._stream),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next pass go on from there."""
        self._resumed = state_dict

    def __getstate__(self) -> dict[str, Any]:
        # An iterator can't go to a loader's worker process, which begins one of its own.
        return {**self.__dict__, "_stream": None}


def _state_of(thing: Any) -> Any:
    return copy.deepcopy(thing.state_dict()) if is_stateful(thing) else None
