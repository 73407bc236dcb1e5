"""All that is needed to go on with a run: models, optimizers, schedulers, loaders, scaler, random numbers.

Both functions are collective. Rank 0 (of each node, on request) writes what is the same everywhere,
each rank its own random state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nbaccel.runtime import rng
from nbaccel.runtime.checkpoints import folder
from nbaccel.runtime.checkpoints.plain import load_plain, save_plain
from nbaccel.runtime.checkpoints.weights import load_weights, save_weights
from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.data.loader import PreparedLoader
from nbaccel.runtime.loss_scaler import LossScaler
from nbaccel.runtime.optimizer import AcceleratedOptimizer
from nbaccel.runtime.scheduler import AcceleratedScheduler


@dataclass
class Pieces:
    """What makes up a run."""

    models: Sequence[nn.Module]
    """Unwrapped."""

    optimizers: Sequence[AcceleratedOptimizer]
    schedulers: Sequence[AcceleratedScheduler]
    loaders: Sequence[PreparedLoader]
    custom: Sequence[Any]
    """Objects with ``state_dict`` and ``load_state_dict``."""

    scaler: LossScaler | None

    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        return {
            "models": len(self.models),
            "optimizers": len(self.optimizers),
            "schedulers": len(self.schedulers),
            "loaders": len(self.loaders),
            "custom": len(self.custom),
        }


def _numbered(stem: str, index: int, suffix: str) -> str:
    return f"{stem}{'' if index == 0 else f'_{index}'}{suffix}"


def random_state_file(rank: int) -> str:
    """Name of the file with the random state of ``rank``."""
    return f"random_states_{rank}.pt"


def save(
    place: Path,
    pieces: Pieces,
    communicator: Communicator,
    unit: torch.device,
    *,
    writes: bool,
    safe_serialization: bool = True,
    pre_hooks: Sequence[Callable[..., None]] = (),
    manifest: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint to ``place``, whole or not at all.

    Args:
        place: the folder.
        pieces: the run.
        communicator: connects the ranks.
        unit: this rank's device.
        writes: whether this rank writes what is the same everywhere.
        safe_serialization: weights as safetensors; otherwise through torch.save.
        pre_hooks: each is called with the models, their weights and the folder that is being written, and
            may take weights out of the list to save them in its own way.
        manifest: more to note.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.start(place) if writes else folder.writing_place(place)
    communicator.barrier()
    models = list(pieces.models)
    weights: list[dict[str, Any]] = [model.state_dict() for model in models] if writes or pre_hooks else []
    for hook in pre_hooks:
        hook(models, weights, str(fresh))
    if writes:
        for i, state in enumerate(weights):
            if safe_serialization:
                save_weights(state, fresh / _numbered("model", i, ".safetensors"))
            else:
                save_plain(state, fresh / _numbered("pytorch_model", i, ".bin"), what=f"model {i}")
        _save_states(fresh, pieces)
    own = rng.full_state(unit)
    save_plain(own, fresh / random_state_file(communicator.rank), what="random numbers")
    communicator.barrier()
    if writes:
        noted = {
            "format": 1,
            "num_processes": communicator.world_size,
            "saved": {**pieces.counts(), "models": len(weights)},
            "optimizer_steps": [optimizer.steps_taken for optimizer in pieces.optimizers],
            "epochs": [loader.state_dict()["epoch"] for loader in pieces.loaders],
            **(manifest or {}),
        }
        folder.finish(place, noted)
    communicator.barrier()
    # On some devices talking to each other moves the generator on, and the run is to go on as a resumed one.
    rng.set_device_state(own, unit)


def _save_states(fresh: Path, pieces: Pieces) -> None:
    for i, optimizer in enumerate(pieces.optimizers):
        save_plain(optimizer.state_dict(), fresh / _numbered("optimizer", i, ".bin"), what=f"optimizer {i}")
    for i, scheduler in enumerate(pieces.schedulers):
        path = fresh / _numbered("scheduler", i, ".bin")
        save_plain(scheduler.state_dict(), path, what=f"scheduler {i}", check=True)
    for i, loader in enumerate(pieces.loaders):
        save_plain(loader.state_dict(), fresh / _numbered("loader", i, ".bin"), what=f"loader {i}")
    for i, obj in enumerate(pieces.custom):
        what = f"{type(obj).__name__} (registered object {i})"
        save_plain(obj.state_dict(), fresh / f"custom_checkpoint_{i}.bin", what=what, check=True)
    if pieces.scaler is not None:
        save_plain(pieces.scaler.state_dict(), fresh / "scaler.bin", what="the loss scaler")


def load(
    place: Path,
    pieces: Pieces,
    communicator: Communicator,
    unit: torch.device,
    *,
    pre_hooks: Sequence[Callable[..., None]] = (),
    map_location: Any = None,
    **load_model_options: Any,
) -> dict[str, Any]:
    """Bring a run back from ``place``.

    Args:
        place: the folder of a complete checkpoint.
        pieces: the run, prepared as it was when it was saved.
        communicator: connects the ranks.
        unit: this rank's device.
        pre_hooks: each is called with the models and the folder, and may take models out of the list to
            load them in its own way.
        map_location: where states are read to; the CPU by default.
        load_model_options: for ``load_state_dict`` of the models.

    Returns:
        The manifest.

    Raises:
        FileNotFoundError: no complete checkpoint, or a piece of it is missing.
        ValueError: the checkpoint has other pieces than the run.
    """
    source, manifest = folder.open_complete(place)
    models = list(pieces.models)
    for hook in pre_hooks:
        hook(models, str(source))
    _compare(manifest["saved"], pieces.counts(), source, hooked=bool(pre_hooks))
    for i, model in enumerate(models):
        safe = source / _numbered("model", i, ".safetensors")
        plain = source / _numbered("pytorch_model", i, ".bin")
        state = load_weights(safe) if safe.exists() else load_plain(plain, what=f"model {i}")
        model.load_state_dict(state, **load_model_options)
    where = map_location or "cpu"
    for i, optimizer in enumerate(pieces.optimizers):
        path = source / _numbered("optimizer", i, ".bin")
        optimizer.load_state_dict(load_plain(path, what=f"optimizer {i}", map_location=where))
        optimizer.steps_taken = manifest["optimizer_steps"][i]
    for i, scheduler in enumerate(pieces.schedulers):
        scheduler.load_state_dict(
            load_plain(source / _numbered("scheduler", i, ".bin"), what=f"scheduler {i}")
        )
    for i, loader in enumerate(pieces.loaders):
        path = source / _numbered("loader", i, ".bin")
        loader.load_state_dict(load_plain(path, what=f"loader {i}"))
    for i, obj in enumerate(pieces.custom):
        path = source / f"custom_checkpoint_{i}.bin"
        obj.load_state_dict(load_plain(path, what=f"registered object {i}"))
    if pieces.scaler is not None:
        pieces.scaler.load_state_dict(load_plain(source / "scaler.bin", what="the loss scaler"))
    _load_random_state(source, communicator.rank, unit, manifest["num_processes"])
    return manifest


def _compare(saved: dict[str, int], wanted: dict[str, int], source: Path, *, hooked: bool) -> None:
    # A hook may have saved or loaded models in its own way.
    kinds = [kind for kind in wanted if not (hooked and kind == "models")]
    wrong = [kind for kind in kinds if saved[kind] != wanted[kind]]
    if wrong:
        told = "; ".join(f"{kind}: {saved[kind]} saved, {wanted[kind]} prepared" for kind in wrong)
        raise ValueError(
            f"the checkpoint {source} doesn't fit what is prepared ({told}). Prepare the same objects, in "
            "the same order, before load_state"
        )


def _load_random_state(source: Path, rank: int, unit: torch.device, ranks_saved: int) -> None:
    path = source / random_state_file(rank)
    if path.exists():
        rng.set_full_state(load_plain(path, what="random numbers"), unit)
        return
    warnings.warn(
        f"the checkpoint {source} has no random state for rank {rank}: it was saved by {ranks_saved} "
        "processes. The numbers this rank draws aren't those of the interrupted run",
        stacklevel=4,
    )
