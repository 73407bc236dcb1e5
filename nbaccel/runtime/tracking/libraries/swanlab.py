"""SwanLab."""

from __future__ import annotations

from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import plain_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker


class SwanLabTracker(RunTracker):
    """``run_name`` is the project. Options go to ``swanlab.init``, e.g. ``mode="offline"``."""

    name: ClassVar[str] = "swanlab"

    def start(self) -> None:
        import swanlab

        self.run = swanlab.init(**{"project": self.run_name, **self.options})

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        import swanlab

        swanlab.config.update(plain_config(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        from swanlab import Text

        plain = {key: plain_number(value) for key, value in values.items()}
        noted = {key: Text(value) if isinstance(value, str) else value for key, value in plain.items()}
        self.run.log(noted, step=step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Note lists of images by name. Further options go to ``swanlab.Image``."""
        from swanlab import Image

        self.run.log(
            {key: [Image(image, **kwargs) for image in images] for key, images in values.items()}, step=step
        )

    def finish(self) -> None:
        self.run.finish()
