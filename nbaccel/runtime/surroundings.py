"""Small helpers around the process: its environment, ports, versions, sizes."""

from __future__ import annotations

import operator
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from typing import Any

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """Set environment variables (names are upper-cased) within the block, and put them back after it."""
    wanted = {key.upper(): str(value) for key, value in kwargs.items()}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def clear_environment() -> Iterator[None]:
    """An empty environment within the block; all variables are back after it."""
    before = dict(os.environ)
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _restore(before: dict[str, str | None]) -> None:
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """A yes or no as 1 or 0, or as True or False.

    Raises:
        ValueError: it is neither.
    """
    text = str(value).lower()
    if text in {"y", "yes", "t", "true", "on", "1"}:
        return True if to_bool else 1
    if text in {"n", "no", "f", "false", "off", "0"}:
        return False if to_bool else 0
    raise ValueError(f"{value!r} is neither a yes nor a no")


def is_port_in_use(port: int | None = None) -> bool:
    """Whether something on this machine listens on ``port``, 29500 by default."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("127.0.0.1", 29500 if port is None else port)) == 0


def compare_versions(library_or_version: Any, operation: str, requirement_version: str) -> bool:
    """Compare the version of an installed library, or a version, with another.

    Args:
        library_or_version: the name of a distribution, or a ``packaging`` version.
        operation: one of ``< <= == != >= >``.
        requirement_version: what to compare with.

    Raises:
        ValueError: an unknown operation.
    """
    from packaging.version import Version

    if operation not in _COMPARISONS:
        raise ValueError(f"operation {operation!r} is not known; choose one of {' '.join(_COMPARISONS)}")
    if isinstance(library_or_version, str):
        library_or_version = Version(installed_version(library_or_version))
    return _COMPARISONS[operation](library_or_version, Version(requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    """Compare torch's version, without what stands after a plus sign."""
    from packaging.version import Version

    return compare_versions(Version(installed_version("torch").partition("+")[0]), operation, version)


def convert_bytes(size: float) -> str:
    """A number of bytes for people, in steps of 1024."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1024:
            return f"{round(size, 2)} {unit}"
        size /= 1024
    return f"{round(size, 2)} PB"


def merge_dicts(source: dict[Any, Any], destination: dict[Any, Any]) -> dict[Any, Any]:
    """Put ``source`` into ``destination``, mapping by mapping, and return it."""
    for key, value in source.items():
        if isinstance(value, dict):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination
