"""Where the graph of pending operations is cut on XLA devices, and the word when too many differ.

An XLA device computes nothing until the graph that was recorded so far is cut off and handed over. One
cut a batch is right: fewer let the graph grow, more of them compute things twice::

    for batch in loader:        cut here, unless the body before has done it (evaluation)
        loss = ...
        backward, step          cut after the step: forward, backward, all-reduce and update are one graph

Each graph that wasn't seen before is compiled, which takes seconds to minutes. A loop whose batches keep
being compiled says so once, with its place in the user's code (:class:`CompileWatch`).

Imports torch_xla only when called: importing the module is free.
"""

from __future__ import annotations

import collections
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nbaccel.runtime.nested import leaves
from nbaccel.runtime.rank_local import RankLocal

WINDOW = 16
"""Batches that are looked back upon."""

TOO_MANY = 8
"""Of these, how many may be compiled anew without a word. The first batches, a first evaluation and a
short last batch come to less."""

_OWN_CODE = tuple(
    str(Path(module.__file__ or "").parent) for module in (torch, sys.modules[__name__.partition(".")[0]])
)


class CompileWatch:
    """Follows one rank's batches and how many of them XLA had to compile for."""

    def __init__(self) -> None:
        self._compiled: collections.deque[bool] = collections.deque(maxlen=WINDOW)
        self._shapes: collections.deque[Any] = collections.deque(maxlen=WINDOW)
        self._before = 0
        self._seconds_before = 0.0
        self._told: set[tuple[str, int]] = set()

    def batch_comes(self, batch: Any) -> None:
        """Note the shapes of a batch that is about to be handed out."""
        self._shapes.append(
            tuple(tuple(leaf.shape) for _, leaf in leaves(batch) if isinstance(leaf, torch.Tensor))
        )

    def step_done(self) -> None:
        """A batch's graph was handed over.

        Warns:
            UserWarning: once for each place in the user's code, when compiling goes on.
        """
        count, seconds = compilations()
        if not self._compiled:
            self._seconds_before = seconds if count == self._before else self._seconds_before
        self._compiled.append(count > self._before)
        self._before = count
        if sum(self._compiled) < TOO_MANY:
            return
        frame, depth = _user_frame()
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
        if place in self._told:
            return
        self._told.add(place)
        warnings.warn(self._text(seconds - self._seconds_before), stacklevel=depth)
        self._compiled.clear()
        self._seconds_before = seconds

    def _text(self, seconds: float) -> str:
        shapes = list(dict.fromkeys(self._shapes))
        if len(shapes) > 1:
            told = "; ".join(" ".join(map(str, shape)) for shape in shapes[:4])
            told += "; ..." if len(shapes) > 4 else ""
            cause = (
                f"Batches came in {len(shapes)} different shapes ({told}), "
                "and each is compiled for by itself: pad them to one length, or to a few"
            )
        else:
            cause = (
                "The batches' shapes don't differ, so something else does from step to step: a length or an "
                "index that depends on the data, a branch on a tensor's value, or a model that changes"
            )
        share = f"{sum(self._compiled)} of the last {len(self._compiled)} batches"
        return f"XLA still compiles: {share} needed a new graph ({seconds:.1f} s of compiling). {cause}"


def _user_frame() -> tuple[FrameType | None, int]:
    """The innermost frame of the user's own code, and its depth as ``stacklevel`` of the caller counts."""
    frame: FrameType | None = sys._getframe(1)
    depth = 1
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_CODE):
        frame, depth = frame.f_back, depth + 1
    # The caller's own frame is level 1, and this function's caller was counted as that.
    return frame, depth


def compilations() -> tuple[int, float]:
    """How many graphs this process has compiled, and the seconds that it took."""
    import torch_xla.debug.metrics as met

    data = met.metric_data("CompileTime")
    return (0, 0.0) if data is None else (int(data[0]), data[1] / 1e9)


class _Cuts:
    """What one rank has cut."""

    def __init__(self) -> None:
        self.since_last_batch = False
        self.watch = CompileWatch()


_cuts = RankLocal(_Cuts)


def cut() -> None:
    """Hand over everything that is pending, without waiting for it to be computed."""
    import torch_xla

    torch_xla.sync()
    _cuts.get().since_last_batch = True


def step_taken() -> None:
    """An optimizer has stepped: the graph of the batch is complete."""
    cut()


def batch_comes(batch: Any) -> Any:
    """A batch is handed out; returned as it is."""
    _cuts.get().watch.batch_comes(batch)
    return batch


def batch_is_done() -> None:
    """The loop's body is through: cut, unless the body did."""
    mine = _cuts.get()
    if not mine.since_last_batch:
        cut()
    mine.since_last_batch = False
    mine.watch.step_done()
