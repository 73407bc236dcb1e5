"""Who am I: this process's place among the processes that train together.

Reads the standard names that torchrun, Slurm wrappers and nbaccel's own launcher set, so that the
same training function runs under any of them, and alone when none is set.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

RANK = "RANK"
LOCAL_RANK = "LOCAL_RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"

_this_thread = threading.local()


@dataclass(frozen=True)
class ProcessEnvironment:
    """Rank and world of this process."""

    rank: int = 0
    """Index among all processes, ``0 <= rank < world_size``."""

    local_rank: int = 0
    """Index among the processes of this node."""

    world_size: int = 1
    """Number of processes on all nodes."""

    local_world_size: int = 1
    """Number of processes on this node."""

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> ProcessEnvironment:
        """The place that this thread was given, else what the standard names say.

        Args:
            environ: where to read; ``os.environ`` by default. When given, only it counts.

        Raises:
            ValueError: a name is set to something that isn't a whole number, or the rank lies
                outside the world.
        """
        if environ is None and (place := thread_place()) is not None:
            return place
        source = os.environ if environ is None else environ
        world_size = _whole_number(source, WORLD_SIZE, 1)
        rank = _whole_number(source, RANK, 0)
        local_rank = _whole_number(source, LOCAL_RANK, rank if world_size > 1 else 0)
        local_world_size = _whole_number(source, LOCAL_WORLD_SIZE, world_size)
        if not 0 <= rank < world_size:
            raise ValueError(f"{RANK}={rank} lies outside {WORLD_SIZE}={world_size}; unset both to run alone")
        return cls(rank, local_rank, world_size, local_world_size)

    def to_environ(self) -> dict[str, str]:
        """The names a launcher sets for this process (rendezvous address not included)."""
        return {
            RANK: str(self.rank),
            LOCAL_RANK: str(self.local_rank),
            WORLD_SIZE: str(self.world_size),
            LOCAL_WORLD_SIZE: str(self.local_world_size),
        }


def take_place(place: ProcessEnvironment | None) -> None:
    """Where ranks share a process: let the calling thread be one of them. None takes it back."""
    _this_thread.place = place


def thread_place() -> ProcessEnvironment | None:
    """What :func:`take_place` gave the calling thread."""
    place: ProcessEnvironment | None = getattr(_this_thread, "place", None)
    return place


def _whole_number(source: Mapping[str, str], name: str, default: int) -> int:
    text = source.get(name)
    if text is None or text == "":
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment variable {name}={text!r} is not a whole number") from None
