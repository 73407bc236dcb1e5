"""What ``mixed_precision`` means: which autocast a forward runs under, and whether losses are scaled.

Parameters stay float32; autocast lowers single operations. A prepared model's outputs are float32
unless that is switched off, so that a loss computed outside the model is computed in full precision.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nbaccel.config import check_mixed_precision
from nbaccel.runtime.devices import Device
from nbaccel.runtime.nested import to_float32
from nbaccel.runtime.precision_fp8 import AUTOCAST_DTYPE, AORecipeKwargs, apply_recipe, check_fp8


@dataclass(frozen=True)
class Precision:
    """One choice of ``mixed_precision`` on one kind of device."""

    name: str
    """``no``, ``bf16``, ``fp16`` or ``fp8``."""

    device_type: str

    dtype: torch.dtype | None = None
    """What autocast lowers to; None for full precision."""

    scales_loss: bool = False
    """Whether gradients would underflow without a scaled loss."""

    enabled: bool = True
    """False switches autocast off, while losses are still scaled."""

    cache_enabled: bool | None = None
    """Whether autocast keeps lowered weights within one forward; torch's default when None."""

    float32_outputs: bool = True
    """Whether prepared models return float32."""

    fp8: AORecipeKwargs | None = None
    """How linear layers are converted to fp8; None leaves them."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context that a forward runs under."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(
            self.device_type, dtype=self.dtype, enabled=self.enabled, cache_enabled=self.cache_enabled
        )

    def apply_to(self, model: nn.Module) -> None:
        """Have ``model``'s forward run under :meth:`autocast`; a policy applied before is replaced.

        Raises:
            ValueError: fp16 with trainable parameters that are fp16 already. Their gradients can't be
                unscaled, since a step smaller than half precision resolves would be lost.
        """
        remove_from(model)
        if self.dtype is None:
            return
        if self.scales_loss:
            _refuse_half_parameters(model.named_parameters())
        if self.fp8 is not None:
            apply_recipe(model, self.fp8)
        # Past nn.Module.__setattr__: forward is neither parameter nor submodule.
        model.__dict__["forward"] = PrecisionForward(model, self, model.__dict__.get("forward"))


def choose_precision(
    name: object,
    device: Device,
    *,
    enabled: bool = True,
    cache_enabled: bool | None = None,
    float32_outputs: bool = True,
    fp8: AORecipeKwargs | None = None,
) -> Precision:
    """The precision called ``name`` on ``device``.

    Args:
        name: one of the choices, any case.
        device: what it is for.
        enabled: as in :class:`Precision`, like the next two.
        cache_enabled: as there.
        float32_outputs: as there.
        fp8: how fp8 is done, when that is the choice.

    Raises:
        ValueError: the name isn't known, the device can't do it, or fp8 lacks torchao.
    """
    checked = check_mixed_precision(name)
    if checked == "no":
        return Precision("no", device.type)
    if checked == "fp8":
        recipe = fp8 or AORecipeKwargs()
        check_fp8(device, recipe)
        return Precision(
            checked, device.type, AUTOCAST_DTYPE, False, enabled, cache_enabled, float32_outputs, recipe
        )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[checked]
    if not device.supports_amp(dtype):
        other = "fp16" if checked == "bf16" else "bf16"
        raise ValueError(
            f"mixed_precision={checked!r} isn't supported by this {device.type} device; use {other} or no"
        )
    return Precision(checked, device.type, dtype, checked == "fp16", enabled, cache_enabled, float32_outputs)


class PrecisionForward:
    """Stands in for a module's ``forward`` and runs the real one under autocast.

    An instance attribute rather than a wrapping module, so that parameter names, attributes and the
    class of the model stay what they were. It is plain data, so the model can be copied and pickled.
    """

    def __init__(
        self, module: nn.Module, precision: Precision, replaced: Callable[..., Any] | None = None
    ) -> None:
        self.module = module
        self.precision = precision
        self.replaced = replaced
        """A ``forward`` that was set on the instance before; None when the class's own is in use."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        # What inspect.signature follows; libraries read the argument names of forward.
        if self.replaced is not None:
            return self.replaced
        bound: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        precision = self.precision
        with precision.autocast():
            if self.replaced is None:
                output = type(self.module).forward(self.module, *args, **kwargs)
            else:
                output = self.replaced(*args, **kwargs)
        return to_float32(output) if precision.float32_outputs else output


def remove_from(model: nn.Module) -> None:
    """Undo :meth:`Precision.apply_to`; a model without a policy is left alone."""
    current = model.__dict__.get("forward")
    if not isinstance(current, PrecisionForward):
        return
    del model.__dict__["forward"]
    if current.replaced is not None:
        model.__dict__["forward"] = current.replaced


def _refuse_half_parameters(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    half = [name for name, p in parameters if p.requires_grad and p.dtype is torch.float16]
    if half:
        shown = ", ".join(half[:5]) + (f" and {len(half) - 5} more" if len(half) > 5 else "")
        raise ValueError(
            f"mixed_precision='fp16' trains float32 parameters, but these are float16: {shown}. Load the "
            "model in float32, or cast what is trained: "
            "for p in model.parameters(): p.data = p.data.float()"
        )


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns what ``model_forward`` returns, in float32."""

    @functools.wraps(model_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return to_float32(model_forward(*args, **kwargs))

    return forward
