"""Where a loader is in its pass, and how an interrupted pass is taken up again.

The order of a pass is drawn from the random state at its start. To repeat it, that state is put back
while the pass is opened, and the state of the moment afterwards, so that nothing else notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbaccel.runtime import rng
from nbaccel.runtime.data.loops import Loop


class Position:
    """Belongs to one prepared loader."""

    def __init__(self) -> None:
        self._opened_at: dict[str, Any] | None = None
        """Random state at the start of the running pass; None between passes."""
        self._replay: dict[str, Any] | None = None
        self._resume_at = 0

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Around the opening of a pass: with the random state of an interrupted one, if there is one."""
        replay, self._replay = self._replay, None
        if replay is None:
            self._opened_at = rng.host_state()
            yield
            return
        now = rng.host_state()
        rng.set_host_state(replay)
        self._opened_at = replay
        try:
            yield
        finally:
            rng.set_host_state(now)

    def end(self) -> None:
        """The pass is over, or was broken off."""
        self._opened_at = None

    def take_resumed(self) -> int:
        """Batches to leave out of the next pass; once."""
        resumed, self._resume_at = self._resume_at, 0
        return resumed

    def state_dict(self, epoch: int, total_batch_size: int, loop: Loop | None) -> dict[str, Any]:
        """See :meth:`nbaccel.runtime.data.loader.PreparedLoader.state_dict`."""
        if self._opened_at is None or loop is None:
            return {"epoch": epoch, "batches": 0, "total_batch_size": total_batch_size, "opened_at": None}
        if loop.at_end:
            # Nothing of this pass is left.
            return {"epoch": epoch + 1, "batches": 0, "total_batch_size": total_batch_size, "opened_at": None}
        return {
            "epoch": epoch,
            "batches": loop.index + 1,
            "total_batch_size": total_batch_size,
            "opened_at": self._opened_at,
        }

    def load(self, state: dict[str, Any], total_batch_size: int, *, resume: bool) -> int:
        """Take over ``state``; returns its epoch.

        Raises:
            ValueError: the samples done so far are no whole number of batches here.
        """
        samples = state["batches"] * state["total_batch_size"]
        if resume and samples % total_batch_size:
            raise ValueError(
                f"the interrupted pass had done {samples} samples, which is no whole number of batches of "
                f"{total_batch_size} samples over all processes; resume with a batch size and number of "
                "processes that divide it"
            )
        self._replay = state["opened_at"]
        self._resume_at = samples // total_batch_size if resume else 0
        epoch: int = state["epoch"]
        return epoch
