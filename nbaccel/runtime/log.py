"""A logger that speaks once, not once a rank."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import MutableMapping
from typing import Any

from nbaccel.runtime.free_collectives import wait_for_everyone
from nbaccel.runtime.runtime import current, is_up

LEVEL_VARIABLE = "NBACCEL_LOG_LEVEL"


class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """Passes records on from rank 0 only, unless told otherwise.

    Each method takes ``main_process_only=False`` to log on every rank, and then ``in_order=True`` to let
    the ranks speak one after the other, which is collective.
    """

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log on rank 0, or on all ranks.

        Raises:
            RuntimeError: there is no Accelerator yet, so it isn't known which rank this is.
        """
        if not is_up():
            raise RuntimeError(
                "make an Accelerator (or PartialState()) before logging: the rank isn't known yet"
            )
        main_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs.setdefault("stacklevel", 2)
        if not self.isEnabledFor(level):
            return
        environment = current().environment
        if not in_order or main_only:
            if not main_only or environment.rank == 0:
                text, options = self.process(msg, kwargs)
                self.logger.log(level, text, *args, **options)
            return
        for rank in range(environment.world_size):
            if rank == environment.rank:
                text, options = self.process(msg, kwargs)
                self.logger.log(level, text, *args, **options)
            wait_for_everyone()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """As the record is passed on: unchanged."""
        return msg, kwargs

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # a logger lives as long as its module
    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Warn, but only the first time with these arguments."""
        self.warning(*args, **kwargs)


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """A logger for ``name`` that speaks on rank 0 only unless told otherwise.

    Args:
        name: usually ``__name__``.
        log_level: e.g. ``"INFO"``; ``NBACCEL_LOG_LEVEL`` by default.
    """
    logger = logging.getLogger(name)
    level = log_level or os.environ.get(LEVEL_VARIABLE)
    if level:
        logger.setLevel(level.upper())
        logger.root.setLevel(level.upper())
    return MultiProcessAdapter(logger, {})
