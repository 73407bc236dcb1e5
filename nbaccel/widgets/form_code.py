"""The lines of code that say what a form says. Pure: settings in, texts out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from nbaccel.config import SETTINGS, Resolved

_OTHER_NAMES = {"master_port": "use_port"}
"""What the launcher calls a setting, where that is something else."""

_BETWEEN_MACHINES = frozenset({"node_rank", "master_addr", "master_port", "rdzv_backend"})
"""Settings that say nothing while there is one machine."""


def telling(settings: Resolved) -> dict[str, Any]:
    """The settings that aren't what they would be without any configuration, and have an effect."""
    found = {
        name: value.value for name, value in settings.values.items() if value.value != SETTINGS[name].default
    }
    if settings["num_nodes"] == 1:
        found = {name: value for name, value in found.items() if name not in _BETWEEN_MACHINES}
    if isinstance(found.get("devices"), tuple) and found.get("num_processes") == len(found["devices"]):
        del found["num_processes"]
    return found


def launcher_line(settings: Resolved) -> str:
    """A call of ``notebook_launcher`` that runs the same without any configuration."""
    from nbaccel.launch.launcher import notebook_launcher

    parameters = inspect.signature(notebook_launcher).parameters
    arguments: dict[str, Any] = {}
    environ: dict[str, str] = {}
    for name, value in telling(settings).items():
        known = _OTHER_NAMES.get(name, name)
        if known in parameters:
            arguments[known] = value
        else:
            environ[SETTINGS[name].variable] = SETTINGS[name].shown(value)
    ordered = {name: arguments[name] for name in parameters if name in arguments}
    if environ:
        ordered["env"] = environ
    return f"notebook_launcher({', '.join(['train', *_keywords(ordered)])})"


def configure_line(settings: Resolved) -> str:
    """A call of ``configure`` after which all doors run the same."""
    return f"nbaccel.configure({', '.join(_keywords(telling(settings)))})"


def cell_line(settings: Resolved) -> tuple[str, tuple[str, ...]]:
    """The first line of a cell that runs on the same.

    Returns:
        The line, and the settings that it has no word for.
    """
    values = telling(settings)
    words = ["%%accelerate"]
    devices = values.pop("devices", None)
    if values.pop("cpu", False):
        words.append("--cpu")
    if isinstance(devices, tuple):
        words.append(f"--gpu-ids {','.join(map(str, devices))}")
        values.pop("num_processes", None)
    elif devices is not None:
        values["devices"] = devices
    if (panel := values.pop("progress", None)) is not None:
        words.append("--progress" if panel == "on" else "--no-progress")
    for name, option in _OPTIONS.items():
        if name in values:
            words.append(option.format(SETTINGS[name].shown(values.pop(name))))
    return " ".join(words), tuple(values)


_OPTIONS = {
    "num_processes": "-n {}",
    "mixed_precision": "--mixed-precision {}",
    "output": "--output {}",
    "timeout": "--timeout {}",
}


def _keywords(arguments: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_literal(value)}" for name, value in arguments.items()]


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return repr(list(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """With double quotes, as formatters write them."""
    shown = repr(text)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in text else shown
