"""The state of this process: views on what runtime and Accelerator know. Nothing is shared behind them."""

from __future__ import annotations

from typing import Any

import torch

from nbaccel.config import active_spec
from nbaccel.left_out import explain_missing
from nbaccel.runtime import process_group
from nbaccel.runtime import runtime as runtimes
from nbaccel.runtime.accumulation import GradientState
from nbaccel.runtime.choices import DistributedType
from nbaccel.runtime.facets.processes import ProcessFacet
from nbaccel.runtime.facets.unused import UnusedStateFacet
from nbaccel.runtime.plugins import InitProcessGroupKwargs, TorchDynamoPlugin
from nbaccel.runtime.precision import choose_precision


class PartialState(ProcessFacet, UnusedStateFacet):
    """Rank, world and device of this process.

    Args:
        cpu: compute on the CPU even where there is an accelerator.
        kwargs: options of the process group: ``backend``, ``init_method``, ``timeout``.
    """

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        asks = cpu or bool(kwargs) or not runtimes.is_up()
        self._runtime = (
            runtimes.bring_up(cpu, InitProcessGroupKwargs(**kwargs)) if asks else runtimes.current()
        )
        self.debug = False

    def __reduce__(self) -> Any:
        # Rank, world and device are this process's own. In another one it is that one's state.
        return type(self), ()

    @property
    def fork_launched(self) -> bool:
        """Whether a launcher of nbaccel started this process."""
        return active_spec() is not None

    def __repr__(self) -> str:
        return (
            f"Distributed environment: {self.distributed_type.value}\n"
            f"Num processes: {self.num_processes}\n"
            f"Process index: {self.process_index}\n"
            f"Local process index: {self.local_process_index}\n"
            f"Device: {self.device}\n"
        )

    @property
    def initialized(self) -> bool:
        """True: a state that exists is initialised."""
        return True

    @property
    def default_device(self) -> torch.device:
        """The device that is used when nothing is said."""
        return torch.device(runtimes.choose_device(cpu=False)[0].type)

    @property
    def backend(self) -> str | None:
        """Backend of the process group; None for a single process."""
        return self._runtime.communicator.backend if self.num_processes > 1 else None

    def set_device(self) -> None:
        """Make this process's device the current one."""
        self._runtime.kind.activate(self._runtime.device)

    def destroy_process_group(self, group: Any = None) -> None:
        """End a process group; the default one by default."""
        if group is None:
            process_group.shutdown_process_group()
        else:
            torch.distributed.destroy_process_group(group)

    @staticmethod
    def _reset_state() -> None:
        reset()


class AcceleratorState(PartialState):
    """As :class:`PartialState`, with the precision.

    Args:
        mixed_precision: ``no``, ``fp16``, ``bf16`` or ``fp8``.
        cpu: compute on the CPU even where there is an accelerator.
        kwargs: options of the process group.
    """

    def __init__(self, mixed_precision: str | None = None, cpu: bool = False, **kwargs: Any) -> None:
        super().__init__(cpu, **kwargs)
        spec = active_spec()
        launched = None if spec is None else spec.mixed_precision
        said = mixed_precision or runtimes.noted_precision() or launched
        self.mixed_precision = choose_precision(said, self._runtime.kind).name
        self.dynamo_plugin = TorchDynamoPlugin()

    @classmethod
    def of(
        cls, runtime: runtimes.Runtime, mixed_precision: str, dynamo_plugin: TorchDynamoPlugin
    ) -> AcceleratorState:
        """The state that an Accelerator has."""
        state = cls.__new__(cls)
        state._runtime = runtime  # noqa: SLF001  # its own class
        state.debug = False
        state.mixed_precision = mixed_precision
        state.dynamo_plugin = dynamo_plugin
        return state

    def __repr__(self) -> str:
        return f"{super().__repr__()}Mixed precision type: {self.mixed_precision}\n"

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:  # noqa: ARG004
        reset()


def is_initialized() -> bool:
    """Whether an Accelerator or a state was made in this process."""
    return runtimes.is_up()


def reset() -> None:
    """Forget what was found out about this process, and end the process group if nbaccel brought it up.

    Not needed between Accelerators with other settings; it is for a change of device or of the world.
    In a launched worker the group is the launcher's, and stays.
    """
    if active_spec() is None:
        process_group.shutdown_own_process_group()
    runtimes.forget()
    GradientState.forget_latest()


__all__ = ["AcceleratorState", "DistributedType", "GradientState", "PartialState", "is_initialized", "reset"]

__getattr__ = explain_missing(__name__)
