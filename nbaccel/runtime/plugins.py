"""Plain data that users pass to the Accelerator to tune one of its parts. No behaviour beyond checks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from nbaccel.spelling import known_fields


class KwargsHandler:
    """Base of the option classes."""

    def to_dict(self) -> dict[str, Any]:
        """All options."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def to_kwargs(self) -> dict[str, Any]:
        """The options that differ from their default."""
        default = type(self)().to_dict()
        return {key: value for key, value in self.to_dict().items() if value != default[key]}


@known_fields()
@dataclass
class AutocastKwargs(KwargsHandler):
    """How autocast behaves in forward passes."""

    enabled: bool = True
    """False: forward passes run in full precision; fp16 losses are still scaled."""

    cache_enabled: bool | None = None
    """Whether lowered weights are kept within a forward; torch's default when None."""


@known_fields()
@dataclass
class GradScalerKwargs(KwargsHandler):
    """How fp16 losses are scaled; see :class:`torch.amp.GradScaler`."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@known_fields()
@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """How the process group comes up."""

    backend: str | None = None
    """A torch backend name; by default the one that fits the device."""

    init_method: str | None = None
    """A torch rendezvous URL; by default ``MASTER_ADDR`` and ``MASTER_PORT``."""

    timeout: timedelta | None = None
    """Of each collective; 30 minutes by default."""


@known_fields()
@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """How gradients are accumulated."""

    num_steps: int | None = None
    """Micro-batches in a window, at least 1."""

    adjust_scheduler: bool = True
    """Kept for compatibility: schedules follow real optimizer steps either way."""

    sync_with_dataloader: bool = True
    """End the window with the last batch of the loader. When off, left-over batches carry over into
    the next epoch. Switch it off when one batch is cut into several micro-batches by hand, since every
    micro-batch of the last batch would count as the end."""

    sync_each_batch: bool = False
    """Average gradients after each micro-batch, not only at the end of the window."""

    def __post_init__(self) -> None:
        if self.num_steps is not None and self.num_steps < 1:
            raise ValueError(f"num_steps={self.num_steps} must be at least 1")


@known_fields()
@dataclass
class DataLoaderConfiguration:
    """How prepared loaders share the data among the ranks."""

    split_batches: bool = False
    """The loader's batch size is that of all ranks together, not of each."""

    dispatch_batches: bool | None = None
    """Rank 0 reads the data and sends each rank its part. By default for iterable data sets only."""

    even_batches: bool = True
    """All ranks get equally many full batches: the last ones are filled up from the beginning."""

    use_seedable_sampler: bool = False
    """A shuffled order that depends on seed and epoch only."""

    data_seed: int | None = None
    """Seed of that order; torch's initial seed by default."""

    non_blocking: bool = False
    """Copy to the device without waiting; needs pinned memory."""

    use_stateful_dataloader: bool = False
    """Load with torchdata's StatefulDataLoader."""


@known_fields()
@dataclass
class ProjectConfiguration:
    """Where a run keeps its files."""

    project_dir: str | os.PathLike[str] | None = None
    logging_dir: str | os.PathLike[str] | None = None
    """For trackers; ``project_dir`` by default."""

    automatic_checkpoint_naming: bool = False
    """``save_state`` writes ``project_dir/checkpoints/checkpoint_<iteration>``."""

    total_limit: int | None = None
    """Checkpoints that are kept when they are named automatically."""

    iteration: int = 0
    """Number of the next automatic checkpoint."""

    save_on_each_node: bool = False
    """Write on each node's main process, for nodes that share no file system."""

    def __post_init__(self) -> None:
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Set ``project_dir``, and ``logging_dir`` unless it has a value."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir


@known_fields()
@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Options of DistributedDataParallel."""

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: Any = "no"
    """How gradients travel: ``no``, ``fp16``, ``bf16``, ``power_sgd`` or ``batched_power_sgd``."""

    comm_wrapper: Any = "no"
    """A further compression around ``comm_hook``: ``no``, ``fp16`` or ``bf16``."""

    comm_state_option: dict[str, Any] = field(default_factory=dict)
    """Arguments of the PowerSGD state."""

    def to_ddp_options(self) -> dict[str, Any]:
        """Arguments for the constructor of DistributedDataParallel."""
        hooks = ("comm_hook", "comm_wrapper", "comm_state_option")
        return {key: value for key, value in self.to_kwargs().items() if key not in hooks}

    def hook(self) -> Callable[[Any], None] | None:
        """Registers the communication hook on a DDP model; None when there is none to register."""
        return None if _value(self.comm_hook) == "no" else self.register_comm_hook

    def register_comm_hook(self, model: Any) -> None:
        """Register the chosen communication hook on a DDP model."""
        from nbaccel.runtime.strategies.comm_hooks import register

        register(model, _value(self.comm_hook), _value(self.comm_wrapper), self.comm_state_option)


def _value(choice: Any) -> str:
    """A choice given as text or as a member of an enum."""
    return str(getattr(choice, "value", choice)).lower()


@known_fields()
@dataclass
class ProfileKwargs(KwargsHandler):
    """What the profiler records; see :class:`torch.profiler.profile`."""

    activities: list[str] | None = None
    """``cpu``, ``cuda``, ``xpu``, ``mtia``; all that are there by default."""

    schedule_option: dict[str, int] | None = None
    """Arguments of :func:`torch.profiler.schedule`, in steps."""

    on_trace_ready: Callable[[Any], Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None
    """Each rank writes a Chrome trace ``profile_<rank>.json`` there."""

    def build(self) -> Any:
        """The profiler.

        Raises:
            ValueError: an unknown activity.
        """
        from torch.profiler import ProfilerActivity, profile, schedule

        known = {name.lower(): getattr(ProfilerActivity, name) for name in ("CPU", "CUDA", "XPU", "MTIA")}
        wrong = [name for name in self.activities or [] if name not in known]
        if wrong:
            raise ValueError(f"activity {wrong[0]!r} is not known; choose among {', '.join(known)}")
        return profile(
            activities=None if self.activities is None else [known[name] for name in self.activities],
            schedule=None if self.schedule_option is None else schedule(**self.schedule_option),
            on_trace_ready=self.on_trace_ready,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )


@known_fields(
    use_regional_compilation="compile the blocks with torch.compile before prepare, and leave it out"
)
@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """How prepared models are compiled; see :func:`torch.compile`."""

    backend: Any = "NO"
    """A name that torch knows, any case; ``NO`` compiles nothing."""

    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: Any = None
    disable: bool = False

    def compiles(self) -> bool:
        """Whether there is anything to do."""
        return _value(self.backend) != "no"

    def compile(self, model: Any) -> Any:
        """The compiled model."""
        import torch

        return torch.compile(
            model,
            backend=_value(self.backend),
            mode=self.mode,
            fullgraph=self.fullgraph,
            dynamic=self.dynamic,
            options=self.options,
            disable=self.disable,
        )
