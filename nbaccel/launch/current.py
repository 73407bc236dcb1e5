"""The one session of this kernel: started on first use, reused, replaced when something else is asked for."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

from nbaccel.config import LaunchSpec, Resolved, UnsaidText, check_mixed_precision
from nbaccel.launch import notices
from nbaccel.launch.request.resolve import describe, settings_of, spec_of
from nbaccel.launch.session import Session
from nbaccel.launch.supervision.supervision import import_torch
from nbaccel.spelling import known_arguments

_current: Session | None = None
_last: tuple[Session, tuple[object, ...]] | None = None
"""The session that was started last, also when it has been stopped, and the configuration of that moment."""
_owner = os.getpid()

_DECIDING = ("num_processes", "devices", "cpu", "mixed_precision")


def current_session() -> Session | None:
    """The session of this process, if there is one."""
    return _current if _owner == os.getpid() else None


@known_arguments()
def session(
    num_processes: int | None = None,
    *,
    devices: Sequence[int] | None = None,
    cpu: bool = False,
    mixed_precision: str | None = None,
    start_method: str = UnsaidText("auto"),
    fresh: bool = False,
) -> Session:
    """The workers of this kernel: those that run already, when they fit, else new ones.

    What is left out means: as the running session, or as the one that was stopped, unless another
    number, device or precision was configured since. Other devices or another number end the running
    workers, and a line says so. Another precision holds for each ``Accelerator`` that is made from then on.

    Args:
        num_processes: workers on this machine; None: all visible accelerators, else one.
        devices: ids of the accelerators to use.
        cpu: run on the CPU even where there is an accelerator.
        mixed_precision: ``no``, ``fp16``, ``bf16`` or ``fp8``.
        start_method: ``auto``, ``zygote``, ``spawn`` or ``fork``.
        fresh: end the running workers in any case.

    Raises:
        ValueError: as :func:`nbaccel.notebook_launcher`.
    """
    global _current, _last, _owner
    import_torch()
    running = current_session()
    says_where = num_processes is not None or devices is not None or cpu
    if running is not None and not fresh:
        if not says_where:
            if mixed_precision is not None:
                running.use_precision(check_mixed_precision(mixed_precision))
            return running
        if num_processes is None and devices is None:
            num_processes = running.spec.num_processes
        cpu = cpu or (devices is None and running.spec.device_type == "cpu")
        precision = running.spec.mixed_precision if mixed_precision is None else mixed_precision
        settings = _settings(num_processes, devices, cpu, precision)
        wanted = spec_of(settings)
        if _same_place(wanted, running.spec):
            running.use_precision(wanted.mixed_precision)
            return running
        if running.is_alive:
            are = "is" if wanted.num_processes == 1 else "are"
            notices.announce(
                f"the session of {describe(running.spec)} ends: {describe(wanted)} {are} asked for"
            )
    else:
        before = _before()
        if before is not None and not says_where:
            num_processes, devices = before.num_processes, before.devices or None
            cpu = before.device_type == "cpu"
        # After a stop, options that say where describe the new workers wholly.
        if before is not None and mixed_precision is None and (running is not None or not says_where):
            mixed_precision = before.mixed_precision
        settings = _settings(num_processes, devices, cpu, mixed_precision)
        wanted = spec_of(settings)
    if running is not None:
        running.stop()
    _current, _owner = Session(wanted, settings.prefer("start_method", start_method)), os.getpid()
    _last = _current, _configured()
    return _current


def stop_session(*, forget: bool = True) -> None:
    """End the workers of this kernel, if there are any.

    Args:
        forget: whether the next session starts from the configuration; else it is as the one that ends.
    """
    global _current, _last
    running = current_session()
    if running is not None:
        running.stop()
    _current = None
    if forget:
        _last = None


def _configured() -> tuple[object, ...]:
    settings = _settings(None, None, False, None)
    try:
        kind = spec_of(settings).device_type  # what the machine decides, a TPU that has come into use say
    except (ValueError, RuntimeError):
        kind = ""  # impossible by itself; what was asked for overruled it
    # With the origin: who configures what is the default says something too.
    return (kind, *((settings[name], settings.origin(name)) for name in _DECIDING))


def _before() -> LaunchSpec | None:
    """What the last session of this process was, while nothing else has been configured since."""
    if _last is None or _owner != os.getpid() or _last[1] != _configured():
        return None
    return _last[0].spec


def _settings(
    num_processes: int | None, devices: Sequence[int] | None, cpu: bool, mixed_precision: str | None
) -> Resolved:
    return settings_of(
        num_processes=num_processes,
        mixed_precision=mixed_precision,
        devices=devices,
        cpu=cpu,
        num_nodes=1,
        node_rank=0,
    )


def _same_place(one: LaunchSpec, other: LaunchSpec) -> bool:
    return (one.num_processes, one.device_type, one.devices) == (
        other.num_processes,
        other.device_type,
        other.devices,
    )


def _at_exit() -> None:
    running = current_session()
    if running is not None:
        running.abandon()


atexit.register(_at_exit)
