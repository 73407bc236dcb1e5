"""What a tracker is, and how values become what every tracker takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch


class GeneralTracker:
    """Base of all trackers. Subclass it for one of your own, and pass an instance as ``log_with``.

    A subclass says its :attr:`name`, whether it :attr:`requires_logging_directory`, and has a property
    ``tracker`` with the object behind it.
    """

    name: ClassVar[str] = ""
    """What ``get_tracker`` calls it."""

    requires_logging_directory: ClassVar[bool] = False
    """Whether it is built with ``logging_dir``."""

    main_process_only: ClassVar[bool] = True
    """Whether it lives on rank 0 only; otherwise every rank has one."""

    def __init__(self, _blank: bool = False) -> None:
        self.blank = _blank
        """Whether this stands for a tracker on a rank that has none: it takes calls and does nothing."""

    def start(self) -> None:
        """Called once by ``init_trackers``, before anything else: open the run."""

    @property
    def tracker(self) -> Any:
        """The object behind it; None when there is none."""
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Note the hyper-parameters of the run."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Note ``values`` at ``step``."""

    def finish(self) -> None:
        """Close the run. Called by ``end_training``."""


def flatten_config(values: Mapping[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    """A configuration as one level of plain values.

    Nested mappings become names with slashes. What isn't a number, text or flag becomes text, with a
    warning that says which names.
    """
    flat: dict[str, Any] = {}
    changed: list[str] = []
    _flatten(values, prefix, flat, changed)
    if changed:
        warnings.warn(
            f"these hyper-parameters are noted as text, because trackers take numbers, text and flags: "
            f"{', '.join(changed)}",
            stacklevel=3,
        )
    return flat


def _flatten(values: Mapping[str, Any], prefix: str, flat: dict[str, Any], changed: list[str]) -> None:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flatten(value, f"{name}/", flat, changed)
        elif isinstance(value, bool | int | float | str):
            flat[name] = value
        elif isinstance(value, torch.Tensor) and value.numel() == 1:
            flat[name] = value.item()
        else:
            flat[name] = str(value)
            changed.append(name)


def plain_number(value: Any) -> Any:
    """A tensor or array of one element as a Python number; other values as they are."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) is not None:
        count = value.numel() if isinstance(value, torch.Tensor) else value.size
        return item() if count == 1 else value
    return value
