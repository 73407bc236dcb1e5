"""Who this process is, and doing things on some processes only."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch

from nbaccel.runtime.choices import DistributedType
from nbaccel.runtime.collectives.agreement import agree_on_call
from nbaccel.runtime.collectives.rollcall import checked_timeout
from nbaccel.runtime.data.split import split_evenly
from nbaccel.runtime.runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])


class ProcessFacet:
    """Needs ``_runtime``."""

    _runtime: Runtime
    _ended: bool = False

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._runtime.device

    @property
    def num_processes(self) -> int:
        """Processes on all nodes."""
        return self._runtime.environment.world_size

    @property
    def process_index(self) -> int:
        """Rank of this process among all."""
        return self._runtime.environment.rank

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its node."""
        return self._runtime.environment.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its node."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank."""
        return self.process_index == self.num_processes - 1

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.num_processes > 1

    @property
    def distributed_type(self) -> DistributedType:
        """What kind of processes train together; ``NO`` for a single one."""
        return self._runtime.distributed_type

    def wait_for_everyone(self, timeout: float | timedelta | None = None) -> None:
        """Return when every process has called it.

        Args:
            timeout: seconds to wait for the others, the same on all processes; None waits as long as the
                process group does. On XLA devices there is no limit.

        Raises:
            CollectiveMismatchError: another process is in a different collective. Not with a timeout: a
                process that is elsewhere is one that doesn't come.
            TimeoutError: names the ranks that didn't call it in time.
            ValueError: ``timeout`` isn't a positive number.
        """
        self._refuse_after_end("wait_for_everyone")
        limit = checked_timeout(timeout)
        if self.num_processes == 1:
            return
        if limit is None:
            agree_on_call(self._runtime.communicator, "wait_for_everyone")
        else:
            self._runtime.communicator.bounded_barrier("wait_for_everyone", limit)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once on each node."""
        if self.is_local_main_process:
            builtins.print(*args, **kwargs)  # noqa: T201

    @contextmanager
    def main_process_first(self, timeout: float | timedelta | None = None) -> Iterator[None]:
        """Rank 0 runs the block before the others do.

        Args:
            timeout: how long the others wait for it, as for :meth:`wait_for_everyone`.
        """
        with self._first(self.is_main_process, timeout):
            yield

    @contextmanager
    def local_main_process_first(self, timeout: float | timedelta | None = None) -> Iterator[None]:
        """The first process of each node runs the block before the node's others do.

        Args:
            timeout: how long the others wait for it, as for :meth:`wait_for_everyone`.
        """
        with self._first(self.is_local_main_process, timeout):
            yield

    @contextmanager
    def _first(self, goes_first: bool, timeout: float | timedelta | None) -> Iterator[None]:
        checked_timeout(timeout)
        if not goes_first:
            self.wait_for_everyone(timeout)
        # Not in a finally: when the first one fails, the others are stopped by the launcher.
        yield
        if goes_first:
            self.wait_for_everyone(timeout)

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give each process a contiguous part of ``inputs``, of the same type; sizes differ by one at most.

        Args:
            inputs: a list, tuple, tensor, data set, or a mapping of such of equal lengths.
            apply_padding: repeat the last element so that all parts have one length, for a later gather.
        """
        yield split_evenly(inputs, self.num_processes, self.process_index, apply_padding=apply_padding)

    def on_main_process(self, function: F) -> F:
        """Decorate ``function`` to run on rank 0 only; it returns None elsewhere."""
        return self._only_if(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: F) -> F:
        """Decorate ``function`` to run on the first process of each node only."""
        return self._only_if(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: F) -> F:
        """Decorate ``function`` to run on the last rank only."""
        return self._only_if(lambda: self.is_last_process, function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Decorate ``function`` to run on rank ``process_index`` only. Usable with that argument alone."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return self._only_if(lambda: self.process_index == process_index, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Decorate ``function`` to run on one process of each node only. Usable with the index alone."""
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return self._only_if(lambda: self.local_process_index == local_process_index, function)

    def _only_if(self, condition: Callable[[], bool], function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if condition() else None

        return run  # type: ignore[return-value]

    def _refuse_after_end(self, operation: str) -> None:
        if self._ended:
            raise RuntimeError(
                f"{operation} was called after end_training() on this Accelerator; call end_training() last, "
                "or make a new Accelerator"
            )
