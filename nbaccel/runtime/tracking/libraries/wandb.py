"""Weights & Biases."""

from __future__ import annotations

from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import plain_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker, table_rows


class WandBTracker(RunTracker):
    """``run_name`` is the project. Options go to ``wandb.init``."""

    name: ClassVar[str] = "wandb"

    def start(self) -> None:
        import wandb

        self.run = wandb.init(**{"project": self.run_name, **self.options})

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.config.update(plain_config(values), allow_val_change=True)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.run.log({key: plain_number(value) for key, value in values.items()}, step=step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Note lists of images by name. Further options go to ``wandb.Image``."""
        import wandb

        self.run.log(
            {key: [wandb.Image(image, **kwargs) for image in images] for key, images in values.items()},
            step=step,
        )

    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Note a table, of rows or of a data frame.

        Args:
            table_name: its name.
            columns: names of the columns, with ``data``.
            data: rows of values.
            dataframe: a pandas data frame, in place of the two.
            step: the training step.
            kwargs: for ``wandb.Table``.

        Raises:
            ValueError: there are neither rows nor a data frame.
        """
        import wandb

        if table_rows(columns, data, dataframe):
            table = wandb.Table(columns=columns, data=data, **kwargs)
        else:
            table = wandb.Table(dataframe=dataframe, **kwargs)
        self.run.log({table_name: table}, step=step)

    def finish(self) -> None:
        self.run.finish()
