"""A progress bar that shows once, not once a rank."""

from __future__ import annotations

from typing import Any

from nbaccel.runtime.runtime import current


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """A tqdm bar, shown on the main process of each node only.

    Args:
        args: for tqdm.
        main_process_only: False shows it on every process.
        kwargs: for tqdm.

    Raises:
        ModuleNotFoundError: tqdm isn't installed.
    """
    from tqdm.auto import tqdm as bar

    if main_process_only:
        kwargs["disable"] = bool(kwargs.get("disable", False)) or current().environment.local_rank != 0
    return bar(*args, **kwargs)
