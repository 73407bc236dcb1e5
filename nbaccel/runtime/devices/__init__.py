"""The table of hardware kinds. A new kind is a new file and a line in the table."""

from __future__ import annotations

from nbaccel.runtime.devices.base import Device
from nbaccel.runtime.devices.cpu import CpuDevice
from nbaccel.runtime.devices.cuda import CudaDevice
from nbaccel.runtime.devices.mps import MpsDevice
from nbaccel.runtime.devices.tpu import TpuDevice
from nbaccel.runtime.devices.xla import XlaDevice
from nbaccel.runtime.devices.xpu import XpuDevice

# Order is the order of preference when nothing is said; the CPU comes last. XLA is there only where its
# runtime was started on purpose.
DEVICES: dict[str, Device] = {
    device.type: device
    for device in (XlaDevice(), CudaDevice(), XpuDevice(), TpuDevice(), MpsDevice(), CpuDevice())
}


def device_named(name: str) -> Device:
    """The kind of hardware called ``name``.

    Raises:
        ValueError: there is no such kind.
    """
    try:
        return DEVICES[name]
    except KeyError:
        raise ValueError(f"device type {name!r} is not known; known ones: {', '.join(DEVICES)}") from None


def detect_device() -> Device:
    """The first kind in the table that has at least one unit here."""
    return next(device for device in DEVICES.values() if device.is_available())


__all__ = ["DEVICES", "Device", "detect_device", "device_named"]
