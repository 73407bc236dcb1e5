"""Trackers, under the name that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.free_collectives import on_main_process
from nbaccel.runtime.tracking.adapters import (
    AimTracker,
    ClearMLTracker,
    CometMLTracker,
    DVCLiveTracker,
    MLflowTracker,
    SwanLabTracker,
    TensorBoardTracker,
    TrackioTracker,
    WandBTracker,
)
from nbaccel.runtime.tracking.base import (
    GeneralTracker,
)
from nbaccel.runtime.tracking.choice import (
    available_trackers,
    register_tracker_class,
)
from nbaccel.runtime.tracking.jsonl import (
    JsonLinesTracker,
)

__all__ = [
    "AimTracker",
    "ClearMLTracker",
    "CometMLTracker",
    "DVCLiveTracker",
    "GeneralTracker",
    "JsonLinesTracker",
    "MLflowTracker",
    "SwanLabTracker",
    "TensorBoardTracker",
    "TrackioTracker",
    "WandBTracker",
    "available_trackers",
    "on_main_process",
    "register_tracker_class",
]

__getattr__ = explain_missing(__name__)
