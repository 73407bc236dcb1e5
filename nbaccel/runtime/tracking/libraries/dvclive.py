"""DVCLive."""

from __future__ import annotations

from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import plain_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker


class DVCLiveTracker(RunTracker):
    """Options go to ``dvclive.Live``; an object of that class may be passed as ``live``."""

    name: ClassVar[str] = "dvclive"

    def start(self) -> None:
        from dvclive import Live

        live = self.options.pop("live", None)
        self.run = live if live is not None else Live(**self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.log_params(plain_config(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if step is not None:
            self.run.step = step
        for key, raw in values.items():
            value = plain_number(raw)
            if isinstance(value, int | float | str):
                self.run.log_metric(key, value, **kwargs)
            else:
                self.say_left_out(key, value, "its metrics are numbers and text")
        self.run.next_step()

    def finish(self) -> None:
        self.run.end()
