"""Loss scaling for fp16, right under accumulation, clipping and several optimizers.

torch's GradScaler wants one ``update`` for each round of steps. Called after every step of every
optimizer, it would change the scale between the backward of one loss and the step of another, and
the second's gradients would be divided by the wrong number. So the update waits until the next
backward, and gradients that wait for a step then are brought to the new scale.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim import Optimizer

from nbaccel.runtime import recovery


class LossScaler:
    """Drives a :class:`torch.amp.GradScaler` for any number of optimizers."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler
        """The one in use, for reading and for checkpoints."""
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()
        recovery.track(self)

    def register(self, optimizer: Optimizer) -> None:
        """Have the gradients of ``optimizer`` follow the scale while they wait for its step."""
        if all(ref() is not optimizer for ref in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on."""
        if self._stepped:
            self.settle()
        return self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of ``optimizer`` by the scale, once a step however often it is called."""
        key = id(optimizer)
        if key in self._stepped:
            self.settle()
        if key not in self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled.add(key)

    def step(self, optimizer: Optimizer, closure: Any = None) -> bool:
        """Step, unless a gradient overflowed.

        Returns:
            Whether the step was taken.

        Raises:
            RuntimeError: a closure was passed; it would compute unscaled gradients.
        """
        if closure is not None:
            raise RuntimeError("optimizer.step(closure) doesn't work with fp16; use mixed_precision='bf16'")
        key = id(optimizer)
        if key in self._stepped:
            self.settle()
        # scaler.step calls optimizer.step only when no gradient overflowed. Fused optimizers are
        # always called and look at the overflow flag themselves.
        looks_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
        taken: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: taken.append(True))
        try:
            self.scaler.step(optimizer)
        finally:
            hook.remove()
        self._stepped.add(key)
        if not looks_itself:
            return bool(taken)
        before = self.scaler.get_scale()
        self.settle()
        return self.scaler.get_scale() >= before

    def settle(self) -> None:
        """Adapt the scale to the steps since the last time."""
        if not self._stepped:
            return
        optimizers = [o for ref in self._optimizers if (o := ref()) is not None]
        waiting = [o for o in optimizers if id(o) not in self._stepped]
        before = self._current() if waiting else None
        self.scaler.update()
        if before is not None:
            after = self._current()
            for optimizer in waiting:
                # Unscaled gradients are at scale 1; torch's scaler has just forgotten that.
                factor = after if id(optimizer) in self._unscaled else after / before
                _multiply_gradients(optimizer, factor)
        self._stepped.clear()
        self._unscaled.clear()

    def _current(self) -> torch.Tensor:
        # get_scale() would wait for the device; scaling a one doesn't.
        return self.scaler.scale(torch.ones((), device=self.scaler._device))

    def forget_window(self) -> None:
        """Gradients of a broken-off window are gone, and with them what is noted of their scale."""
        self._stepped.clear()
        self._unscaled.clear()

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state, all steps accounted for."""
        self.settle()
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned."""
        self._stepped.clear()
        self._unscaled.clear()
        self.scaler.load_state_dict(state)


def _multiply_gradients(optimizer: Optimizer, factor: torch.Tensor) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.device))
