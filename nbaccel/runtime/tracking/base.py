"""What a tracker is, and how values become what every tracker takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
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


def flatten_config(values: Mapping[str, Any]) -> dict[str, int | float | str | bool]:
    """A configuration as one level of plain values.

    Nested mappings become names with slashes. What isn't a number, text or flag becomes text, with a
    warning that says which names.
    """
    flat: dict[str, Any] = {}
    changed: list[str] = []
    for name, value in _leaves(values, ""):
        flat[name] = _plain(value, name, changed)
    _warn_of_text(changed, "numbers, text and flags")
    return flat


def plain_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of plain values, nested as it came: what can be written as JSON.

    None, lists and tuples of plain values stay. Anything else becomes text, with a warning that says
    which names.
    """
    changed: list[str] = []
    plain: dict[str, Any] = _nested(values, "", changed)
    _warn_of_text(changed, "plain values")
    return plain


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _nested(value: Any, name: str, changed: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _nested(v, f"{name}/{k}" if name else str(k), changed) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_nested(item, name, changed) for item in value]
    return None if value is None else _plain(value, name, changed)


def _plain(value: Any, name: str, changed: list[str]) -> int | float | str | bool:
    number = plain_number(value)
    if isinstance(number, bool | int | float | str):
        return number
    if name not in changed:
        changed.append(name)
    return str(value)


def _warn_of_text(names: list[str], taken: str) -> None:
    if names:
        warnings.warn(
            f"these hyper-parameters are noted as text, because the tracker takes {taken}: "
            f"{', '.join(names)}",
            stacklevel=4,
        )


def plain_number(value: Any) -> Any:
    """A tensor or array of one element as a Python number; other values as they are."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) is not None:
        count = value.numel() if isinstance(value, torch.Tensor) else value.size
        return item() if count == 1 else value
    return value
