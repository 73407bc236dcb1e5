"""ClearML."""

from __future__ import annotations

from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import plain_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker, table_rows


class ClearMLTracker(RunTracker):
    """Options go to ``Task.init``; a task that runs already is used and left open.

    A name ``train/loss`` is the series ``loss`` of the plot ``train``.
    """

    name: ClassVar[str] = "clearml"

    def start(self) -> None:
        from clearml import Task

        self.run = Task.current_task()
        self._own = self.run is None
        if self._own:
            names = {"project_name": self.run_name, "task_name": self.run_name}
            self.run = Task.init(**{**names, **self.options})

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.connect_configuration(plain_config(values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        logger = self.run.get_logger()
        for key, raw in values.items():
            value = plain_number(raw)
            if not isinstance(value, int | float):
                logger.report_text(f"{key}: {value}", print_console=False)
            elif step is None:
                logger.report_single_value(name=key, value=value, **kwargs)
            else:
                title, series = _title_and_series(key)
                logger.report_scalar(title=title, series=series, value=value, iteration=step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Note one image by name, as an array ``[height, width, channels]`` or a PIL image."""
        logger = self.run.get_logger()
        for key, image in values.items():
            title, series = _title_and_series(key)
            logger.report_image(title=title, series=series, iteration=step, image=image, **kwargs)

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
            kwargs: for ``Logger.report_table``.

        Raises:
            ValueError: there are neither rows nor a data frame.
        """
        table = [columns, *(data or [])] if table_rows(columns, data, dataframe) else dataframe
        title, series = _title_and_series(table_name)
        self.run.get_logger().report_table(
            title=title, series=series, table_plot=table, iteration=step, **kwargs
        )

    def finish(self) -> None:
        if self._own:
            self.run.close()


def _title_and_series(name: str) -> tuple[str, str]:
    title, _, series = name.partition("/")
    return title, series or title
