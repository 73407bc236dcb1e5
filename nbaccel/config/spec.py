"""What to run on: one frozen, typed :class:`LaunchSpec` that every door fills and every worker reads.

A door (launcher, magic, form, command line) resolves the spec before anything starts. In a worker
:func:`active_spec` returns the spec of the launch. Holds results only: where a value came from is
:mod:`nbaccel.config.sources`'s to know.
"""

from __future__ import annotations

from dataclasses import dataclass

PRECISIONS: tuple[str, ...] = ("no", "fp16", "bf16", "fp8")
"""Choices of ``mixed_precision``."""

START_METHODS: tuple[str, ...] = ("auto", "zygote", "spawn", "fork")
"""Choices of ``start_method``."""

OUTPUT_MODES: tuple[str, ...] = ("all", "main", "none")
"""Choices of ``output``."""

PROGRESS_MODES: tuple[str, ...] = ("auto", "on", "off")
"""Choices of ``progress``."""

RENDEZVOUS_BACKENDS: tuple[str, ...] = ("static", "c10d")
"""Choices of ``rdzv_backend``."""


CAPTURE_WARN_MB = 1024
"""Default of :attr:`LaunchSpec.capture_warn_mb`."""


@dataclass(frozen=True)
class LaunchSpec:
    """How a launch was asked for. Field order and defaults are the contract of all doors."""

    num_processes: int = 1
    """Ranks on this node: worker processes, or threads of them (:attr:`threads_per_process`)."""

    mixed_precision: str = "no"
    """One of :data:`PRECISIONS`."""

    cpu: bool = False
    """Run on the CPU even where there is an accelerator."""

    device_type: str = "cpu"
    """``cpu``, ``cuda``, ``xpu``, ``mps``, ``xla`` or ``tpu``: what the workers compute on."""

    devices: tuple[int, ...] = ()
    """Ids of the accelerators in use on this node, one a worker; empty on the CPU."""

    num_nodes: int = 1
    """Machines that take part."""

    node_rank: int = 0
    """Index of this machine, ``0 <= node_rank < num_nodes``."""

    log_dir: str | None = None
    """Folder for a file a rank with everything it writes (``NBACCEL_LOG_DIR``); None: no such files."""

    capture_warn_mb: float = CAPTURE_WARN_MB
    """MiB from which on a line tells what a function takes along; 0 for never."""

    gradient_accumulation_steps: int = 1
    """Micro-batches of a window of accumulation, for each ``Accelerator()`` that isn't told otherwise."""

    threads_per_process: int = 1
    """Ranks that share a process, each in a thread of its own: cores of a TPU chip of v2 or v3."""

    hardware: str = ""
    """What people call the accelerator where its device type says too little, e.g. ``tpu v5e-8``."""

    @property
    def world_size(self) -> int:
        """Processes on all nodes together."""
        return self.num_processes * self.num_nodes


def check_mixed_precision(value: object) -> str:
    """Return ``value`` as one of :data:`PRECISIONS`, any case accepted.

    ``None``, ``False`` and ``"off"`` mean ``"no"`` (YAML reads a bare ``no`` as False).

    Raises:
        ValueError: ``value`` isn't one of the choices.
    """
    if value is None or value is False:
        return "no"
    text = str(value).lower()
    if text == "off":
        return "no"
    if text not in PRECISIONS:
        raise ValueError(f"mixed_precision={value!r} {unknown_precision(value)}")
    return text


_OTHER_WORDS = {
    "float16": "fp16", "half": "fp16", "16-mixed": "fp16", "f16": "fp16",
    "bfloat16": "bf16", "bfloat": "bf16", "bf16-mixed": "bf16", "brain": "bf16",
    "float32": "no", "fp32": "no", "float": "no", "full": "no", "none": "no", "f32": "no",
    "float8": "fp8", "float8_e4m3fn": "fp8",
}  # fmt: skip


def unknown_precision(value: object) -> str:
    """Why ``value`` is no precision, and what to write; the text continues ``mixed_precision=value``."""
    word = str(value).strip().lower().removeprefix("torch.")
    meant = _OTHER_WORDS.get(word)
    choices = f"choose one of {', '.join(PRECISIONS)}"
    return f"is not known; {choices}" if meant is None else f"is called {meant!r} here; {choices}"


_active: LaunchSpec | None = None


def active_spec() -> LaunchSpec | None:
    """The spec this worker was launched with; None outside a worker."""
    return _active


def set_active_spec(spec: LaunchSpec | None) -> None:
    """Called once by the worker, before user code runs."""
    global _active
    _active = spec
