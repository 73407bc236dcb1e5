"""Counts real optimizer steps, so that all ranks can be stopped at the same one.

An interrupt that hits ranks at different steps leaves replicas that differ. Ranks of one program
take the same steps in the same order, so a step number that lies ahead of all of them is a place
where they can stop together: :meth:`StepClock.stop_at` names it from another thread, and the rank
raises ``KeyboardInterrupt`` right after that step.
"""

from __future__ import annotations

from nbaccel.runtime.rank_local import RankLocal


class StepClock:
    """Steps of a rank. Reading and setting are single operations, safe between threads."""

    def __init__(self) -> None:
        self.count = 0
        """Real steps of all prepared optimizers so far."""
        self._stop_at: int | None = None

    def advance(self) -> None:
        """A real step was taken.

        Raises:
            KeyboardInterrupt: this was the step to stop at.
        """
        self.count += 1
        if self._stop_at is not None and self.count >= self._stop_at:
            self._stop_at = None
            raise KeyboardInterrupt

    def stop_at(self, count: int) -> None:
        """Have :meth:`advance` raise once ``count`` steps are taken."""
        self._stop_at = count

    def go_on(self) -> None:
        """Take :meth:`stop_at` back."""
        self._stop_at = None


_clocks = RankLocal(StepClock)


def clock() -> StepClock:
    """That of the rank which the calling thread belongs to."""
    return _clocks.get()


def use_clock(own: StepClock) -> None:
    """Let ``own`` be the clock of the calling thread's rank."""
    _clocks.set(own)
