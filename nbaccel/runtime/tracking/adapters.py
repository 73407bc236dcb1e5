"""The adapters to tracking services, by name of the class."""

from __future__ import annotations

from nbaccel.runtime.tracking.libraries.aim import AimTracker
from nbaccel.runtime.tracking.libraries.clearml import ClearMLTracker
from nbaccel.runtime.tracking.libraries.comet import CometMLTracker
from nbaccel.runtime.tracking.libraries.dvclive import DVCLiveTracker
from nbaccel.runtime.tracking.libraries.mlflow import MLflowTracker
from nbaccel.runtime.tracking.libraries.swanlab import SwanLabTracker
from nbaccel.runtime.tracking.libraries.tensorboard import TensorBoardTracker
from nbaccel.runtime.tracking.libraries.trackio import TrackioTracker
from nbaccel.runtime.tracking.libraries.wandb import WandBTracker

__all__ = [
    "AimTracker",
    "ClearMLTracker",
    "CometMLTracker",
    "DVCLiveTracker",
    "MLflowTracker",
    "SwanLabTracker",
    "TensorBoardTracker",
    "TrackioTracker",
    "WandBTracker",
]
