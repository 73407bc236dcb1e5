"""What the adapters share: a run of a library, with a name and options. It imports none of them."""

from __future__ import annotations

import os
import warnings
from typing import Any

from nbaccel.runtime.tracking.base import GeneralTracker


class RunTracker(GeneralTracker):
    """An adapter to a library whose runs have a name and take options.

    Args:
        run_name: of the project or run, as the library calls it.
        logging_dir: where files go; for libraries that don't choose themselves.
        options: for the library's own call that opens a run.
    """

    def __init__(
        self, run_name: str | None = None, logging_dir: str | os.PathLike[str] | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = logging_dir
        self.options = options
        self.run: Any = None
        """The library's object; None before :meth:`start`."""
        self._left_out: set[str] = set()

    @property
    def tracker(self) -> Any:
        return self.run

    def say_left_out(self, key: str, value: Any, why: str) -> None:
        """Warn, once a name, that a value isn't noted."""
        if key not in self._left_out:
            self._left_out.add(key)
            warnings.warn(
                f"{self.name} leaves out {key!r}, a {type(value).__name__}: {why}", UserWarning, stacklevel=3
            )


def table_rows(columns: list[str] | None, data: list[list[Any]] | None, dataframe: Any) -> bool:
    """Whether a table comes as rows, rather than as a data frame.

    Raises:
        ValueError: it comes as neither.
    """
    if dataframe is not None:
        return False
    if columns is None or data is None:
        raise ValueError("log_table takes columns=... and data=..., or dataframe=...; pass one of the two")
    return True
