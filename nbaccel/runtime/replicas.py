"""Whether something keeps in step what backward() is about to train. Looks; changes nothing.

::

    loss ──▶ a few nodes of its graph ──▶ a parameter that is known: done, at every step
                                     └──▶ an unknown one ──▶ the whole graph, all models: a warning, or known

Parameters, not models, are what is asked about: a model that a cell has made anew has other ones.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from nbaccel.runtime.optimizer import parameters_of
from nbaccel.runtime.rank_local import RankLocal

_REPLICATED = "DistributedDataParallel"
_SHARDED = frozenset({"FullyShardedDataParallel", "FSDPModule"})

_GLANCE = 256
"""Nodes of the graph that each backward may cost. From a loss to a parameter it's usually under ten."""

_WALK = 100_000
"""Nodes of the graph that are looked at when a parameter is new: some 0.1 s."""

_SEARCHES = 20
"""Looks at all objects for one Accelerator, 0.1 s each: a loop that makes new parameters isn't watched on."""

_LOOKS_AT_OTHERS = 4
"""Backwards, after something was prepared, in which parameters that only an optimizer has are looked for."""

_prepared: RankLocal[list[weakref.ref[nn.Module]]] = RankLocal(list)


def note_prepared(model: nn.Module) -> None:
    """From now on ``model`` is one that ``prepare`` gave."""
    known = _prepared.get()
    known[:] = [ref for ref in known if ref() is not None and ref() is not model]
    known.append(weakref.ref(model))


def is_prepared(model: nn.Module) -> bool:
    """Whether any Accelerator of this rank has prepared ``model``."""
    return any(ref() is model for ref in _prepared.get())


class ReplicaWatch:
    """Tells, once for each set of them, of parameters that each process trains for itself.

    Args:
        world_size: processes that train.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._settled = WeakTensorKeyDictionary()
        """Parameters that are kept in step, or have been told of."""
        self._aside = WeakTensorKeyDictionary()
        """Parameters of no prepared model that no optimizer trains: those of a fixed network in a loss."""
        self._counts = (0, 0)
        self._looks = 0
        self._searches = _SEARCHES

    def before_backward(
        self, loss: torch.Tensor, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]
    ) -> None:
        """``loss`` is about to be differentiated.

        Args:
            loss: with its graph.
            models: those that the Accelerator has prepared.
            optimizers: likewise.
        """
        if not self._searches:
            return
        counts = (len(models), len(optimizers))
        if counts != self._counts:
            self._counts = counts
            kept = _ids_of_prepared()
            others = any(p.requires_grad and id(p) not in kept for o in optimizers for p in parameters_of(o))
            self._looks = _LOOKS_AT_OTHERS if others else 0
        if self._looks:
            self._looks -= 1
        elif not self._sees_a_new_one(loss):
            return
        self._judge(loss, optimizers)

    def _sees_a_new_one(self, loss: torch.Tensor) -> bool:
        for parameter in _parameters_behind(loss, _GLANCE):
            if parameter in self._settled:
                return False
            if parameter not in self._aside:
                return True
        return False

    def _judge(self, loss: torch.Tensor, optimizers: Sequence[Optimizer]) -> None:
        kept = _ids_of_prepared()
        found = list(_parameters_behind(loss, _WALK))
        strangers = [p for p in found if id(p) not in kept]
        if strangers:
            self._searches -= 1
            by_hand = _ids_kept_by_hand()
            if by_hand is None:  # sharded models compute with parameters that aren't those they list
                self._searches = 0
                return
            strangers = [p for p in strangers if id(p) not in by_hand]
        told = strangers
        if len(strangers) < len(found):
            trained = {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}
            told = [p for p in strangers if id(p) in trained]
        is_new = any(p not in self._settled for p in told)
        told_ids, stranger_ids = {id(p) for p in told}, {id(p) for p in strangers}
        for parameter in found:
            stands_aside = id(parameter) in stranger_ids and id(parameter) not in told_ids
            (self._aside if stands_aside else self._settled)[parameter] = True
        if is_new:
            warnings.warn(self._describe(told, alone=len(told) == len(found)), stacklevel=4)

    def _describe(self, told: Sequence[torch.Tensor], *, alone: bool) -> str:
        which = f"{len(told)} parameters, the first of shape {tuple(told[0].shape)}"
        if alone:
            return (
                f"backward() with no prepared model on {self._world_size} processes: each trains a replica "
                f"of its own ({which}). Call accelerator.prepare(model) once the model is made, in the "
                "launched function or in the cell; one that was prepared before it was made anew, or in the "
                "notebook's own process, isn't this one"
            )
        return (
            f"backward() reaches parameters of no prepared model on {self._world_size} processes ({which}): "
            "the optimizer trains them on each process by itself, while the others are kept in step. Call "
            "accelerator.prepare(model) also for the module that has them"
        )


def _parameters_behind(loss: torch.Tensor, most: int) -> Iterator[nn.Parameter]:
    """Parameters that ``loss`` depends on, from ``most`` nodes of its graph, those near the loss first."""
    if loss.grad_fn is None:
        return
    waiting: deque[Any] = deque([loss.grad_fn])
    # The nodes themselves: what Python sees of one is made when it is asked for, and ids come again.
    seen = set(waiting)
    while waiting and most:
        most -= 1
        for node, _ in waiting.popleft().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node).__name__ != "AccumulateGrad":
                waiting.append(node)
            elif isinstance(node.variable, nn.Parameter):
                yield node.variable


def _ids_of_prepared() -> set[int]:
    return _ids(model for ref in _prepared.get() if (model := ref()) is not None)


def _ids(models: Iterable[nn.Module]) -> set[int]:
    return {id(parameter) for model in models for parameter in model.parameters()}


def _ids_kept_by_hand() -> set[int] | None:
    """Parameters of the models that the user wrapped to be replicated; None when there is a sharded one.

    Slow: it looks at every object.
    """
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    names = {kind: {base.__name__ for base in kind.__mro__} for kind in {type(each) for each in modules}}
    if any(bases & _SHARDED for bases in names.values()):
        return None
    return _ids(each for each in modules if _REPLICATED in names[type(each)])
