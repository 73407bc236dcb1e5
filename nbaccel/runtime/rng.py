"""Random number generators: seeding them all, their state as plain data, and the same one on all ranks."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import torch

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.devices import DEVICES, device_named


def set_seed(seed: int, offset: int = 0, deterministic: bool = False) -> int:
    """Seed Python's, NumPy's and torch's generators, on all devices that are in use.

    Args:
        seed: the seed.
        offset: added to it; the rank, for numbers that differ between ranks.
        deterministic: have torch use deterministic algorithms only.

    Returns:
        The seed that was used.
    """
    seed += offset
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
    return seed


def host_state() -> dict[str, Any]:
    """States of the generators on the host, made of tensors, numbers, text and lists only."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "torch": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), position, has_gauss, cached]
    return state


def set_host_state(state: dict[str, Any]) -> None:
    """Put back what :func:`host_state` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    # Where numpy isn't installed, nothing draws from it.
    if "numpy" in state and find_spec("numpy") is not None:
        import numpy as np

        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))  # noqa: NPY002


def full_state(unit: torch.device) -> dict[str, Any]:
    """As :func:`host_state`, with the generator of the device ``unit``."""
    state = host_state()
    own = device_named(unit.type).rng_state(unit)
    if own is not None:
        state["device"] = own.cpu()
    return state


def set_full_state(state: dict[str, Any], unit: torch.device) -> None:
    """Put back what :func:`full_state` returned, the device's part only if it is there."""
    set_host_state(state)
    set_device_state(state, unit)


def set_device_state(state: dict[str, Any], unit: torch.device) -> None:
    """Put back the device's part of what :func:`full_state` returned, if it is there."""
    if "device" in state:
        device_named(unit.type).set_rng_state(state["device"], unit)


def synchronize(
    communicator: Communicator,
    kinds: Iterable[str],
    unit: torch.device,
    generator: torch.Generator | None = None,
) -> None:
    """Give all ranks rank 0's generator state.

    Args:
        communicator: connects the ranks.
        kinds: ``torch``, ``generator``, or the type of the device in use.
        unit: this rank's device.
        generator: the one meant by ``generator``; nothing happens without it.

    Raises:
        ValueError: an unknown kind, or a device that isn't in use.
    """
    for kind in kinds:
        if kind == "torch":
            state = torch.get_rng_state()
            communicator.broadcast(state, 0)
            torch.set_rng_state(state)
        elif kind == "generator":
            if generator is not None:
                state = generator.get_state()
                communicator.broadcast(state, 0)
                generator.set_state(state)
        elif kind == unit.type and kind != "cpu":
            own = device_named(kind).rng_state(unit)
            assert own is not None
            communicator.broadcast(own, 0)
            device_named(kind).set_rng_state(own, unit)
        else:
            known = ["torch", "generator", *(name for name in DEVICES if name != "cpu")]
            raise ValueError(
                f"rng type {kind!r} can't be synchronised on {unit.type}; choose among {', '.join(known)}"
            )
