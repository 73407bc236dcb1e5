"""``%%accelerate`` and ``%accelerate``: cells that run on live workers.

Loaded with ``%load_ext nbaccel``. IPython is imported only by those who load it.
"""

from __future__ import annotations

from typing import Any


def load(shell: Any) -> None:
    """Register the magics with an IPython shell, and start what the first cell will need."""
    from nbaccel.magics.magic import AccelerateMagics, start

    if "nbaccel" not in getattr(shell, "_nbaccel_loaded", ()):
        shell._nbaccel_loaded = ("nbaccel",)  # noqa: SLF001  # on the shell, so that a new one gets its own
        shell.register_magics(AccelerateMagics(shell))
        start(shell)


def unload(shell: Any) -> None:
    """End the workers and take the magics away."""
    from nbaccel.magics.magic import stop

    stop(shell)
    shell._nbaccel_loaded = ()  # noqa: SLF001
