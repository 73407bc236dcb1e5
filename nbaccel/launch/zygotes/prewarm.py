"""Gets ready while the user still writes the next cell.

In a live kernel the zygote starts with the import of the launcher, and after each cell the libraries
that the notebook uses by then are imported in a child zygote, in the background. So the first launch
finds everything in place. ``NBACCEL_PREWARM=0`` turns both off; a plain script never gets either.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from nbaccel.launch.system import process
from nbaccel.launch.zygotes import zygote_client

SWITCH = "NBACCEL_PREWARM"
"""Environment name: 0 leaves everything to the first launch."""

_is_following = False


def in_kernel() -> None:
    """Start the zygote and follow the notebook's imports, where there is a live kernel."""
    global _is_following
    if os.environ.get(SWITCH) == "0" or "ipykernel" not in sys.modules or not process.forks_safely():
        return
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return
    zygote_client.start_zygote()
    if not _is_following:
        _is_following = True
        shell.events.register("post_run_cell", lambda *_: follow(shell.user_ns))


def follow(namespace: Mapping[str, Any]) -> None:
    """Have what a namespace uses of libraries imported before the next launch; returns at once."""
    if os.environ.get(SWITCH) != "0":
        zygote_client.preload_in_background(frozenset(modules_in_use(namespace.values())))


def modules_in_use(values: Iterable[Any]) -> set[str]:
    """What has been imported of the packages that values are modules of, or come from."""
    packages = set()
    for value in list(values):
        if isinstance(value, types.ModuleType):
            packages.add(value.__name__.partition(".")[0])
        elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            packages.add(str(value.__module__).partition(".")[0])
    return {name for name in list(sys.modules) if name.partition(".")[0] in packages}
