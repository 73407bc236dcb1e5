"""What a script asks of kinds of training that nbaccel doesn't do: the answer is always that none is in use.

Scripts look before they act (``if state.deepspeed_plugin is not None``), so a plain answer keeps them
running where an error would stop them. Nothing here can be switched on.
"""

from __future__ import annotations

from typing import Any

from nbaccel.left_out import explain_member


class UnusedFacet:
    """Holds nothing. A name that neither this nor another facet has is answered with the reason."""

    deepspeed_plugin = None
    """DeepSpeed isn't in use."""
    fsdp_plugin = None
    """Models aren't sharded."""
    parallelism_config = None
    """There is one kind of parallelism: replicas that share the data."""

    @property
    def is_fsdp2(self) -> bool:
        """False: models aren't sharded."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise explain_member(self, name)


class UnusedTrainingFacet(UnusedFacet):
    """The same for what only an Accelerator is asked."""

    torch_device_mesh = None
    """Processes aren't laid out in a mesh."""
    te_recipe_handler = None
    """fp8 goes through torchao alone."""
    msamp_recipe_handler = None
    """fp8 goes through torchao alone."""
    has_lomo_optimizer = False
    """LOMO steps within its own backward, in the loop's hands."""
    delayed_fp8_autocast = False
    """fp8 scales aren't carried from step to step."""

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """False: there is one kind of parallelism."""
        return False


class UnusedStateFacet(UnusedFacet):
    """The same for what only a state is asked."""

    deepspeed_plugins = None
    """DeepSpeed isn't in use."""
    torch_tp_plugin = None
    """Models aren't cut across processes."""
    device_mesh = None
    """Processes aren't laid out in a mesh."""
