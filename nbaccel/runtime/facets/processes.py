"""Who this process is, and doing things on some processes only."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from nbaccel.runtime.choices import DistributedType
from nbaccel.runtime.collectives.agreement import agree_on_call
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

    def wait_for_everyone(self) -> None:
        """Return when every process has called it.

        Raises:
            CollectiveMismatchError: another process is in a different collective.
        """
        self._refuse_after_end("wait_for_everyone")
        if self.num_processes > 1:
            agree_on_call(self._runtime.communicator, "wait_for_everyone")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once on each node."""
        if self.is_local_main_process:
            builtins.print(*args, **kwargs)  # noqa: T201

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Rank 0 runs the block before the others do."""
        with self._first(self.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """The first process of each node runs the block before the node's others do."""
        with self._first(self.is_local_main_process):
            yield

    @contextmanager
    def _first(self, goes_first: bool) -> Iterator[None]:
        if not goes_first:
            self.wait_for_everyone()
        # Not in a finally: when the first one fails, the others are stopped by the launcher.
        yield
        if goes_first:
            self.wait_for_everyone()

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
