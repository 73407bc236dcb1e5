"""Trackio."""

from __future__ import annotations

from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import plain_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker


class TrackioTracker(RunTracker):
    """``run_name`` is the project. Options go to ``trackio.init``."""

    name: ClassVar[str] = "trackio"

    def start(self) -> None:
        import trackio

        self.run = trackio.init(**{"project": self.run_name, **self.options})

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.config.update(plain_config(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.run.log({key: plain_number(value) for key, value in values.items()}, step=step, **kwargs)

    def finish(self) -> None:
        self.run.finish()
