"""fp8 training through torchao: which layers are converted, and where it is refused.

Linear layers compute their matrix products in fp8, with scales taken from each tensor; everything else
runs as under bf16. Parameters stay what they were, so optimizers, gradients and checkpoints don't notice.
It never touches a model on hardware without fp8 units, unless the recipe says to emulate them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from nbaccel.runtime.devices import Device
from nbaccel.runtime.plugins import KwargsHandler

LayerFilter = Callable[[nn.Module, str], bool]
"""Takes a module and its name in the model, and says whether it is converted."""

MULTIPLE = 16
"""What fp8 matrix units want both sides of a weight to be a multiple of."""

AUTOCAST_DTYPE = torch.bfloat16
"""What everything but the converted layers is lowered to."""


@dataclass
class AORecipeKwargs(KwargsHandler):
    """How ``mixed_precision="fp8"`` converts models, with torchao."""

    config: Any = None
    """A ``torchao.float8.Float8LinearConfig``; one with the two options below when None. With
    ``emulate=True`` in it fp8 is computed in software, on any device: for trying out, not for speed."""

    module_filter_func: LayerFilter | None = None
    """Takes a module and its name, and says whether to convert it. By default all linear layers but the
    first and the last, whose sides are multiples of 16."""

    pad_inner_dim: bool | None = None
    """Pad what isn't a multiple of 16 when multiplying; True when None."""

    enable_fsdp_float8_all_gather: bool | None = None
    """For sharded models; False when None."""

    def __post_init__(self) -> None:
        own = [n for n in ("pad_inner_dim", "enable_fsdp_float8_all_gather") if getattr(self, n) is not None]
        if own and self.config is not None:
            raise ValueError(f"{' and '.join(own)} and config contradict each other; set it in the config")

    @property
    def emulates(self) -> bool:
        """Whether fp8 is computed in software."""
        return bool(getattr(self.config, "emulate", False))

    def linear_config(self) -> Any:
        """The configuration that torchao is given."""
        if self.config is not None:
            return self.config
        from torchao.float8 import Float8LinearConfig

        return Float8LinearConfig(
            pad_inner_dim=True if self.pad_inner_dim is None else self.pad_inner_dim,
            enable_fsdp_float8_all_gather=bool(self.enable_fsdp_float8_all_gather),
        )


def check_fp8(device: Device, recipe: AORecipeKwargs) -> None:
    """Make sure that fp8 can run on ``device``.

    Raises:
        ValueError: torchao isn't installed, or the hardware has no fp8 units.
    """
    lacking = None if recipe.emulates else device.lacks_fp8()
    if lacking is not None:
        raise ValueError(
            f"mixed_precision='fp8' needs fp8 units (an NVIDIA GPU of compute capability 8.9 or newer), but "
            f"{lacking}; use bf16"
        )
    if find_spec("torchao") is None:
        raise ValueError("mixed_precision='fp8' needs torchao, which isn't installed: pip install torchao")


def apply_recipe(model: nn.Module, recipe: AORecipeKwargs) -> None:
    """Convert linear layers of ``model`` in place; one that was converted before is left alone.

    Args:
        model: the model. If it is a linear layer itself, that layer isn't converted.
        recipe: which layers, and how.

    Warns:
        UserWarning: no layer is converted, so the model would only run in bf16.
    """
    if has_ao_layers(model):
        return
    chosen = recipe.module_filter_func
    if chosen is None:
        first, last = find_first_last_linear_layers(model)
        chosen = functools.partial(filter_linear_layers, layers_to_filter=[first, last])
    if not any(chosen(module, name) for name, module in model.named_modules() if name):
        warnings.warn(
            "mixed_precision='fp8' converts no layer of this model: it takes linear layers other than the "
            f"first and the last, with both sides multiples of {MULTIPLE}. Choose others with "
            "AORecipeKwargs(module_filter_func=...)",
            stacklevel=2,
        )
        return
    from torchao.float8 import convert_to_float8_training

    def below_the_top(module: nn.Module, name: str) -> bool:
        # The module itself can't be put in its own place.
        return bool(name) and chosen(module, name)

    convert_to_float8_training(model, module_filter_fn=below_the_top, config=recipe.linear_config())


def has_ao_layers(model: nn.Module) -> bool:
    """Whether ``model`` has layers that torchao converted."""
    if find_spec("torchao") is None:
        return False
    from torchao.float8.float8_linear import Float8Linear

    return any(isinstance(module, Float8Linear) for module in model.modules())


def find_first_last_linear_layers(model: nn.Module) -> tuple[str | None, str | None]:
    """Names of the first and the last linear layer; None where there is none."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return (names[0], names[-1]) if names else (None, None)


def filter_linear_layers(module: nn.Module, fqn: str, layers_to_filter: list[str | None]) -> bool:
    """Whether ``module`` is a linear layer that fp8 units can take, and isn't listed."""
    if not isinstance(module, nn.Linear) or fqn in layers_to_filter:
        return False
    return module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0
