"""The Accelerator: what a training loop talks to.

It puts the parts together and hands everything on; how anything is done stands in ``runtime/``. It
may be made anywhere, any number of times: alone it is a valid runtime of one process.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from torch.amp import GradScaler
from torch.utils.weak import WeakTensorKeyDictionary

from nbaccel.config import UnsaidInt, ambient, said
from nbaccel.runtime.accumulation import GradientState, GradientWatch
from nbaccel.runtime.checkpoints.hooks import Hooks
from nbaccel.runtime.facets.arguments import written_elsewhere
from nbaccel.runtime.facets.checkpoints import CheckpointFacet
from nbaccel.runtime.facets.communication import CommunicationFacet
from nbaccel.runtime.facets.preparation import PreparationFacet
from nbaccel.runtime.facets.settings import SettingsFacet
from nbaccel.runtime.facets.tracking import TrackingFacet
from nbaccel.runtime.facets.training import TrainingFacet
from nbaccel.runtime.facets.unused import UnusedTrainingFacet
from nbaccel.runtime.loss_scaler import LossScaler
from nbaccel.runtime.plugins import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProjectConfiguration,
    TorchDynamoPlugin,
)
from nbaccel.runtime.precision import Precision, choose_precision
from nbaccel.runtime.precision_fp8 import AORecipeKwargs
from nbaccel.runtime.replicas import ReplicaWatch
from nbaccel.runtime.runtime import bring_up, note_precision
from nbaccel.runtime.strategies import DdpStrategy, SingleStrategy, Strategy, own_strategy
from nbaccel.runtime.tracking.choice import choose_trackers
from nbaccel.spelling import known_arguments

SCHEDULER_RULES = ("optimizer", "processes")


class Accelerator(
    CommunicationFacet,
    PreparationFacet,
    TrainingFacet,
    CheckpointFacet,
    TrackingFacet,
    SettingsFacet,
    UnusedTrainingFacet,
):
    """Runs a plain PyTorch training loop on whatever it was launched on.

    Args:
        device_placement: move prepared objects to the device.
        split_batches: the loaders' batch size is that of all processes together.
        mixed_precision: ``no``, ``fp16``, ``bf16`` or ``fp8``. By default that of the launch, else of the
            environment (``NBACCEL_MIXED_PRECISION``), else ``no``. What is written here wins over both, and
            a warning says so when a launch asked for another one.
        gradient_accumulation_steps: micro-batches in a window of accumulation. When it isn't written, that
            of the launch, else of the environment (``NBACCEL_GRADIENT_ACCUMULATION_STEPS``), else 1.
        cpu: compute on the CPU even where there is an accelerator.
        dataloader_config: how loaders share the data.
        deepspeed_plugin, fsdp_plugin, torch_tp_plugin, megatron_lm_plugin: refused unless None; models are
            replicated on each rank.
        rng_types: accepted for compatibility; ranks agree on the order of each pass over the data in any
            case. Other generators: ``synchronize_rng_states``.
        log_with: trackers: names, objects, a list of such, or ``"all"``; see ``init_trackers``.
        project_dir: where the run keeps its files.
        project_config: more about that.
        gradient_accumulation_plugin: more about accumulation.
        step_scheduler_with_optimizer: step prepared schedulers only when their optimizer has stepped.
        kwargs_handlers: option objects, at most one of each class.
        dynamo_backend: compile prepared models with this backend of torch.compile.
        dynamo_plugin: more about compiling.
        deepspeed_plugins, parallelism_config: refused unless None.
        fp16: short for ``mixed_precision="fp16"``.
        bf16: short for ``mixed_precision="bf16"``.
        scheduler_steps_per: ``optimizer`` moves a schedule on by one for each optimizer step;
            ``processes`` by the number of processes, for schedules that were computed for the
            unsharded loader (with ``split_batches`` it is one all the same).
        float32_outputs: have prepared models return float32 under mixed precision.

    Raises:
        ValueError: an unknown or impossible precision, contradictory arguments, or fewer devices than
            processes.
        RuntimeError: the processes can't reach each other.
    """

    def __reduce__(self) -> Any:
        # Rank, device and process group are this process's own. So one that was made in a notebook and is
        # used by a launched function belongs to the worker's world there, not to a world of its own.
        if type(self) is Accelerator:
            return _made_anew, (Accelerator, self._made_with)
        further = {name: value for name, value in vars(self).items() if name not in self._own_names}
        return _made_anew, (type(self), self._made_with), further or None

    @known_arguments(written_elsewhere())
    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool | None = None,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = UnsaidInt(1),  # as immutable as 1
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        rng_types: list[Any] | None = None,
        log_with: Any = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: list[KwargsHandler] | None = None,
        dynamo_backend: Any = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: Any = None,
        parallelism_config: Any = None,
        *,
        fp16: bool = False,
        bf16: bool = False,
        scheduler_steps_per: str = "optimizer",
        float32_outputs: bool = True,
    ) -> None:
        self._made_with = {name: value for name, value in locals().items() if name != "self"}
        _refuse_unsupported(
            deepspeed_plugin=deepspeed_plugin,
            fsdp_plugin=fsdp_plugin,
            torch_tp_plugin=torch_tp_plugin,
            megatron_lm_plugin=megatron_lm_plugin,
            deepspeed_plugins=deepspeed_plugins,
            parallelism_config=parallelism_config,
        )
        self.rng_types = rng_types
        self._handlers = handlers = _by_class(kwargs_handlers or [])
        self._dynamo = _compiler(dynamo_backend, dynamo_plugin)
        self._trigger = False
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.dataloader_config = dataloader_config or DataLoaderConfiguration()
        if split_batches is not None:
            self.dataloader_config.split_batches = split_batches
        self.project_configuration = project_config or ProjectConfiguration(project_dir=project_dir)
        if project_dir is not None and self.project_configuration.project_dir is None:
            self.project_configuration.set_directories(project_dir)
        wanted = _wanted_precision(mixed_precision, fp16=fp16, bf16=bf16)
        self._runtime = bring_up(cpu, handlers.get(InitProcessGroupKwargs))
        autocast = handlers.get(AutocastKwargs) or AutocastKwargs()
        self._precision = choose_precision(
            wanted,
            self._runtime.kind,
            enabled=autocast.enabled,
            cache_enabled=autocast.cache_enabled,
            float32_outputs=float32_outputs,
            fp8=handlers.get(AORecipeKwargs),
        )
        note_precision(self._precision.name)
        if self.is_main_process:
            _tell_of_contradiction(self._precision.name, ambient("mixed_precision"))
        self._loss_scaler = _loss_scaler(self._precision, handlers.get(GradScalerKwargs))
        self._strategy = self._choose_strategy(handlers.get(DistributedDataParallelKwargs))
        self.gradient_state = GradientState.of_accelerator(
            _accumulation(gradient_accumulation_plugin, gradient_accumulation_steps)
        )
        self._watch = GradientWatch()
        self._replicas = ReplicaWatch(self.num_processes) if self.num_processes > 1 else None
        self._scheduler_steps = self._steps_per_update(scheduler_steps_per)
        self._moved = WeakTensorKeyDictionary()
        self._models, self._optimizers, self._schedulers, self._dataloaders = [], [], [], []
        self._save_hooks, self._load_hooks, self._custom, self._loaded_from = Hooks(), Hooks(), [], set()
        self._log_with = choose_trackers(log_with, self.project_configuration.logging_dir)
        self._trackers = []
        self._ended = False
        self._own_names = frozenset(vars(self)) | {"_own_names"}

    def _choose_strategy(self, options: DistributedDataParallelKwargs | None) -> Strategy:
        if (own := own_strategy(self._runtime.kind.type, self._runtime.communicator)) is not None:
            return own
        if self.num_processes == 1:
            return SingleStrategy()
        return DdpStrategy() if options is None else DdpStrategy(options.to_ddp_options(), options.hook())

    def _steps_per_update(self, rule: str) -> int:
        if rule not in SCHEDULER_RULES:
            raise ValueError(
                f"scheduler_steps_per={rule!r} is not known; choose one of {', '.join(SCHEDULER_RULES)}"
            )
        whole = rule == "optimizer" or self.dataloader_config.split_batches
        return 1 if whole else self.num_processes

    def __repr__(self) -> str:
        return (
            f"Accelerator(rank {self.process_index} of {self.num_processes}, device {self.device}, "
            f"mixed_precision={self.mixed_precision!r})"
        )


def _refuse_unsupported(**arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"{' and '.join(given)}: nbaccel replicates models with DistributedDataParallel and has no other "
            "way yet; leave it out"
        )


def _compiler(backend: Any, plugin: TorchDynamoPlugin | None) -> TorchDynamoPlugin:
    if backend is not None and plugin is not None:
        raise ValueError("pass dynamo_backend or dynamo_plugin, not both")
    return plugin or TorchDynamoPlugin(backend="NO" if backend is None else backend)


def _by_class(handlers: list[KwargsHandler]) -> dict[type, Any]:
    found: dict[type, Any] = {}
    for handler in handlers:
        if not isinstance(handler, KwargsHandler):
            raise TypeError(
                f"kwargs_handlers takes option objects such as AutocastKwargs(), not {type(handler).__name__}"
            )
        kind = type(handler)
        if kind in found:
            raise ValueError(f"kwargs_handlers has two objects of class {kind.__name__}; pass one")
        found[kind] = handler
    return found


def _wanted_precision(explicit: object, *, fp16: bool, bf16: bool) -> object:
    said = [name for name, flag in (("fp16", fp16), ("bf16", bf16)) if flag]
    if explicit is not None:
        said.append(str(explicit).lower())
    if len(set(said)) > 1:
        raise ValueError(f"contradictory precisions: {' and '.join(said)}; pass one of them")
    if said:
        return said[0]
    return ambient("mixed_precision")


def _tell_of_contradiction(used: str, launched: Any) -> None:
    if launched in (None, "no", used):
        return
    warnings.warn(
        f"Accelerator(mixed_precision={used!r}) is used, though the launch said {launched!r}; say it in one "
        "place",
        stacklevel=4,
    )


def _accumulation(plugin: GradientAccumulationPlugin | None, steps: int) -> GradientAccumulationPlugin:
    if plugin is None:
        configured = ambient("gradient_accumulation_steps") if said(steps) is None else None
        return GradientAccumulationPlugin(num_steps=int(configured or steps))
    if steps != 1 and plugin.num_steps not in (None, steps):
        raise ValueError(
            f"gradient_accumulation_steps={steps} contradicts num_steps={plugin.num_steps} of "
            "gradient_accumulation_plugin; pass one of them"
        )
    if plugin.num_steps is None:
        plugin.num_steps = steps
    return plugin


def _loss_scaler(precision: Precision, options: GradScalerKwargs | None) -> LossScaler | None:
    if not precision.scales_loss:
        return None
    arguments = options.to_dict() if options else {}
    return LossScaler(GradScaler(precision.device_type, **arguments))


def _made_anew(cls: type[Accelerator], made_with: dict[str, Any]) -> Accelerator:
    accelerator = cls.__new__(cls)
    Accelerator.__init__(accelerator, **made_with)
    return accelerator
