"""One rank's way through a task, from what it tells now and then: what it does, since when, how fast.

Knows nothing of processes or time of its own: the caller says what arrived, and when.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nbaccel.launch.progress.model import RUNNING, RankRow
from nbaccel.launch.traces.whereabouts import Whereabouts, describe_place
from nbaccel.launch.transport.messages import Progress
from nbaccel.runtime.curves import CurveData
from nbaccel.runtime.gauges import Pass, Standing

RATE_SECONDS = 15.0
"""Rates are means over this time, which evens out batches of different size."""

WAITING_SECONDS = 3.0
"""How long a rank has to sit in the same operation, its counters standing still, until that is called
waiting: a loop that is well spends most of its time in one operation, too."""

TRAINS, READS, EVALUATES = "trains", "reads batches", "evaluates"


@dataclass(frozen=True)
class _Sample:
    when: float
    count: int
    """Batches of the loader, or steps."""


class RankTrack:
    """What is known of one rank."""

    def __init__(self, rank: int, began: float) -> None:
        """Nothing is known yet.

        Args:
            rank: whose it is.
            began: ``time.monotonic()`` of the task's start.
        """
        self.rank = rank
        self.curves: dict[str, CurveData] = {}
        self.standing = Standing(when=began)
        self.works_since: float | None = None
        """When it was first seen to train or to iterate; None: not yet."""
        self._samples: deque[_Sample] = deque()
        self._rates: dict[int, float] = {}
        """By loader; under 0 those of steps without one."""
        self._anchor: tuple[float, float] | None = None
        self._counted = 0
        self._place: tuple[str, str, int] = ("", "", 0)
        self._place_since = began
        self._counters: tuple[object, ...] = ()
        self._moved_at = began
        self._stepped_at: float | None = None
        self._first_seen: dict[str, float] = {}
        """When it was first seen to train, or to read: a short evaluation in between starts no new time."""
        self._doing = "starts"
        self._doing_since = began

    # --- what arrives -------------------------------------------------------------------------

    def take(self, message: Progress) -> None:
        """A report."""
        standing = message.standing
        self._take_counters(standing)
        self.standing = standing
        for curve in standing.curves:
            self.curves[curve.name] = curve
        if self.works_since is None and (standing.passes or standing.last or standing.steps):
            self.works_since = standing.when
        self._take_sample(standing)
        self._take_place(message.whereabouts, standing.when)
        self._do(self._activity(message.whereabouts, standing.when), standing.when)

    def _take_sample(self, standing: Standing) -> None:
        running = self.running
        counted, count = (0, standing.steps) if running is None else (running.loader, running.total)
        if counted != self._counted:
            # Another loader, or what comes between two passes: what was counted before says nothing.
            self._counted = counted
            self._samples.clear()
        self._samples.append(_Sample(standing.when, count))
        while len(self._samples) > 2 and standing.when - self._samples[1].when > RATE_SECONDS:
            self._samples.popleft()
        first = self._samples[0]
        if count > first.count and standing.when > first.when:
            self._rates[counted] = (count - first.count) / (standing.when - first.when)

    def _take_counters(self, standing: Standing) -> None:
        if standing.steps > self.standing.steps:
            self._stepped_at = standing.when
        last = standing.last.number if standing.last is not None else 0
        counters = (standing.steps, last, *((one.number, one.done) for one in standing.passes))
        if counters != self._counters:
            self._counters, self._moved_at = counters, standing.when

    def _take_place(self, here: Whereabouts, when: float) -> None:
        place = (here.waits_in, here.filename, here.line)
        if place != self._place:
            self._place, self._place_since = place, when

    def _activity(self, here: Whereabouts, when: float) -> str:
        if here.waits_in and when - self._stands_since >= WAITING_SECONDS:
            return f"waits in {here.waits_in} ({describe_place(here.filename, here.line)})"
        running = self.running
        if running is not None:
            inner = self.standing.passes[-1]
            if self._trains(inner):
                return TRAINS
            return EVALUATES if self.standing.last or self._trains(running) else READS
        if self._has_just_stepped(when):
            return TRAINS
        if not here.filename:
            return self._doing  # before its call, or after it
        return f"runs {describe_place(here.filename, here.line)}"

    def _do(self, doing: str, when: float) -> None:
        if doing != self._doing:
            self._doing, self._doing_since = doing, when
            if doing.startswith("waits in"):
                self._doing_since = self._stands_since
            elif doing in (TRAINS, READS):
                self._doing_since = self._first_seen.setdefault(doing, when)

    @property
    def _stands_since(self) -> float:
        """Since when it has neither counted anything nor left its place."""
        return max(self._place_since, self._moved_at)

    def _has_just_stepped(self, when: float) -> bool:
        """Whether it trains although no prepared loader is iterated: between two, or without any."""
        if self._stepped_at is None:
            return False
        return self._stepped_at == when or (
            self.standing.last is None and when - self._stepped_at < WAITING_SECONDS
        )

    # --- what it comes to ---------------------------------------------------------------------

    @property
    def running(self) -> Pass | None:
        """The pass that counts: of those that run, the outermost that is trained on, else the outermost."""
        passes = self.standing.passes
        return next(filter(self._trains, passes), passes[0] if passes else None)

    @property
    def trained(self) -> Pass | None:
        """The pass that is trained on, else the last one that was."""
        running = self.running
        return running if running is not None and self._trains(running) else self.standing.last

    def _trains(self, one: Pass) -> bool:
        """Whether steps are taken in it; in its first batches, whether they were in its loader's last."""
        last = self.standing.last
        return one.steps > 0 or (last is not None and last.loader == one.loader)

    def rate(self) -> float | None:
        """Batches, or steps, a second; in the first moments of a pass those of its loader's last one."""
        counted = self.running or self.standing.last
        return self._rates.get(0 if counted is None else counted.loader)

    def left_of(self, share: float, now: float) -> float | None:
        """Seconds until all of the run is done, evaluations and all, at the pace since it was first seen.

        Args:
            share: what is done of it, 0 to 1.
            now: ``time.monotonic()``.
        """
        if self._anchor is None:
            self._anchor = (now, share)
            return None
        began, before = self._anchor
        return (now - began) * (1.0 - share) / (share - before) if share > before else None

    def row(self, now: float) -> RankRow:
        """It at this moment, as long as it runs."""
        shown = self.running or self.standing.last
        trained = self.trained
        epoch = trained or shown
        return RankRow(
            rank=self.rank,
            state=RUNNING,
            doing=self._doing,
            since=max(0.0, now - self._doing_since),
            steps=self.standing.steps,
            epoch=None if epoch is None else epoch.epoch,
            batch=None if shown is None else shown.done,
            length=None if shown is None else shown.length,
            rate=self.rate(),
        )


