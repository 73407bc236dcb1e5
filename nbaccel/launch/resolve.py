"""From what was asked for to what will run: the one place where a :class:`LaunchSpec` is made for a launch.

Knows the machine through :mod:`nbaccel.launch.devices`; starts no worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nbaccel import config
from nbaccel.config import LaunchSpec
from nbaccel.launch import arguments, devices, notices, values
from nbaccel.launch.failures import describe_ranks


def resolve_spec(
    *,
    num_processes: object = None,
    mixed_precision: object = None,
    devices: object = None,
    cpu: object = False,
    num_nodes: object = 1,
    node_rank: object = 0,
    env: Mapping[str, str] | None = None,
) -> LaunchSpec:
    """Check what to run on, and fill in what was left open.

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
        ValueError: more processes than accelerators, a device that isn't there, a number below one,
            an unknown precision, a node outside the world, or two values that contradict each other.
        RuntimeError: the accelerators could not be found out.
    """
    precision = config.check_mixed_precision(mixed_precision)
    nodes = values.whole_number("num_nodes", num_nodes, at_least=1)
    node = _node_rank(node_rank, nodes)
    count = None if num_processes is None else values.whole_number("num_processes", num_processes, at_least=1)
    asked = arguments.check_devices(devices)
    on_cpu = values.flag("cpu", cpu)
    if on_cpu and asked is not None:
        raise ValueError(f"cpu=True and devices={_shown(asked)} contradict each other; leave one of them out")
    environ = {**os.environ, **(env or {})}
    device_type, chosen = ("cpu", ()) if on_cpu else _accelerators(asked, count, environ)
    return LaunchSpec(
        num_processes=len(chosen) or count or 1,
        mixed_precision=precision,
        cpu=on_cpu,
        device_type=device_type,
        devices=chosen,
        num_nodes=nodes,
        node_rank=node,
        log_dir=environ.get("NBACCEL_LOG_DIR") or None,
    )


def describe(spec: LaunchSpec) -> str:
    """``4 processes on cuda:0-3, fp16``."""
    where = devices.platform_name(spec.device_type)
    if spec.devices and spec.device_type != "mps":
        numbers = describe_ranks(spec.devices).split(" ", 1)[1]
        where = f"{where}:{numbers}"
    count = spec.num_processes
    text = f"{count} process{'es' if count != 1 else ''} on {where}"
    if spec.num_nodes > 1:
        text += f", node {spec.node_rank} of {spec.num_nodes} ({spec.world_size} processes in all)"
    return text + ("" if spec.mixed_precision == "no" else f", {spec.mixed_precision}")


def _accelerators(
    asked: tuple[int, ...] | str | None, count: int | None, environ: Mapping[str, str]
) -> tuple[str, tuple[int, ...]]:
    """Device type, and one device a process; none of them on the CPU."""
    found = devices.visible_accelerators(environ)
    if found.count == 0:
        if asked is not None:
            raise ValueError(
                f"devices={_shown(asked)}, but no accelerator is visible: {found.reason}; "
                "leave devices out to run on the CPU"
            )
        if found.is_broken:
            notices.warn(f"the accelerator here can't be used: {found.reason}")
        return "cpu", ()
    chosen = devices.choose(asked, count, found, lambda: devices.usage(environ))
    # Asked for now, so that a choice that workers could not be given is refused before anything starts.
    devices.worker_environ(found.device_type, chosen, environ)
    return found.device_type, chosen


def _node_rank(value: object, num_nodes: int) -> int:
    node = values.whole_number("node_rank", value, at_least=0)
    if node >= num_nodes:
        raise ValueError(
            f"node_rank={node} lies outside num_nodes={num_nodes}: nodes are counted from 0 to "
            f"{num_nodes - 1}; correct one of them"
        )
    return node


def _shown(asked: tuple[int, ...] | str) -> str:
    return repr(asked) if isinstance(asked, str) else str(list(asked))
