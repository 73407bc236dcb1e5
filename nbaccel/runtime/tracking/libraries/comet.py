"""Comet."""

from __future__ import annotations

from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import plain_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker


class CometMLTracker(RunTracker):
    """``run_name`` is the project. Options go to ``comet_ml.start``, e.g. ``online=False``."""

    name: ClassVar[str] = "comet_ml"

    def start(self) -> None:
        import comet_ml

        self.run = comet_ml.start(**{"project_name": self.run_name, **self.options})

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.log_parameters(plain_config(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if step is not None:
            self.run.set_step(step)
        for key, raw in values.items():
            value = plain_number(raw)
            if isinstance(value, int | float):
                self.run.log_metric(key, value, step=step, **kwargs)
            elif isinstance(value, dict):
                self.run.log_metrics(value, prefix=key, step=step, **kwargs)
            else:
                self.run.log_other(key, str(value))

    def finish(self) -> None:
        self.run.end()