@dataclass(frozen=True)
class Estimate:
    """How far a run is."""

    epochs: int | None = None
    """The number of the last epoch, from 1."""
    total_steps: int | None = None
    share: float | None = None
    """Of the run where its length is known, else of the pass: 0 to 1."""
    left: float | None = None
    """Seconds."""


def estimate(track: RankTrack | None, now: float) -> Estimate:
    """How far the run is, by the rank that speaks for it; what isn't known is None."""
    if track is None:
        return Estimate()
    standing = track.standing
    trained = track.trained
    epochs: int | None = None
    share: float | None = None
    if standing.total_steps:
        share = standing.steps / standing.total_steps
    elif standing.epochs and trained is not None:
        first = trained.epoch if standing.first_epoch is None else standing.first_epoch
        epochs = first + standing.epochs
        if trained.length:
            share = (trained.epoch - first + trained.done / trained.length) / standing.epochs
    if share is not None:
        share = min(1.0, share)
        return Estimate(epochs, standing.total_steps, share, track.left_of(share, now))
    one = track.running or trained
    if one is None or not one.length:
        return Estimate(epochs, standing.total_steps)
    rate = track.rate()
    left = None if rate is None or track.running is None else max(0, one.length - one.done) / rate
    return Estimate(epochs, standing.total_steps, min(1.0, one.done / one.length), left)
