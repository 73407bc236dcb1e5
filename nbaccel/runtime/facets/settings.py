"""How the Accelerator was set up, for those who ask it later."""

from __future__ import annotations

from typing import Any

from nbaccel.runtime.facets.handlers import HandlersFacet


class SettingsFacet(HandlersFacet):
    """Read-only views on what the constructor was told."""

    @property
    def split_batches(self) -> bool:
        """Whether loaders' batch sizes are those of all processes together."""
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 reads the data for all; None: for iterable data sets only."""
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether all ranks get equally many full batches."""
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether random orders depend on seed and epoch only."""
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting."""
        return self.dataloader_config.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether loaders start an interrupted pass where it was left."""
        return self.dataloader_config.use_stateful_dataloader

    @property
    def multi_device(self) -> bool:
        """Whether several accelerators (not CPUs) train together."""
        runtime = self._runtime
        return runtime.environment.world_size > 1 and runtime.device.type != "cpu"

    @property
    def state(self) -> Any:
        """Rank, world, device and precision in one object."""
        from nbaccel.state import AcceleratorState

        return AcceleratorState.of(self._runtime, self._precision.name, self._dynamo)

    @property
    def native_amp(self) -> bool:
        """Whether forward passes run under torch's autocast."""
        return self._precision.name != "no"

    @property
    def fp8_enabled(self) -> bool:
        """Whether linear layers compute in fp8."""
        return self._precision.name == "fp8"
