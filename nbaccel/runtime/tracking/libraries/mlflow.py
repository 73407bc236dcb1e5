"""MLflow."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any, ClassVar

from nbaccel.runtime.tracking.base import flatten_config, plain_number
from nbaccel.runtime.tracking.run_tracker import RunTracker


class MLflowTracker(RunTracker):
    """A run of an experiment.

    Args:
        experiment_name: of the experiment; that of the project when it is opened by ``init_trackers``.
        logging_dir: keep the data in this folder, where ``MLFLOW_TRACKING_URI`` says nothing else.
        run_id: go on with this run.
        tags: of the run, as a dict or as JSON text.
        nested_run: open it inside a run that is open.
        run_name: of the run; MLflow invents one when None.
        description: of the run.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        nested_run: bool = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__(
            run_name,
            logging_dir,
            run_id=run_id,
            tags=json.loads(tags) if isinstance(tags, str) else tags,
            nested=nested_run,
            description=description,
        )
        self.experiment_name = experiment_name

    def start(self) -> None:
        import mlflow

        if self.logging_dir is not None and "MLFLOW_TRACKING_URI" not in os.environ:
            self._keep_in(Path(self.logging_dir).absolute())
        if self.options["run_id"] is None:
            mlflow.set_experiment(self.experiment_name)
        self.run = mlflow.start_run(run_name=self.run_name, **self.options)

    def _keep_in(self, folder: Path) -> None:
        import mlflow

        folder.mkdir(parents=True, exist_ok=True)
        # A data base: MLflow 3 refuses to start a store of plain files.
        mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        name = self.experiment_name
        if name is not None and mlflow.get_experiment_by_name(name) is None:
            # Otherwise files of the runs would go to the working directory.
            mlflow.create_experiment(name, artifact_location=(folder / "artifacts").as_uri())

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        import mlflow
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        items = [(key, str(value)) for key, value in flatten_config(values).items()]
        long = [key for key, text in items if len(text) > MAX_PARAM_VAL_LENGTH]
        if long:
            warnings.warn(
                f"mlflow takes at most {MAX_PARAM_VAL_LENGTH} characters a hyper-parameter; cut off: "
                f"{', '.join(long)}",
                stacklevel=2,
            )
        items = [(key, text[:MAX_PARAM_VAL_LENGTH]) for key, text in items]
        for start in range(0, len(items), MAX_PARAMS_TAGS_PER_BATCH):
            mlflow.log_params(dict(items[start : start + MAX_PARAMS_TAGS_PER_BATCH]))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        import mlflow

        metrics: dict[str, float] = {}
        for key, raw in values.items():
            value = plain_number(raw)
            if isinstance(value, int | float):
                metrics[key] = value
            else:
                self.say_left_out(key, value, "its metrics are numbers")
        mlflow.log_metrics(metrics, step=step, **kwargs)

    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Keep a figure (matplotlib or plotly) as the file ``artifact_file`` of the run."""
        import mlflow

        mlflow.log_figure(figure=figure, artifact_file=artifact_file, **save_kwargs)

    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Keep a copy of a file with the run, in its folder ``artifact_path``."""
        import mlflow

        mlflow.log_artifact(local_path=local_path, artifact_path=artifact_path)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Keep a copy of a folder's files with the run, in its folder ``artifact_path``."""
        import mlflow

        mlflow.log_artifacts(local_dir=local_dir, artifact_path=artifact_path)

    def finish(self) -> None:
        import mlflow

        mlflow.end_run()
