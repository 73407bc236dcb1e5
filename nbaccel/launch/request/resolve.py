"""From what was asked for to what will run: the one place where a :class:`LaunchSpec` is made for a launch.

Knows the machine through :mod:`nbaccel.launch.devices`; starts no worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nbaccel import config
from nbaccel.config import LaunchSpec, Resolved, UnsaidInt
from nbaccel.launch import devices, notices
from nbaccel.launch.devices import Accelerators
from nbaccel.launch.failures import describe_ranks
from nbaccel.launch.request import arguments, values

_CPU = Accelerators("cpu", "cpu")


def resolve_spec(
    *,
    num_processes: object = None,
    mixed_precision: object = None,
    devices: object = None,
    cpu: object = False,
    num_nodes: object = UnsaidInt(1),
    node_rank: object = UnsaidInt(0),
    env: Mapping[str, str] | None = None,
) -> LaunchSpec:
    """Check what to run on, and fill in what was left open: from the configuration, else from the machine.

    As :func:`spec_of` of :func:`settings_of`.
    """
    settings = settings_of(
        num_processes=num_processes,
        mixed_precision=mixed_precision,
        devices=devices,
        cpu=cpu,
        num_nodes=num_nodes,
        node_rank=node_rank,
        env=env,
    )
    return spec_of(settings, env)


def settings_of(
    *,
    num_processes: object = None,
    mixed_precision: object = None,
    devices: object = None,
    cpu: object = False,
    num_nodes: object = UnsaidInt(1),
    node_rank: object = UnsaidInt(0),
    env: Mapping[str, str] | None = None,
) -> Resolved:
    """Check the arguments of a launch, and put them in front of what is configured.

    Args:
        num_processes: processes on this machine; None: one a device asked for, else one a visible
            accelerator, else one.
        mixed_precision: any of :data:`nbaccel.config.PRECISIONS`, or None.
        devices: numbers of accelerators as this process counts them, ``"idle"`` or None.
        cpu: leave accelerators alone.
        num_nodes: machines that take part.
        node_rank: index of this one.
        env: what the workers' environment has besides this process's; it may hide devices.

    Raises:
        TypeError: a value of the wrong type.
        ValueError: a number below one, an unknown precision, a node outside the world, two values that
            contradict each other, or a configuration that can't be used.
    """
    # Checked here and not by the configuration: an argument of the wrong type is a TypeError.
    asked = arguments.check_devices(devices)
    on_cpu = values.flag("cpu", cpu)
    if on_cpu and asked is not None:
        raise ValueError(f"cpu=True and devices={_shown(asked)} contradict each other; leave one of them out")
    nodes = (
        None if config.said(num_nodes) is None else values.whole_number("num_nodes", num_nodes, at_least=1)
    )
    node = None if config.said(node_rank) is None else values.whole_number("node_rank", node_rank, at_least=0)
    if nodes is not None and node is not None:
        _check_node(node, nodes)
    count = None if num_processes is None else values.whole_number("num_processes", num_processes, at_least=1)
    settings = config.resolve(
        {
            "num_processes": count,
            "mixed_precision": None
            if mixed_precision is None
            else config.check_mixed_precision(mixed_precision),
            "devices": asked,
            "cpu": on_cpu or None,
            "num_nodes": nodes,
            "node_rank": node,
        },
        environ={**os.environ, **(env or {})},
    )
    notices.warn_once(settings.warnings)
    return settings


def spec_of(settings: Resolved, env: Mapping[str, str] | None = None, *, warns: bool = True) -> LaunchSpec:
    """What will run: the settings, and the machine where they leave things open.

    Args:
        settings: of the launch.
        env: what the workers' environment has besides this process's; it may hide devices.
        warns: say it when there is an accelerator that can't be used.

    Raises:
        ValueError: more processes than accelerators, or a device that isn't there.
        RuntimeError: the accelerators could not be found out.
    """
    environ = {**os.environ, **(env or {})}
    count = settings["num_processes"]
    try:
        found, chosen = (
            (_CPU, ()) if settings["cpu"] else _accelerators(settings["devices"], count, environ, warns=warns)
        )
    except ValueError as error:
        raise ValueError(f"{error}{_places(settings, 'num_processes', 'devices')}") from None
    _check_node(settings["node_rank"], settings["num_nodes"])
    if found.are_taken_whole:
        _check_on_tpu(settings, found)
    return LaunchSpec(
        num_processes=len(chosen) or count or 1,
        mixed_precision=settings["mixed_precision"],
        cpu=settings["cpu"],
        device_type=found.device_type,
        devices=chosen,
        num_nodes=settings["num_nodes"],
        node_rank=settings["node_rank"],
        log_dir=settings["log_dir"],
        gradient_accumulation_steps=settings["gradient_accumulation_steps"],
        threads_per_process=found.units_per_process if len(chosen) > 1 else 1,
        hardware=f"{found.platform} {found.type_name}" if found.type_name else "",
    )


def describe(spec: LaunchSpec) -> str:
    """``4 processes on cuda:0-3, fp16``, ``8 processes on tpu v5e-8, bf16``."""
    where = spec.hardware or devices.platform_name(spec.device_type)
    if spec.devices and spec.device_type != "mps" and not spec.hardware:
        numbers = describe_ranks(spec.devices).split(" ", 1)[1]
        where = f"{where}:{numbers}"
    count = spec.num_processes // spec.threads_per_process
    text = f"{count} process{'es' if count != 1 else ''}"
    if spec.threads_per_process > 1:
        text += f" of {spec.threads_per_process} threads"
    text += f" on {where}"
    if spec.num_nodes > 1:
        text += f", node {spec.node_rank} of {spec.num_nodes} ({spec.world_size} processes in all)"
    return text + ("" if spec.mixed_precision == "no" else f", {spec.mixed_precision}")


def _accelerators(
    asked: tuple[int, ...] | str | None, count: int | None, environ: Mapping[str, str], *, warns: bool
) -> tuple[Accelerators, tuple[int, ...]]:
    """What is here, and one device a process; none of them on the CPU."""
    found = devices.visible_accelerators(environ)
    if found.count == 0:
        if asked is not None:
            raise ValueError(
                f"devices={_shown(asked)}, but no accelerator is visible: {found.reason}; "
                "leave devices out to run on the CPU"
            )
        if found.is_broken and warns:
            notices.warn(f"the accelerator here can't be used: {found.reason}")
        return found, ()
    chosen = devices.choose(asked, count, found, lambda: devices.usage(environ))
    # Asked for now, so that a choice that workers could not be given is refused before anything starts.
    devices.worker_environ(found.device_type, chosen, environ)
    return found, chosen


def _check_on_tpu(settings: Resolved, found: Accelerators) -> None:
    """What a TPU can't do."""
    precision = settings["mixed_precision"]
    if precision in ("fp16", "fp8"):
        raise ValueError(
            f"mixed_precision={precision!r}: {found.platform} {found.type_name} computes in bfloat16 and has "
            f"no {precision}; use mixed_precision='bf16'{_places(settings, 'mixed_precision')}"
        )
    if settings["num_nodes"] > 1:
        raise ValueError(
            f"num_nodes={settings['num_nodes']}: a launch on {found.platform} {found.type_name} uses the "
            f"cores of this machine only; leave num_nodes out{_places(settings, 'num_nodes')}"
        )


def _check_node(node: int, num_nodes: int) -> None:
    if node >= num_nodes:
        raise ValueError(
            f"node_rank={node} lies outside num_nodes={num_nodes}: nodes are counted from 0 to "
            f"{num_nodes - 1}; correct one of them"
        )


def _places(settings: Resolved, *names: str) -> str:
    """Where values come from that the caller didn't write: else a message about them puzzles."""
    told = [
        f"{name} comes from {settings.values[name].place}"
        for name in names
        if config.Origin.EXPLICIT < settings.origin(name) < config.Origin.DEFAULT
    ]
    return f" ({', '.join(told)})" if told else ""


def _shown(asked: tuple[int, ...] | str) -> str:
    return repr(asked) if isinstance(asked, str) else str(list(asked))
