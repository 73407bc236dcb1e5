"""Aim."""

from __future__ import annotations

from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import plain_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker


class AimTracker(RunTracker):
    """A run of that name in the repository at ``logging_dir``. Options go to ``aim.Run``."""

    name: ClassVar[str] = "aim"
    requires_logging_directory: ClassVar[bool] = True

    def start(self) -> None:
        from aim import Run

        self.run = Run(**{"repo": self.logging_dir, "experiment": self.run_name, **self.options})
        if self.run_name is not None:
            self.run.name = self.run_name

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run["hparams"] = plain_config(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        from aim import Text

        for key, raw in values.items():
            value = plain_number(raw)
            self.run.track(Text(value) if isinstance(value, str) else value, name=key, step=step, **kwargs)

    def log_images(
        self, values: dict[str, Any], step: int | None = None, kwargs: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """Note images by name.

        Args:
            values: by name an image as ``aim.Image`` takes it, or a pair of one and its caption.
            step: the training step.
            kwargs: options under ``aim_image`` for ``aim.Image``, under ``track`` for ``Run.track``.
        """
        from aim import Image

        options = kwargs or {}
        for key, value in values.items():
            image, caption = value if isinstance(value, tuple) else (value, "")
            picture = Image(image, **{"caption": caption, **options.get("aim_image", {})})
            self.run.track(picture, name=key, step=step, **options.get("track", {}))

    def finish(self) -> None:
        self.run.close()
