"""Which trackers a run uses: names, classes and objects become trackers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from nbaccel.runtime.tracking import adapters
from nbaccel.runtime.tracking.base import GeneralTracker
from nbaccel.runtime.tracking.jsonl import JsonLinesTracker

# name -> class and the package it needs
TRACKERS: dict[str, tuple[type[GeneralTracker], str | None]] = {
    "jsonl": (JsonLinesTracker, None),
    "tensorboard": (adapters.TensorBoardTracker, "tensorboard"),
    "wandb": (adapters.WandBTracker, "wandb"),
    "mlflow": (adapters.MLflowTracker, "mlflow"),
    "trackio": (adapters.TrackioTracker, "trackio"),
    "comet_ml": (adapters.CometMLTracker, "comet_ml"),
    "aim": (adapters.AimTracker, "aim"),
    "clearml": (adapters.ClearMLTracker, "clearml"),
    "dvclive": (adapters.DVCLiveTracker, "dvclive"),
    "swanlab": (adapters.SwanLabTracker, "swanlab"),
}


def register_tracker_class(tracker_class: type[GeneralTracker]) -> None:
    """Make a tracker of your own known by its name."""
    TRACKERS[tracker_class.name] = (tracker_class, None)


def available_trackers() -> list[str]:
    """Names of the trackers whose package is installed."""
    return [name for name, (_, package) in TRACKERS.items() if package is None or find_spec(package)]


def choose_trackers(log_with: Any, logging_dir: str | os.PathLike[str] | None) -> list[str | GeneralTracker]:
    """What ``log_with`` asks for, each a known name or a tracker object.

    Args:
        log_with: a name, an enum member with a name as its value, a tracker object, a list of such, or
            ``"all"`` for every one that is installed.
        logging_dir: where trackers that write files write.

    Raises:
        ValueError: a name isn't known, its package isn't installed, or a directory is missing.
        TypeError: something that can't be a tracker.
    """
    if log_with is None:
        return []
    wanted = log_with if isinstance(log_with, list | tuple) else [log_with]
    chosen: list[str | GeneralTracker] = []
    for item in wanted:
        if isinstance(item, GeneralTracker):
            chosen.append(item)
            continue
        name = getattr(item, "value", item)
        if not isinstance(name, str):
            raise TypeError(f"log_with takes names and tracker objects, not {type(item).__name__}")
        names = _installed(logging_dir) if name == "all" else [name]
        chosen.extend(n for n in names if n not in chosen)
        if name != "all":
            _check(name, logging_dir)
    return chosen


def _installed(logging_dir: str | os.PathLike[str] | None) -> Iterable[str]:
    services = [name for name in available_trackers() if name != "jsonl"]
    return [n for n in services if logging_dir is not None or not TRACKERS[n][0].requires_logging_directory]


def _check(name: str, logging_dir: str | os.PathLike[str] | None) -> None:
    if name not in TRACKERS:
        raise ValueError(f"tracker {name!r} is not known; choose among {', '.join(TRACKERS)}, or 'all'")
    kind, package = TRACKERS[name]
    if package is not None and find_spec(package) is None:
        raise ValueError(
            f"tracker {name!r} needs the package {package}, which isn't installed: "
            f"pip install {package.replace('_', '-')}"
        )
    if kind.requires_logging_directory and logging_dir is None:
        raise ValueError(
            f"tracker {name!r} writes files: pass project_dir=... (or a logging_dir in project_config)"
        )


def build_tracker(
    name: str, run_name: str, logging_dir: str | os.PathLike[str] | None, options: dict[str, Any]
) -> GeneralTracker:
    """The tracker called ``name``, not started yet."""
    kind, _ = TRACKERS[name]
    if kind.requires_logging_directory:
        options = {"logging_dir": logging_dir, **options}
    return kind(run_name, **options)  # type: ignore[arg-type]
