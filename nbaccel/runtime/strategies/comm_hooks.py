"""Communication hooks of DDP: how gradients are packed for their way between the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

HOOKS = ("no", "fp16", "bf16", "power_sgd", "batched_power_sgd")
WRAPPERS = ("no", "fp16", "bf16")


def register(model: DistributedDataParallel, hook: str, wrapper: str, options: dict[str, Any]) -> None:
    """Register a hook on ``model``.

    Args:
        model: a DDP model without a hook.
        hook: one of :data:`HOOKS`.
        wrapper: one of :data:`WRAPPERS`; compresses what ``hook`` sends.
        options: arguments of the PowerSGD state.

    Raises:
        ValueError: an unknown hook or wrapper.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    hooks: dict[str, Callable[..., Any]] = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "power_sgd": powerSGD_hook.powerSGD_hook,
        "batched_power_sgd": powerSGD_hook.batched_powerSGD_hook,
    }
    wrappers: dict[str, Callable[..., Any]] = {
        "fp16": default_hooks.fp16_compress_wrapper,
        "bf16": default_hooks.bf16_compress_wrapper,
    }
    if hook not in HOOKS:
        raise ValueError(f"comm_hook={hook!r} is not known; choose one of {', '.join(HOOKS)}")
    if wrapper not in WRAPPERS:
        raise ValueError(f"comm_wrapper={wrapper!r} is not known; choose one of {', '.join(WRAPPERS)}")
    if hook == "no":
        return
    chosen = hooks[hook] if wrapper == "no" else wrappers[wrapper](hooks[hook])
    state: Any = None
    if hook.endswith("power_sgd"):
        state = powerSGD_hook.PowerSGDState(process_group=None, **options)
    model.register_comm_hook(state, chosen)
