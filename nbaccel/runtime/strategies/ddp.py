"""A full replica on each rank, gradients averaged while backward runs (DistributedDataParallel)."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from nbaccel.runtime.process_group import add_group_user
from nbaccel.runtime.strategies.base import Strategy

_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")


class ReplicatedModel(DistributedDataParallel):
    """A DDP model that can let go of a process group that ends, and go on with the next one."""

    def __init__(
        self,
        module: nn.Module,
        options: dict[str, Any],
        register_hook: Callable[[DistributedDataParallel], None] | None = None,
    ) -> None:
        super().__init__(module, **options)
        self._options = options
        self._register_hook = register_hook
        if register_hook is not None:
            register_hook(self)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's own.

        Raises:
            RuntimeError: parameters took no part in the last backward; it names them and the option to set.
        """
        try:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            names = _without_gradient(self.module, str(error))
            if names is None:
                raise
            raise RuntimeError(
                f"parameters took no part in the last loss: {names or 'torch does not say which'}; if that's "
                "meant, pass Accelerator(kwargs_handlers=[DistributedDataParallelKwargs("
                "find_unused_parameters=True)]), else use the model's whole output in the loss"
            ) from error

    def __getattr__(self, name: str) -> Any:
        """What the model has under this name, so that code reads it alike on any number of processes.

        Raises:
            AttributeError: it has none, or it is a method: that would run the model past its gradients'
                averaging, and has to be asked for.
        """
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is None or name.startswith("__") or not hasattr(module, name):
                raise
        value = getattr(module, name)
        if isinstance(value, MethodType):
            raise AttributeError(  # noqa: TRY004  # what a missing attribute raises
                "a method of a prepared model would run past the averaging of gradients; if that is meant, "
                f"write accelerator.unwrap_model(model).{name}(...)"
            )
        return value

    def release_group(self) -> None:
        """Drop what pins the group: reducer, logger and the group itself."""
        # Untyped on purpose: DDP declares them as always there.
        for name in ("reducer", "logger", "process_group"):
            setattr(self, name, None)

    def group_key(self) -> str:
        """Shapes of the parameters: ranks that have the same model have the same shapes."""
        return f"model {[tuple(parameter.shape) for parameter in self.module.parameters()]}"

    def rebind_group(self) -> None:
        """Build the reducer anew over the group that is up now. Rank 0's parameters go to all ranks."""
        fresh = ReplicatedModel(self.module, self._options, self._register_hook)
        fresh.training = self.training
        self.__dict__.clear()
        self.__dict__.update(fresh.__dict__)


def _without_gradient(module: nn.Module, text: str) -> str | None:
    """Names of the parameters that torch's message counts; None when it is about something else."""
    if not text.startswith(_UNFINISHED):
        return None
    found = _INDICES.search(text)
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    return ", ".join(names[int(index)] for index in found[1].split()) if found else ""


class DdpStrategy(Strategy):
    """Options are those of DistributedDataParallel; a communication hook may be registered on each model."""

    name: ClassVar[str] = "ddp"

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        register_hook: Callable[[DistributedDataParallel], None] | None = None,
    ) -> None:
        self.options = options or {}
        self.register_hook = register_hook

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        # DDP refuses a model without trainable parameters; there is nothing to average in it either.
        if not any(p.requires_grad for p in model.parameters()):
            return model
        options = dict(self.options)
        if device.type != "cpu":
            options |= {"device_ids": [device.index], "output_device": device.index}
        wrapped = ReplicatedModel(model, options, self.register_hook)
        add_group_user(wrapped)
        return wrapped

    def unwrap(self, model: nn.Module) -> nn.Module:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        assert isinstance(inner, nn.Module)
        return inner

    def is_wrapped(self, model: nn.Module) -> bool:
        return isinstance(model, DistributedDataParallel)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def join(self, models: list[Any]) -> AbstractContextManager[Any]:
        return Join(models)

    def sync_next_backward(self, model: nn.Module) -> None:
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = True
            model.require_forward_param_sync = True
            model.reducer.prepare_for_backward([])
