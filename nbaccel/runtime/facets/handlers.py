"""The option objects that the constructor was given as ``kwargs_handlers``, by their usual names."""

from __future__ import annotations

from nbaccel.runtime.facets.core import AcceleratorParts
from nbaccel.runtime.plugins import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
)
from nbaccel.runtime.precision_fp8 import AORecipeKwargs


class HandlersFacet(AcceleratorParts):
    """Each is None when no such object was passed."""

    @property
    def autocast_handler(self) -> AutocastKwargs | None:
        """How autocast behaves."""
        return self._handlers.get(AutocastKwargs)

    @property
    def scaler_handler(self) -> GradScalerKwargs | None:
        """How fp16 losses are scaled."""
        return self._handlers.get(GradScalerKwargs)

    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs | None:
        """How replicas are kept in step."""
        return self._handlers.get(DistributedDataParallelKwargs)

    @property
    def init_handler(self) -> InitProcessGroupKwargs | None:
        """How the process group came up."""
        return self._handlers.get(InitProcessGroupKwargs)

    @property
    def profile_handler(self) -> ProfileKwargs | None:
        """What :meth:`profile` records."""
        return self._handlers.get(ProfileKwargs)

    @property
    def ao_recipe_handler(self) -> AORecipeKwargs | None:
        """How fp8 converts models."""
        return self._handlers.get(AORecipeKwargs)

    @property
    def fp8_recipe_handler(self) -> AORecipeKwargs | None:
        """The same; there is one library for fp8."""
        return self.ao_recipe_handler

    @property
    def has_fp8_handler(self) -> bool:
        """Whether one was passed for fp8."""
        return self.ao_recipe_handler is not None
