"""What can't be said together.

One source that contradicts itself is an error that names both sides. Between two sources the stronger one
means what it says, and the weaker value that doesn't fit gives way, with a note: ``--cpu`` is meant to win
over the devices of a config file.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from nbaccel.errors import ConfigError

if TYPE_CHECKING:
    from nbaccel.config.sources import Value


def settle(values: MutableMapping[str, Value]) -> list[str]:
    """Remove what gives way; returns a note for each.

    Args:
        values: what was said, by the name of the setting; defaults are not among them.

    Raises:
        ConfigError: two values of the same strength contradict each other, or the weaker one can't give
            way.
    """
    notes: list[str] = []
    _cpu_or_devices(values, notes)
    _one_process_a_device(values, notes)
    _node_in_range(values, notes)
    return notes


def _cpu_or_devices(values: MutableMapping[str, Value], notes: list[str]) -> None:
    cpu, devices = values.get("cpu"), values.get("devices")
    if cpu is None or devices is None or not cpu.value or devices.value is None:
        return
    _weaker_gives_way(values, "cpu", "devices", notes)


def _one_process_a_device(values: MutableMapping[str, Value], notes: list[str]) -> None:
    count, devices = values.get("num_processes"), values.get("devices")
    if count is None or devices is None or not isinstance(devices.value, tuple):
        return
    assert isinstance(count.value, int)
    if count.value == len(devices.value):
        return
    if count.rank < devices.rank and count.value < len(devices.value):
        first = devices.value[: count.value]
        notes.append(
            f"{devices.said('devices')}: the first {count.value} of them, as {count.said('num_processes')}"
        )
        values["devices"] = devices.replaced(first)
        return
    if count.rank < devices.rank:
        raise ConfigError(
            f"{count.said('num_processes')} contradicts {devices.said('devices')}, which are "
            f"{len(devices.value)}; leave one of them out"
        )
    _weaker_gives_way(values, "num_processes", "devices", notes)


def _node_in_range(values: MutableMapping[str, Value], notes: list[str]) -> None:
    node, nodes = values.get("node_rank"), values.get("num_nodes")
    total = 1 if nodes is None else nodes.value
    assert isinstance(total, int)
    if node is None or not isinstance(node.value, int) or node.value < total:
        return
    if nodes is None:
        raise ConfigError(
            f"{node.said('node_rank')} lies outside the number of machines, which is 1; say num_nodes as well"
        )
    _weaker_gives_way(values, "node_rank", "num_nodes", notes)


def _weaker_gives_way(values: MutableMapping[str, Value], one: str, other: str, notes: list[str]) -> None:
    first, second = values[one], values[other]
    if first.rank == second.rank:
        raise ConfigError(
            f"{first.said(one)} and {second.said(other)} contradict each other; leave one of them out"
        )
    weaker = one if first.rank > second.rank else other
    stronger = other if weaker == one else one
    notes.append(f"{values[weaker].said(weaker)} is not used, because of {values[stronger].said(stronger)}")
    del values[weaker]
