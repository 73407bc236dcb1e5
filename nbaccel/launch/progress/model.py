"""What a panel shows: data only, made by the launcher and drawn by whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nbaccel.runtime.curves import CurveData

RUNNING, ENDED, FAILED, STOPPED = "running", "ended", "failed", "stopped"
"""States of a rank, and of a run."""


@dataclass(frozen=True)
class RankRow:
    """One rank at one moment."""

    rank: int
    state: str
    """One of :data:`RUNNING`, :data:`ENDED`, :data:`FAILED`, :data:`STOPPED`."""
    doing: str
    """What it does, in words: ``trains``, ``waits in gather (Cell In[5], line 12)``, ``raised KeyError``."""
    since: float | None = None
    """Seconds for which it has done this; None where that says nothing."""
    steps: int = 0
    """Optimizer steps of this task."""
    epoch: int | None = None
    """The pass that it trains on, from 0 as the task counts; None when it iterates no prepared loader."""
    batch: int | None = None
    """Batches of that pass done."""
    length: int | None = None
    """Batches of that pass."""
    rate: float | None = None
    """Batches a second, or steps a second where no prepared loader is iterated."""
    memory: int | None = None
    """Bytes of main memory that its process holds."""
    load: float | None = None
    """Processor cores that it keeps busy."""
    device_memory: tuple[int, int] | None = None
    """Bytes in use on its accelerator, and bytes there are."""
    device_load: float | None = None
    """Share of the last moments in which its accelerator computed, 0 to 1."""


@dataclass(frozen=True)
class Picture:
    """A run at one moment."""

    title: str
    """What it runs on."""
    state: str
    """As for a rank."""
    outcome: str
    """What became of it, in words; empty while it runs."""
    elapsed: float
    """Seconds since it began."""
    rows: tuple[RankRow, ...]
    """Those that take part, by rank."""
    curves: tuple[CurveData, ...] = ()
    further_names: int = 0
    """Logged names without a curve."""
    epochs: int | None = None
    """How many there will be, where that is known."""
    total_steps: int | None = None
    share: float | None = None
    """How much of the run, or of the epoch when no more is known, is done: 0 to 1."""
    left: float | None = None
    """Seconds left of what :attr:`share` is a share of."""
    unit: str = "batches"
    """What rates count."""

    @property
    def lead(self) -> RankRow | None:
        """The rank that speaks for the run: the first that trains, else the first."""
        return next((row for row in self.rows if row.batch is not None or row.steps), None) or (
            self.rows[0] if self.rows else None
        )


class View(Protocol):
    """Where pictures are shown."""

    def update(self, picture: Picture) -> None:
        """Show the present picture. The first one takes a place among the output."""

    def end(self, picture: Picture) -> None:
        """Show the last picture, which stays."""
