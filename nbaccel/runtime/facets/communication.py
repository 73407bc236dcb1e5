"""Bringing the results of all processes together."""

from __future__ import annotations

from typing import Any

from nbaccel.runtime.collectives import operations
from nbaccel.runtime.data import loops
from nbaccel.runtime.facets.core import AcceleratorParts
from nbaccel.runtime.facets.processes import ProcessFacet


class CommunicationFacet(ProcessFacet, AcceleratorParts):
    """Every method is collective: all processes call it, with values of one structure."""

    def gather(self, tensor: Any) -> Any:
        """Join the tensors of all processes along the first dimension, in rank order.

        Args:
            tensor: a tensor, or containers of tensors: ``[n, ...]`` becomes ``[num_processes * n, ...]``,
                one without dimensions becomes ``[num_processes]``.

        Raises:
            CollectiveMismatchError: the processes pass different structures, dtypes or shapes.
            TypeError: a leaf isn't a tensor.
            RuntimeError: training was ended.
        """
        self._refuse_after_end("gather")
        return operations.gather(self._runtime.communicator, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As :meth:`gather`, but each sample of the data set counts once.

        Call it inside the loop over a prepared loader. The samples that fill up the last step are cut
        off, so that the results of an epoch joined together have the length and the order of the data.

        Args:
            input_data: tensors, objects or containers of them; a list that holds anything but tensors is
                one object per sample.
            use_gather_object: treat ``input_data`` as a list of objects whatever it holds.
        """
        self._refuse_after_end("gather_for_metrics")
        loop = loops.current()
        counts = None if loop is None else loop.counts
        return operations.gather_for_metrics(
            self._runtime.communicator, input_data, counts, use_gather_object
        )

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Combine the tensors of all processes element by element.

        Args:
            tensor: a tensor, or containers of tensors.
            reduction: ``sum``, ``mean`` or ``none``.
            scale: the result is multiplied by it.
        """
        self._refuse_after_end("reduce")
        return operations.reduce(self._runtime.communicator, tensor, reduction, scale)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False
    ) -> Any:
        """Pad each tensor along ``dim`` to the longest among the processes, so that it can be gathered.

        Args:
            tensor: a tensor, or containers of tensors.
            dim: the dimension to pad.
            pad_index: the value to pad with.
            pad_first: pad in front.
        """
        self._refuse_after_end("pad_across_processes")
        return operations.pad_across_processes(self._runtime.communicator, tensor, dim, pad_index, pad_first)
