"""What TPU chips are called on the PCI bus."""

from __future__ import annotations

from typing import Final

GOOGLE_PCI_VENDOR: Final = "0x1ae0"
"""Google's number: that of its TPU chips, and of the network cards of its machines."""

PCI_NUMBERS: Final = {
    "v2/v3": "0x0027",  # the same for both
    "v4": "0x005e",
    "v5p": "0x0062",
    "v5e": "0x0063",
    "v6e": "0x006f",
    "7x": "0x0076",
}
"""Generation -> number of its chips, in hexadecimal."""
