"""The environment variables that hide accelerators from a process: how they are read, how to narrow them.

The rules for ``CUDA_VISIBLE_DEVICES`` are the driver's, as torch restates them where it counts devices
through NVML (``torch.cuda``):

* not set: all. Set and empty: none.
* The first entry decides between numbers, ``GPU-`` identifiers and ``MIG-`` identifiers; the list ends
  before the first entry of another kind.
* Of a number as many leading digits count as there are; a negative one, or a text without a number
  (``NoDevFiles``), ends the list. One beyond the last GPU ends it too.
* An identifier may be cut short as long as one GPU only has that beginning; otherwise the list ends.
* One GPU named twice: none at all.

Nothing here asks the hardware, or changes ``os.environ``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

CUDA = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
XPU = "ZE_AFFINITY_MASK"

DECIDING_NAMES = (
    CUDA,
    "CUDA_DEVICE_ORDER",
    HIP,
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    XPU,
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ONEAPI_DEVICE_SELECTOR",
)
"""An answer about devices holds as long as these have the same values."""

_PREFIXES = ("GPU-", "MIG-")
_LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)


def cuda_entries(text: str | None) -> tuple[str, ...] | None:
    """The entries of ``CUDA_VISIBLE_DEVICES`` that count, numbers in plain form; None: all GPUs."""
    if text is None:
        return None
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            return _identifiers(text, prefix)
    numbers: list[str] = []
    for entry in text.split(","):
        match = _LEADING_NUMBER.match(entry)
        number = int(match[1]) if match else -1
        if number < 0:
            break
        if str(number) in numbers:
            return ()
        numbers.append(str(number))
    return tuple(numbers)


def _identifiers(text: str, prefix: str) -> tuple[str, ...]:
    found: list[str] = []
    for entry in text.split(","):
        if entry in found:
            return ()
        if not entry.startswith(prefix):
            break
        found.append(entry)
    return tuple(found)


def has_mig(entries: Sequence[str] | None) -> bool:
    """Whether the entries name parts of GPUs."""
    return bool(entries) and entries is not None and entries[0].startswith("MIG-")


def has_numbers(entries: Sequence[str] | None) -> bool:
    """Whether the meaning of the entries hangs on the order in which CUDA counts GPUs."""
    return entries is None or (bool(entries) and not entries[0].startswith(_PREFIXES))


def visible_indices(entries: Sequence[str] | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Which GPUs of the machine are visible, in the order in which a process counts them.

    Args:
        entries: of :func:`cuda_entries`; no MIG ones.
        uuids: of all GPUs of the machine, each with its ``GPU-``.
    """
    if entries is None:
        return tuple(range(len(uuids)))
    indices: list[int] = []
    for entry in entries:
        index = _index_of(entry, uuids)
        if index is None:
            break
        if index in indices:
            return ()
        indices.append(index)
    return tuple(indices)


def _index_of(entry: str, uuids: Sequence[str]) -> int | None:
    if not entry.startswith(_PREFIXES):
        return int(entry) if int(entry) < len(uuids) else None
    matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def narrowed(platform: str, environ: Mapping[str, str], chosen: Sequence[int], count: int) -> dict[str, str]:
    """What a worker's environment needs so that it sees the chosen devices, counted from 0.

    Args:
        platform: ``cuda``, ``rocm``, ``xpu``, ``mps`` or ``cpu``.
        environ: the environment that the worker has otherwise.
        chosen: device numbers as a process with ``environ`` counts them.
        count: how many such a process sees.

    Raises:
        ValueError: the present value can't be narrowed.
    """
    if tuple(chosen) == tuple(range(count)):
        return {}  # all of them, in order: what the user set says so already
    if platform == "cuda":
        return {CUDA: _pick(CUDA, environ.get(CUDA), cuda_entries(environ.get(CUDA)), chosen)}
    if platform == "rocm":
        # HIP reads either name; ROCR_VISIBLE_DEVICES works a layer below, and its numbers stay as they are.
        name = HIP if HIP in environ else CUDA
        value = _pick(name, environ.get(name), cuda_entries(environ.get(name)), chosen)
        return {HIP: value, CUDA: value} if CUDA in environ else {HIP: value}
    if platform == "xpu":
        text = environ.get(XPU)
        entries = tuple(entry.strip() for entry in text.split(",")) if text else None
        if entries is not None and len(entries) != count:
            # An entry can stand for a card with several tiles: which device is whose can't be told.
            raise ValueError(
                f"devices {list(chosen)} can't be picked out of {XPU}={text!r}, which has {len(entries)} "
                f"entries for {count} devices; unset it, or set it to the devices that you want"
            )
        return {XPU: _pick(XPU, text, entries, chosen)}
    return {}


def _pick(name: str, text: str | None, entries: Sequence[str] | None, chosen: Sequence[int]) -> str:
    if entries is None:
        return ",".join(str(index) for index in chosen)
    if max(chosen) >= len(entries):
        raise ValueError(
            f"device {max(chosen)} can't be picked out of {name}={text!r}, which names {len(entries)}; "
            "unset it, or set it to the devices that you want"
        )
    return ",".join(entries[index] for index in chosen)
