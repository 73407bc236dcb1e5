"""TensorBoard, through torch's own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import flatten_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker


class TensorBoardTracker(RunTracker):
    """Writes to ``<logging_dir>/<run_name>``. Options go to ``SummaryWriter``."""

    name: ClassVar[str] = "tensorboard"
    requires_logging_directory: ClassVar[bool] = True

    @property
    def writer(self) -> Any:
        """The ``SummaryWriter``, by the name that scripts use for what isn't a scalar."""
        return self.run

    def start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(self.logging_dir or ".", self.run_name or "")
        self.run = SummaryWriter(str(folder), **self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.add_hparams(flatten_config(values), metric_dict={})
        self.run.flush()

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        for key, raw in values.items():
            value = plain_number(raw)
            if isinstance(value, str):
                self.run.add_text(key, value, global_step=step, **kwargs)
            elif isinstance(value, dict):
                self.run.add_scalars(key, value, global_step=step, **kwargs)
            else:
                self.run.add_scalar(key, value, global_step=step, **kwargs)
        self.run.flush()

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Note batches of images by name, ``[n, channels, height, width]`` unless ``dataformats`` is said."""
        for key, images in values.items():
            self.run.add_images(key, images, global_step=step, **kwargs)
        self.run.flush()

    def finish(self) -> None:
        self.run.close()
