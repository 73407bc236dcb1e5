"""What the runtime asks of a kind of hardware. One subclass a kind, one file a subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from nbaccel.runtime.environment import ProcessEnvironment

if TYPE_CHECKING:
    from nbaccel.runtime.collectives.communicator import Communicator
    from nbaccel.runtime.plugins import InitProcessGroupKwargs


class Device(ABC):
    """A kind of hardware. Stateless: which of its units a rank owns is the caller's to keep."""

    type: ClassVar[str]
    """torch's name of the device type."""

    multi_name: ClassVar[str] = "NO"
    """What ``distributed_type`` says of several processes on this hardware."""

    single_name: ClassVar[str] = "NO"
    """What it says of a single one."""

    static_shapes: ClassVar[bool] = False
    """Whether each new shape of a batch costs a compilation, so that short batches are filled up."""

    backend: ClassVar[str | None] = None
    """torch.distributed backend of this hardware; None when its processes can't form a group."""

    amp_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset()
    """Types that autocast can lower to here, before the individual unit is asked."""

    @abstractmethod
    def count(self) -> int:
        """How many units this process sees; 0 when there are none. Must not start a device context."""

    def is_available(self) -> bool:
        """Whether there is at least one."""
        return self.count() > 0

    def unit(self, local_rank: int, ids: tuple[int, ...] = ()) -> torch.device:
        """The unit that the process with ``local_rank`` on this node works on.

        Args:
            local_rank: index among the processes of this node.
            ids: the units in use, one a process; all of them in order when empty.

        Raises:
            ValueError: there are fewer units than processes on this node.
        """
        chosen = ids or tuple(range(self.count()))
        if local_rank >= len(chosen):
            raise ValueError(
                f"local rank {local_rank} has no {self.type} device: {len(chosen)} in use "
                f"({', '.join(map(str, chosen)) or 'none'}); start at most {len(chosen)} processes on "
                "this node, or pass cpu=True"
            )
        return torch.device(self.type, chosen[local_rank])

    def activate(self, unit: torch.device) -> None:
        """Make ``unit`` the current one for code that names no index."""

    def environment(self) -> ProcessEnvironment:
        """Rank and world of the caller."""
        return ProcessEnvironment.detect()

    def connect(
        self, environment: ProcessEnvironment, unit: torch.device, options: InitProcessGroupKwargs
    ) -> Communicator:
        """The way to talk to the other ranks. Collective when there are several.

        Raises:
            RuntimeError: the process group can't come up, or an existing one doesn't fit.
        """
        from nbaccel.runtime import process_group
        from nbaccel.runtime.collectives.communicator import LocalCommunicator
        from nbaccel.runtime.collectives.torch_communicator import TorchCommunicator

        if environment.world_size == 1:
            return LocalCommunicator()
        process_group.ensure_process_group(
            environment,
            self.type,
            options.timeout,
            backend=options.backend,
            init_method=options.init_method,
            device=unit,
        )
        return TorchCommunicator(environment.rank, environment.world_size, unit)

    def supports_amp(self, dtype: torch.dtype) -> bool:
        """Whether mixed precision with ``dtype`` is real here, not emulated."""
        return dtype in self.amp_dtypes

    def lacks_fp8(self) -> str | None:
        """Why matrix products in fp8 aren't real here, for an error to say; None where they are."""
        return f"the device here is {self.type}"

    def synchronize(self) -> None:
        """Wait until all work that was handed to the device is done."""

    def copy_stream(self, unit: torch.device) -> Any:
        """A stream on which batches can be copied to ``unit`` while it computes; None where there is none."""
        return None

    def uploader(self, unit: torch.device) -> Callable[[Any], Any] | None:
        """Begins to move a batch to ``unit`` and returns it; None where :meth:`copy_stream` does that."""
        return None

    def batch_is_done(self) -> Callable[[], None] | None:
        """Called after the work on each batch was handed over; None where that needs no word."""
        return None

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors as files are to hold them: on the CPU, where those of the device can't be read back."""
        return list(tensors)

    def empty_cache(self) -> None:
        """Give cached memory back to the system."""

    def seed(self, seed: int) -> None:
        """Seed the generators of all units of this process."""

    def rng_state(self, unit: torch.device) -> torch.Tensor | None:
        """State of the unit's default generator, a uint8 CPU tensor; None for the CPU's own."""
        return None

    def set_rng_state(self, state: torch.Tensor, unit: torch.device) -> None:
        """Put back what :meth:`rng_state` returned."""


class ModuleDevice(Device):
    """An accelerator that torch serves through a module of its own (``torch.cuda``, ``torch.xpu``, ...)."""

    @property
    def module(self) -> Any:
        """The torch module for this device type."""
        return torch.get_device_module(self.type)

    def count(self) -> int:
        return int(self.module.device_count())

    def activate(self, unit: torch.device) -> None:
        self.module.set_device(unit)

    def copy_stream(self, unit: torch.device) -> Any:
        return self.module.Stream(unit)

    def synchronize(self) -> None:
        self.module.synchronize()

    def empty_cache(self) -> None:
        self.module.empty_cache()

    def seed(self, seed: int) -> None:
        self.module.manual_seed_all(seed)

    def rng_state(self, unit: torch.device) -> torch.Tensor | None:
        state: torch.Tensor = self.module.get_rng_state(unit)
        return state

    def set_rng_state(self, state: torch.Tensor, unit: torch.device) -> None:
        self.module.set_rng_state(state, unit)
