"""Prints what to install beside torch, for the tests with other versions: ``requirements.py oldest|newest``.

`oldest` takes each lower bound of pyproject.toml as it stands there, so that a bound which doesn't hold fails
the tests; `newest` takes the names, and pip what it finds.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
EXTRAS = ("demo", "test")
"""What the tests import besides the package's own dependencies."""
NEEDS_TORCH = ("torch", "torchdata")
"""Installed without what they depend on: a torch with its CUDA libraries is several GB."""


def lower_bounds() -> dict[str, str]:
    """By name: the lowest version that pyproject.toml allows, of the dependencies and of `EXTRAS`."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    bounds: dict[str, str] = {}
    for line in (
        *project["dependencies"],
        *(line for extra in EXTRAS for line in project["optional-dependencies"][extra]),
    ):
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)(?:;.*)?", line)
        if match is None:
            raise ValueError(f"{PYPROJECT.name}: {line!r} has another form than name>=version")
        bounds[match[1]] = match[2]
    return bounds


def main(which: str, needs_torch: bool) -> None:
    """Print one requirement a line; those that are installed without their dependencies if `needs_torch`."""
    for name, version in sorted(lower_bounds().items()):
        if (name in NEEDS_TORCH) == needs_torch:
            sys.stdout.write(f"{name}=={version}\n" if which == "oldest" else f"{name}\n")


if __name__ == "__main__":
    main(sys.argv[1], "--needs-torch" in sys.argv)
