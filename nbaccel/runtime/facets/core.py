"""What the facets of the Accelerator share: the parts it is made of, and nothing public."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from nbaccel.runtime.accumulation import GradientState, GradientWatch
from nbaccel.runtime.loss_scaler import LossScaler
from nbaccel.runtime.optimizer import AcceleratedOptimizer
from nbaccel.runtime.plugins import DataLoaderConfiguration, ProjectConfiguration, TorchDynamoPlugin
from nbaccel.runtime.precision import Precision
from nbaccel.runtime.replicas import ReplicaWatch
from nbaccel.runtime.runtime import Runtime
from nbaccel.runtime.scheduler import AcceleratedScheduler
from nbaccel.runtime.strategies import Strategy
from nbaccel.runtime.tracking.base import GeneralTracker


class AcceleratorParts:
    """Attributes that the constructor fills. A facet uses them and holds no state of its own."""

    _runtime: Runtime
    _precision: Precision
    _strategy: Strategy
    _loss_scaler: LossScaler | None
    _watch: GradientWatch
    _scheduler_steps: int
    _ended: bool
    gradient_state: GradientState
    _handlers: dict[type, Any]
    _dynamo: TorchDynamoPlugin
    _trigger: bool
    _replicas: ReplicaWatch | None
    """None with one process, where there are no replicas."""
    device_placement: bool
    step_scheduler_with_optimizer: bool
    dataloader_config: DataLoaderConfiguration
    project_configuration: ProjectConfiguration

    _models: list[nn.Module]
    _moved: WeakTensorKeyDictionary
    """The new parameter for each one that a model lost when it was moved."""
    _optimizers: list[AcceleratedOptimizer]
    _schedulers: list[AcceleratedScheduler]
    _dataloaders: list[Any]

    _log_with: list[str | GeneralTracker]
    _trackers: list[GeneralTracker]
