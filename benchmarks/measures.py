"""The words of the benchmarks: what is measured, with whom, and what it must reach."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from tests.kernel import Kernel

Readings = dict[str, dict[str, float]]
"""measure -> who or what -> value. "Who" is a package; "what" a yardstick, taken in the same kernel."""

ONE_WRITE = "one write"
"""Yardstick: writing the same bytes to a new file in memory."""

REWRITE = "one write over"
"""Yardstick: writing them once more to the same file, whose memory is there already."""

DATA = "the data"
"""Yardstick: the size of what is sent."""

BARE = "bare PyTorch"


@dataclass(frozen=True)
class Door:
    """A package that does the same work, and the cell by which a notebook gets at it."""

    package: str
    opening: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the package is installed."""
        return importlib.util.find_spec(self.package) is not None


def _launcher_of(package: str) -> str:
    return f"from {package} import Accelerator, notebook_launcher"


OURS = Door("nbaccel", _launcher_of("nbaccel"))
ACCELERATE = Door("accelerate", _launcher_of("accelerate"))
TORCHRUNX = Door(
    "torchrunx",
    # No process group: a function that does nothing needs none, and the others make none either.
    "import torchrunx\n"
    "def notebook_launcher(function, args=(), num_processes=2):\n"
    "    launcher = torchrunx.Launcher(\n"
    "        hostnames=['localhost'], workers_per_host=num_processes, backend=None\n"
    "    )\n"
    "    launcher.run(function, *args)",
)
IPYPARALLEL = Door("ipyparallel")


@dataclass(frozen=True)
class Goal:
    """What a measure must reach: a multiple of somebody else's, or seconds, or both, or (neither) nothing."""

    ratio: float | None = None
    seconds: float | None = None
    against: str = ACCELERATE.package
    """Whose value the ratio is taken to: a package or a yardstick."""
    unit: str = "s"
    """``s`` or ``MB`` (10**6 bytes)."""

    def is_met(self, ours: float, theirs: float | None) -> bool:
        """Whether `ours` reaches it; a ratio to what wasn't measured, or failed, is never reached."""
        if self.ratio is not None and not self.can_compare(theirs):
            return False
        return not self.is_missed(ours, theirs)

    def is_missed(self, ours: float, theirs: float | None) -> bool:
        """Whether `ours` is too much, by what could be measured."""
        if not math.isfinite(ours) and not self.asks_nothing:
            return True
        if self.seconds is not None and ours > self.seconds:
            return True
        return self.ratio is not None and self.can_compare(theirs) and ours > self.ratio * theirs

    @staticmethod
    def can_compare(theirs: float | None) -> TypeGuard[float]:
        """Whether there is a value to take a ratio to."""
        return theirs is not None and math.isfinite(theirs) and theirs > 0

    @property
    def asks_nothing(self) -> bool:
        """A measure that is shown for information."""
        return self.ratio is None and self.seconds is None

    def __str__(self) -> str:
        parts = [] if self.ratio is None else [f"<= {self.ratio:g} x {self.against}"]
        parts += [] if self.seconds is None else [f"<= {self.seconds:g} s"]
        return ", ".join(parts) or "-"


@dataclass(frozen=True)
class Scenario:
    """One notebook, and the measures that it gives, each with its goal."""

    run: Callable[[Kernel, Door], Readings]
    """Gets a fresh kernel. It must do the same work for each door."""

    goals: dict[str, Goal]
    repeats: int
    """How often to run it with each door; the median counts."""

    doors: tuple[Door, ...] = (OURS, ACCELERATE)


def by(door: Door, values: dict[str, float]) -> Readings:
    """Readings of one package without yardsticks."""
    return {measure: {door.package: value} for measure, value in values.items()}


def number_from(kernel: Kernel, expression: str, timeout: float = 120) -> float:
    """The value of an expression in the kernel, which must be a number."""
    result = kernel.run(f"print('number:', {expression})", timeout=timeout)
    return float(result.stdout.rsplit("number:", 1)[1])
