"""prepare and its parts, and giving back what was prepared."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from nbaccel.runtime import recovery
from nbaccel.runtime.data.prepare import prepare_data_loader, skip_first_batches
from nbaccel.runtime.facets.core import AcceleratorParts
from nbaccel.runtime.modules import extract_model_from_parallel, is_compiled_module, move_module
from nbaccel.runtime.optimizer import AcceleratedOptimizer, inner_optimizer, rebind
from nbaccel.runtime.replicas import note_prepared
from nbaccel.runtime.scheduler import AcceleratedScheduler


class PreparationFacet(AcceleratorParts):
    """Wraps the objects of a training loop for the place it runs at."""

    def prepare(self, *args: Any, device_placement: list[bool | None] | None = None) -> Any:
        """Prepare models, optimizers, loaders and schedulers, in any order.

        Args:
            args: the objects. Others come back as they are.
            device_placement: one entry an object: whether to move it to the device; None means as the
                Accelerator was told.

        Returns:
            The prepared objects in the order of ``args``; a single one by itself.

        Raises:
            ValueError: ``device_placement`` has another length than ``args``, or a model can't be
                trained in the chosen precision.
        """
        places = device_placement if device_placement is not None else [None] * len(args)
        if len(places) != len(args):
            raise ValueError(f"device_placement has {len(places)} entries for {len(args)} objects")
        # Optimizers come after models, whose parameters may move; schedulers after optimizers.
        prepared = [self._prepare_first(obj, place) for obj, place in zip(args, places, strict=True)]
        prepared = [
            self.prepare_optimizer(obj, place) if isinstance(obj, Optimizer) else obj
            for obj, place in zip(prepared, places, strict=True)
        ]
        prepared = [self.prepare_scheduler(obj) if _is_scheduler(obj) else obj for obj in prepared]
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _prepare_first(self, obj: Any, place: bool | None) -> Any:
        if isinstance(obj, DataLoader):
            return self.prepare_data_loader(obj, place)
        if isinstance(obj, nn.Module):
            return self.prepare_model(obj, place)
        return obj

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Move ``model`` to the device, set its precision, and keep its replicas in step.

        Args:
            model: any module. One that was prepared before is prepared anew for this Accelerator.
            device_placement: whether to move it; None means as the Accelerator was told.
            evaluation_mode: it won't be trained, so replicas needn't be kept in step.

        Raises:
            ValueError: fp16 with parameters that are float16 already.
        """
        if any(model is known for known in self._models):
            return model
        inner = self._strategy.unwrap(model)
        if self.device_placement if device_placement is None else device_placement:
            self._move(inner)
        self._precision.apply_to(inner)
        if evaluation_mode:
            prepared = inner
        elif self._strategy.is_wrapped(model):
            prepared = model
        else:
            prepared = self._strategy.wrap(inner, self._runtime.device)
        if self._dynamo.compiles() and not is_compiled_module(prepared):
            prepared = self._dynamo.compile(prepared)
        self._models.append(prepared)
        note_prepared(prepared)
        return prepared

    def _move(self, model: nn.Module) -> None:
        moved = move_module(model, self._runtime.device)
        if not moved:
            return
        self._moved.update(moved)
        for optimizer in self._optimizers:
            rebind(optimizer.optimizer, self._moved.get)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Whether a device map has spread ``model`` over several devices, so that it can't be replicated."""
        return len(set(getattr(model, "hf_device_map", {}).values())) > 1

    def prepare_optimizer(
        self, optimizer: Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Have ``optimizer`` step only at the end of a window, and with unscaled gradients."""
        if any(optimizer is known for known in self._optimizers):
            return optimizer  # type: ignore[return-value]
        place = self.device_placement if device_placement is None else device_placement
        inner = inner_optimizer(optimizer)
        if self._moved:
            rebind(inner, self._moved.get)
        prepared = AcceleratedOptimizer(
            inner, place, self._loss_scaler, self.gradient_state, strategy=self._strategy
        )
        if self._loss_scaler is not None:
            self._loss_scaler.register(inner)
        self._optimizers.append(prepared)
        if inner.state and self._runtime.environment.world_size > 1:
            # It has stepped before, on each rank by itself perhaps: the model gets rank 0's parameters too.
            recovery.equalise(prepared, self._runtime.communicator)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """Have ``scheduler`` step only when its optimizer has stepped."""
        if any(scheduler is known for known in self._schedulers):
            return scheduler  # type: ignore[no-any-return]
        inner = scheduler.scheduler if isinstance(scheduler, AcceleratedScheduler) else scheduler
        used = getattr(inner, "optimizer", None)
        own = [o for o in self._optimizers if o is used or o.optimizer is used]
        prepared = AcceleratedScheduler(
            inner,
            own or list(self._optimizers),
            self.step_scheduler_with_optimizer,
            self.dataloader_config.split_batches,
            steps_per_update=self._scheduler_steps,
            gradient_state=self.gradient_state,
        )
        self._schedulers.append(prepared)
        return prepared

    def prepare_data_loader(
        self,
        data_loader: DataLoader[Any],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable[..., Any] | None = None,
    ) -> DataLoader[Any]:
        """Have ``data_loader`` yield this rank's part of the data, on the device.

        See :func:`nbaccel.runtime.data.prepare.prepare_data_loader`.
        """
        if any(data_loader is known for known in self._dataloaders):
            return data_loader
        config, runtime = self.dataloader_config, self._runtime
        place = self.device_placement if device_placement is None else device_placement
        prepared = prepare_data_loader(
            data_loader,
            runtime.device,
            runtime.environment.world_size,
            runtime.environment.rank,
            split_batches=config.split_batches,
            put_on_device=place,
            dispatch_batches=config.dispatch_batches,
            even_batches=config.even_batches,
            slice_fn_for_dispatch=slice_fn_for_dispatch,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=config.data_seed,
            non_blocking=config.non_blocking,
            use_stateful_dataloader=config.use_stateful_dataloader,
            communicator=runtime.communicator,
        )
        self._dataloaders.append(prepared)
        return prepared

    def skip_first_batches(self, dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
        """See :func:`nbaccel.runtime.data.prepare.skip_first_batches`."""
        return skip_first_batches(dataloader, num_batches)

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """The module that was prepared.

        Args:
            model: a prepared module; another one comes back as it is.
            keep_fp32_wrapper: leave its forward under mixed precision. Without, it is the plain module
                again, for good.
            keep_torch_compile: leave it compiled.
        """
        return extract_model_from_parallel(model, keep_fp32_wrapper, keep_torch_compile)

    def free_memory(self, *objects: Any) -> Any:
        """Let go of everything prepared, and give cached memory back.

        Args:
            objects: further references to drop; assign the result to their names.

        Returns:
            A list of as many None.
        """
        for group in (self._models, self._optimizers, self._schedulers, self._dataloaders):
            group.clear()
        self._watch.forget()
        count = len(objects)
        del objects
        # Prepared models refer to themselves, so counting references doesn't free them.
        gc.collect()
        self._runtime.kind.empty_cache()
        return [None] * count

    def clear(self, *objects: Any) -> Any:
        """Another name for :meth:`free_memory`."""
        return self.free_memory(*objects)


def _is_scheduler(obj: Any) -> bool:
    return isinstance(obj, (torch.optim.lr_scheduler.LRScheduler, AcceleratedScheduler))
