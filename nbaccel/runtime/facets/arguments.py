"""Where the arguments belong that scripts pass to ``Accelerator`` though another object takes them.

Accelerate took some of them itself in earlier versions; others are options of a plugin, which readers of
a tutorial expect here. Names and texts only.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from nbaccel.runtime.plugins import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)

_AS_ARGUMENT: dict[str, type[Any]] = {
    "dataloader_config": DataLoaderConfiguration,
    "project_config": ProjectConfiguration,
    "gradient_accumulation_plugin": GradientAccumulationPlugin,
    "dynamo_plugin": TorchDynamoPlugin,
}
_AS_HANDLER = (
    DistributedDataParallelKwargs, InitProcessGroupKwargs, GradScalerKwargs, AutocastKwargs, ProfileKwargs,
)  # fmt: skip
_OTHERWISE = {
    "num_steps": "write gradient_accumulation_steps=...",
    "device": "the device is chosen for you; write cpu=True for the CPU",
    "num_processes": "it is the launcher's: notebook_launcher(function, num_processes=...)",
    "gpu_ids": "they are the launcher's: notebook_launcher(function, devices=[...])",
    "precision": "write mixed_precision=...",
    "fp8": "write mixed_precision='fp8'",
}


def written_elsewhere() -> dict[str, str]:
    """By argument: what to write instead."""
    found: dict[str, str] = {}
    for argument, kind in _AS_ARGUMENT.items():
        for each in fields(kind):
            found.setdefault(each.name, f"write {argument}={kind.__name__}({each.name}=...)")
    for kind in _AS_HANDLER:
        for each in fields(kind):
            found.setdefault(each.name, f"write kwargs_handlers=[{kind.__name__}({each.name}=...)]")
    return found | _OTHERWISE
