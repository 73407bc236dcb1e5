"""The table of TPU types: how a host's chips lie on processes and threads. Data and look-ups only.

========================  =====  =========  =======  =====
type                      chips  processes  threads  ranks
========================  =====  =========  =======  =====
v2-8, v3-8                    4          4        2      8
v4-8, v5p-8                   4          4        1      4
v5e-1, v6e-1                  1          1        1      1
v5e-4, v6e-4                  4          4        1      4
v5e-8, v6e-8                  8          8        1      8
7x-8                          4          4        1      4
========================  =====  =========  =======  =====

A process drives one chip. The rows, and what the processes are told, are torch_xla's own rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbaccel.runtime.tpu_chips import PCI_NUMBERS


@dataclass(frozen=True)
class Generation:
    """One generation of chips."""

    name: str
    """As in the names of types: ``v5e`` of ``v5e-8``."""

    pci_device: str
    """Its number on the PCI bus, in hexadecimal."""

    cores_per_chip: int
    """Devices that XLA makes of a chip; the process that drives it has so many ranks."""

    counts_cores: bool
    """The number in the type's name counts two a chip; otherwise one."""

    def type_name(self, chips: int) -> str:
        """``v5e-8``, ``v3-8``."""
        return f"{self.name}-{chips * (2 if self.counts_cores else 1)}"


# v2 and v3 are the same number on the bus. Ranks and processes are the same too, so only the name is open.
V2_OR_V3 = Generation("v2/v3", PCI_NUMBERS["v2/v3"], 2, True)

GENERATIONS: tuple[Generation, ...] = (
    V2_OR_V3,
    Generation("v4", PCI_NUMBERS["v4"], 1, True),
    Generation("v5p", PCI_NUMBERS["v5p"], 1, True),
    Generation("v5e", PCI_NUMBERS["v5e"], 1, False),
    Generation("v6e", PCI_NUMBERS["v6e"], 1, False),
    Generation("7x", PCI_NUMBERS["7x"], 1, True),
)

_SPELLINGS = {"v5litepod": "v5e", "v5lite": "v5e", "v5": "v5p", "tpu7x": "7x", "v7x": "7x"}
_TYPE_NAME = re.compile(r"(?:tpu-?)?(?P<generation>[a-z0-9]+?)-(?P<number>\d+)$")

_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}
"""How many chips a host has -> how they lie, in chips along three axes."""


def generation_of_chip(pci_device: str) -> Generation | None:
    """The generation with this number on the PCI bus."""
    return next((each for each in GENERATIONS if each.pci_device == pci_device), None)


def generation_named(accelerator_type: str) -> Generation | None:
    """The generation of a type as environments name it: ``v5litepod-8``, ``v3-8``, ``tpu7x-8``."""
    match = _TYPE_NAME.match(accelerator_type.strip().lower())
    if match is None:
        return None
    name = match["generation"]
    if name in ("v2", "v3"):
        return Generation(name, V2_OR_V3.pci_device, V2_OR_V3.cores_per_chip, V2_OR_V3.counts_cores)
    name = _SPELLINGS.get(name, name)
    return next((each for each in GENERATIONS if each.name == name), None)


def process_bounds(generation: Generation | None, chips: int) -> str | None:
    """What ``TPU_PROCESS_BOUNDS`` is for one process a chip; None where torch_xla has to find out itself."""
    bounds = _BOUNDS.get(chips)
    if bounds is not None and generation is not None and generation.name == "7x":
        return f"{bounds},2"
    return bounds
