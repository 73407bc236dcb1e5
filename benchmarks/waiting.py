"""Waiting: for a person who types, and for files that workers leave in the kernel's directory."""

from __future__ import annotations

import time

from tests.kernel import Cell, Kernel

THINKING_S = 3.0
"""Between the import and the first launch: somebody types the next cell."""


def wait_for_files(kernel: Kernel, cell: Cell, *names: str, timeout: float = 60) -> None:
    """Wait until the workers of a running cell have made all the files.

    Raises:
        TimeoutError: the cell ended without them, or `timeout` seconds are over.
    """
    deadline = time.monotonic() + timeout
    while not all((kernel.cwd / name).exists() for name in names):
        if cell.done or time.monotonic() > deadline:
            raise TimeoutError(f"the workers did not get as far as {names}; output: {cell.outputs}")
        try:
            cell.wait(0.02)  # which takes its messages in
        except TimeoutError:
            continue
