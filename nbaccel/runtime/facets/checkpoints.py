"""Saving and loading, as the Accelerator shows them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nbaccel.runtime.checkpoints import folder, state
from nbaccel.runtime.checkpoints.hooks import Hooks, RemovableHook
from nbaccel.runtime.checkpoints.host import on_host
from nbaccel.runtime.checkpoints.plain import save_plain
from nbaccel.runtime.checkpoints.weights import save_sharded, save_weights
from nbaccel.runtime.collectives.rollcall import roll_call
from nbaccel.runtime.facets.core import AcceleratorParts
from nbaccel.runtime.facets.processes import ProcessFacet
from nbaccel.runtime.modules import extract_model_from_parallel

CHECKPOINTS = "checkpoints"
"""Folder in the project's, for checkpoints that are named automatically."""


class CheckpointFacet(ProcessFacet, AcceleratorParts):
    """``save_state`` and ``load_state`` are collective; call them on all ranks."""

    _save_hooks: Hooks
    _load_hooks: Hooks
    _custom: list[Any]
    _loaded_from: set[Path]

    @property
    def project_dir(self) -> Any:
        """Where the run keeps its files."""
        return self.project_configuration.project_dir

    @property
    def save_iteration(self) -> int:
        """Number of the next checkpoint that is named automatically."""
        return self.project_configuration.iteration

    @property
    def step(self) -> int:
        """Optimizer steps taken so far, the most of any prepared optimizer. Saved and loaded."""
        return max((optimizer.steps_taken for optimizer in self._optimizers), default=0)

    @property
    def should_save_model(self) -> bool:
        """Whether this rank writes what is the same everywhere."""
        each_node = self.project_configuration.save_on_each_node
        return self.is_local_main_process if each_node else self.is_main_process

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load further objects with the run.

        Raises:
            ValueError: an object lacks ``state_dict`` or ``load_state_dict``.
        """
        for obj in objects:
            lacking = [name for name in ("state_dict", "load_state_dict") if not hasattr(obj, name)]
            if lacking:
                raise ValueError(
                    f"{type(obj).__name__} has no {' and no '.join(lacking)}, so it can't be saved"
                )
        self._custom.extend(objects)

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHook:
        """Have ``hook(models, weights, output_dir)`` called before a checkpoint is written.

        It may save in its own way and take entries out of ``weights``.
        """
        return self._save_hooks.add(hook)

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHook:
        """Have ``hook(models, input_dir)`` called before a checkpoint is loaded.

        It may load in its own way and take entries out of ``models``.
        """
        return self._load_hooks.add(hook)

    def save_state(
        self, output_dir: str | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any
    ) -> str:
        """Save all that is needed to go on: what was prepared or registered, and random states.

        Collective. The folder is written beside its place and renamed, so a process that is killed
        meanwhile leaves an earlier checkpoint as it was.

        Args:
            output_dir: the folder; chosen by number when checkpoints are named automatically.
            safe_serialization: weights as safetensors.
            save_model_func_kwargs: accepted for compatibility.

        Returns:
            The folder.

        Raises:
            MissingRanksError: not all ranks called it.
            ValueError: no folder was said, the automatic one exists, or a state can't be saved.
        """
        self._refuse_after_end("save_state")
        if self.use_distributed:
            roll_call("save_state")
        if self.gradient_state.micro_steps and not self.gradient_state.sync_gradients:
            warnings.warn(
                "save_state was called inside a window of gradient accumulation: gradients aren't saved, so "
                "the micro-batches of this window are lost on resuming. Save where "
                "accelerator.sync_gradients is True",
                stacklevel=2,
            )
        config = self.project_configuration
        place = self._next_place() if config.automatic_checkpoint_naming else _said(output_dir, "output_dir")
        state.save(
            place,
            self._pieces(),
            self._runtime.communicator,
            self.device,
            writes=self.should_save_model,
            safe_serialization=safe_serialization,
            pre_hooks=self._save_hooks.all(),
            manifest={"iteration": config.iteration, "step": self.step},
        )
        if config.automatic_checkpoint_naming:
            config.iteration += 1
            if config.total_limit is not None and self.should_save_model:
                folder.thin_out(place.parent, config.total_limit, self._loaded_from)
            self.wait_for_everyone()
        return str(place)

    def _next_place(self) -> Path:
        config = self.project_configuration
        place = _said(config.project_dir, "project_dir") / CHECKPOINTS / f"checkpoint_{config.iteration}"
        if place.exists():
            raise ValueError(
                f"{place} exists already; set project_config.iteration past the last checkpoint, or load it "
                "first"
            )
        # No rank may look for the folder after another has begun to write it.
        self.wait_for_everyone()
        return place

    def load_state(
        self,
        input_dir: str | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Bring back what :meth:`save_state` saved. Collective; prepare everything first.

        Args:
            input_dir: the folder; the last automatic one by default.
            load_kwargs: only ``map_location`` is used.
            load_model_func_kwargs: for ``load_state_dict`` of the models, e.g. ``strict=False``.

        Raises:
            FileNotFoundError: no complete checkpoint, or a piece of it is missing.
            ValueError: the checkpoint has other pieces than what is prepared.
        """
        self._refuse_after_end("load_state")
        place = self._last_place() if input_dir is None else _said(input_dir, "input_dir")
        manifest = state.load(
            place,
            self._pieces(),
            self._runtime.communicator,
            self.device,
            pre_hooks=self._load_hooks.all(),
            map_location=(load_kwargs or {}).get("map_location"),
            **load_model_func_kwargs,
        )
        self._loaded_from = {place.resolve()}
        if self.project_configuration.automatic_checkpoint_naming:
            self.project_configuration.iteration = manifest["iteration"] + 1

    def _last_place(self) -> Path:
        parent = _said(self.project_configuration.project_dir, "project_dir") / CHECKPOINTS
        every = folder.numbered(parent)
        if not every:
            raise FileNotFoundError(f"there is no checkpoint in {parent}")
        return every[-1]

    def keep_checkpoint(self, path: str) -> None:
        """Never remove the checkpoint at ``path`` when old ones are thinned out."""
        if self.should_save_model:
            Path(path, folder.KEEP).touch()

    def _pieces(self) -> state.Pieces:
        return state.Pieces(
            [extract_model_from_parallel(model, keep_torch_compile=False) for model in self._models],
            self._optimizers,
            self._schedulers,
            self._dataloaders,
            self._custom,
            self._loss_scaler,
        )

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The full weights of a prepared model.

        Args:
            model: the model.
            unwrap: names as in the module that was prepared.
        """
        state_dict: dict[str, Any] = (
            extract_model_from_parallel(model, keep_torch_compile=False) if unwrap else model
        ).state_dict()
        # Where they are copied, only those ranks copy that write: host memory is scarce on TPU machines.
        return on_host(state_dict) if self.should_save_model else state_dict

    def save(self, obj: Any, f: str, safe_serialization: bool = False) -> None:
        """Write ``obj`` to the file ``f``, once.

        Args:
            obj: anything torch.save takes; a state dict of tensors with ``safe_serialization``.
            f: the file.
            safe_serialization: as safetensors.
        """
        if not self.should_save_model:
            return
        if safe_serialization:
            save_weights(obj, Path(f))
        else:
            torch.save(on_host(obj), f)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of ``model`` for others to load.

        Args:
            model: prepared or not.
            save_directory: the folder.
            max_shard_size: bytes in one file, as a number or text.
            safe_serialization: as safetensors; otherwise one file of torch.save.

        Raises:
            ValueError: ``save_directory`` is a file.
        """
        target = Path(save_directory)
        if target.is_file():
            raise ValueError(f"{target} is a file; pass a folder")
        if not self.should_save_model:
            return
        target.mkdir(parents=True, exist_ok=True)
        weights = self.get_state_dict(model)
        if safe_serialization:
            save_sharded(weights, target, "model", max_shard_size)
        else:
            save_plain(weights, target / "pytorch_model.bin", what="the model")


def _said(path: Any, name: str) -> Path:
    if path is None:
        raise ValueError(f"{name} isn't set; pass {name}=...")
    return Path(path)
