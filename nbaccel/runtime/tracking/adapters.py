"""Thin adapters to tracking services. Each imports its library when it is started, and no earlier."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import GeneralTracker, flatten_config, plain_number


class _RunTracker(GeneralTracker):
    """An adapter to a library whose runs have a name and take options."""

    def __init__(
        self, run_name: str | None = None, logging_dir: str | os.PathLike[str] | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = logging_dir
        self.options = options
        self.run: Any = None

    @property
    def tracker(self) -> Any:
        return self.run


class TensorBoardTracker(_RunTracker):
    """TensorBoard, through torch's own writer. Options go to ``SummaryWriter``."""

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

    def finish(self) -> None:
        self.run.close()


class WandBTracker(_RunTracker):
    """Weights & Biases. Options go to ``wandb.init``."""

    name: ClassVar[str] = "wandb"
    main_process_only: ClassVar[bool] = True

    def start(self) -> None:
        import wandb

        self.run = wandb.init(project=self.run_name, **self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.config.update(values, allow_val_change=True)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.run.log(values, step=step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Note lists of images by name."""
        import wandb

        self.log({key: [wandb.Image(image) for image in images] for key, images in values.items()}, step)

    def finish(self) -> None:
        self.run.finish()


class TrackioTracker(_RunTracker):
    """Trackio. Options go to ``trackio.init``."""

    name: ClassVar[str] = "trackio"

    def start(self) -> None:
        import trackio

        self.run = trackio.init(project=self.run_name, **self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.config.update(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.run.log({key: plain_number(value) for key, value in values.items()}, step=step)

    def finish(self) -> None:
        self.run.finish()


class CometMLTracker(_RunTracker):
    """Comet. Options go to ``comet_ml.start``."""

    name: ClassVar[str] = "comet_ml"

    def start(self) -> None:
        import comet_ml

        self.run = comet_ml.start(project_name=self.run_name, **self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.log_parameters(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if step is not None:
            self.run.set_step(step)
        for key, raw in values.items():
            value = plain_number(raw)
            if isinstance(value, int | float):
                self.run.log_metric(key, value, step=step, **kwargs)
            elif isinstance(value, dict):
                self.run.log_metrics(value, step=step, **kwargs)
            else:
                self.run.log_other(key, str(value))

    def finish(self) -> None:
        self.run.end()


class AimTracker(_RunTracker):
    """Aim. Options go to ``aim.Run``."""

    name: ClassVar[str] = "aim"
    requires_logging_directory: ClassVar[bool] = True

    def start(self) -> None:
        from aim import Run

        self.run = Run(repo=self.logging_dir, experiment=self.run_name, **self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run["hparams"] = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        for key, value in values.items():
            self.run.track(plain_number(value), name=key, step=step, **kwargs)

    def finish(self) -> None:
        self.run.close()


class MLflowTracker(_RunTracker):
    """MLflow. ``run_name`` is the experiment; options go to ``mlflow.start_run``."""

    name: ClassVar[str] = "mlflow"

    def start(self) -> None:
        import mlflow

        options = dict(self.options)
        experiment = options.pop("experiment_name", self.run_name)
        nested = options.pop("nested_run", False)
        if self.logging_dir is not None and "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(Path(self.logging_dir).absolute().as_uri())
        mlflow.set_experiment(experiment)
        self.run = mlflow.start_run(nested=nested, **options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        import mlflow
        from mlflow.utils.validation import MAX_PARAMS_TAGS_PER_BATCH

        items = [(key, str(value)) for key, value in flatten_config(values).items()]
        for start in range(0, len(items), MAX_PARAMS_TAGS_PER_BATCH):
            mlflow.log_params(dict(items[start : start + MAX_PARAMS_TAGS_PER_BATCH]))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        import mlflow

        plain = {key: plain_number(value) for key, value in values.items()}
        mlflow.log_metrics({k: v for k, v in plain.items() if isinstance(v, int | float)}, step=step)

    def finish(self) -> None:
        import mlflow

        mlflow.end_run()


class ClearMLTracker(_RunTracker):
    """ClearML. Options go to ``Task.init``; a task that runs already is used and left open."""

    name: ClassVar[str] = "clearml"

    def start(self) -> None:
        from clearml import Task

        self.run = Task.current_task()
        self._own = self.run is None
        if self._own:
            self.run = Task.init(
                **{"project_name": self.run_name, "task_name": self.run_name, **self.options}
            )

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.connect_configuration(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        logger = self.run.get_logger()
        for key, raw in values.items():
            value = plain_number(raw)
            if not isinstance(value, int | float):
                logger.report_text(f"{key}: {value}")
            elif step is None:
                logger.report_single_value(name=key, value=value, **kwargs)
            else:
                title, _, series = key.partition("/")
                logger.report_scalar(
                    title=title, series=series or title, value=value, iteration=step, **kwargs
                )

    def finish(self) -> None:
        if self._own:
            self.run.close()


class DVCLiveTracker(_RunTracker):
    """DVCLive. Options go to ``dvclive.Live``; an object of that class may be passed as ``live``."""

    name: ClassVar[str] = "dvclive"

    def start(self) -> None:
        from dvclive import Live

        live = self.options.pop("live", None)
        self.run = live if live is not None else Live(**self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.log_params(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if step is not None:
            self.run.step = step
        for key, value in values.items():
            self.run.log_metric(key, plain_number(value), **kwargs)
        self.run.next_step()

    def finish(self) -> None:
        self.run.end()


class SwanLabTracker(_RunTracker):
    """SwanLab. Options go to ``swanlab.init``."""

    name: ClassVar[str] = "swanlab"

    def start(self) -> None:
        import swanlab

        self.run = swanlab.init(project=self.run_name, **self.options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        import swanlab

        swanlab.config.update(values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.run.log({key: plain_number(value) for key, value in values.items()}, step=step, **kwargs)

    def finish(self) -> None:
        self.run.finish()
