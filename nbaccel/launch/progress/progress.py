"""Watches a task for the live panel: asks the workers what they are at, and hands pictures to a view.

::

    worker: gauges ──look()──▶ service thread ──Progress──▶ ProgressWatch ──Picture──▶ View
                                     ▲                          │
                                     └───────AskProgress────────┘   twice a second, while a task runs

Workers are asked, they never send by themselves: a kernel that doesn't look costs them nothing, and
there is one question under way at most. Everything happens in the thread that waits for the task, so
the panel belongs to its cell. What is drawn, and where, is the view's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Self

from nbaccel import config
from nbaccel.config import LaunchSpec, Resolved
from nbaccel.launch.group.group import WorkerGroup
from nbaccel.launch.group.member import Member
from nbaccel.launch.output import screen
from nbaccel.launch.output.router import Router
from nbaccel.launch.progress.end import outcome_of, row_at_end
from nbaccel.launch.progress.model import RUNNING, Picture, RankRow, View
from nbaccel.launch.progress.resources import Resources
from nbaccel.launch.progress.track import RankTrack, estimate
from nbaccel.launch.request.resolve import describe
from nbaccel.launch.request.values import choice
from nbaccel.launch.transport import messages
from nbaccel.runtime.curves import CurveData

ASK_EVERY = 0.5
"""Seconds between two questions where somebody looks."""

ASK_EVERY_UNSEEN = 2.0
"""The same where nobody does, once there is a panel."""

SHOW_AFTER = 3.0
"""Seconds of training or iterating after which the panel shows by itself."""

OFF, AUTO, ON = "off", "auto", "on"

VIEWS = "nbaccel.widgets.panel"
"""The module that draws. It stands above this package, so it is known here by name only, and loaded when
there is something to show."""


def mode_of(asked: bool | str | None, settings: Resolved | None = None) -> str:
    """Whether a task has a panel: what was asked for, else what is configured.

    Args:
        asked: True, False, a word, or None for nothing said.
        settings: the configuration, where the caller has it already.

    Raises:
        ValueError: another word.
        ConfigError: the configuration can't be used.
    """
    if isinstance(asked, bool):
        return ON if asked else OFF
    if asked is not None:
        return choice("progress", asked, config.PROGRESS_MODES)
    if config.active_spec() is not None:
        return OFF  # a launch within a worker: the outer one is watched
    return str((config.resolve() if settings is None else settings)["progress"])


class ProgressWatch(AbstractContextManager["ProgressWatch"]):
    """Watches one task of a group: a context manager around it, entered before the task is submitted.

    Leaving it takes down how all ended.
    """

    def __init__(
        self,
        mode: str,
        group: WorkerGroup,
        router: Router,
        spec: LaunchSpec,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; nothing is asked before it is entered.

        Args:
            mode: one of :data:`nbaccel.config.PROGRESS_MODES`.
            group: whose members are watched.
            router: their output.
            spec: what they run on.
            environ: the environment in which the spec's devices are counted.
        """
        self._mode = mode
        self._group = group
        self._router = router
        self._spec = spec
        self._began = time.monotonic()
        self._tracks: dict[int, RankTrack] = {}
        self._asked: set[int] = set()
        self._next_ask = self._began if mode == ON else self._began + ASK_EVERY
        self._next_picture = float("inf")
        self._view: View | None = None
        self._resources = Resources(spec, dict(os.environ) if environ is None else environ)
        self._ended: Picture | None = None
        self._surface = screen.surface() if mode != OFF else ""
        self._is_watched = self._surface == screen.TERMINAL or (
            self._surface == screen.NOTEBOOK and screen.is_interactive()
        )

    def __enter__(self) -> Self:
        if self._mode != OFF:
            self._group.watch(self)
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if self._mode != OFF:
            self._group.watch(None)
            self._ended = self._last_picture(error)

    def finish(self) -> None:
        """After the output of the task: show the last picture, if any was shown or is due."""
        if self._ended is None:
            return
        if self._view is not None or self._mode == ON or self._ended.curves:
            self._shown_by().end(self._ended)

    # --- called by the group ------------------------------------------------------------------

    def begin(self) -> None:
        """The task is about to be handed to the workers."""
        self._began = time.monotonic()
        if self._mode == ON:
            # At once, so that it stands first, in front of all that the task prints.
            self._shown_by().update(self._picture(self._began))

    def due(self) -> float:
        """``time.monotonic()`` at which :meth:`tick` should be called, at the latest."""
        return min(self._next_ask, self._next_picture)

    def tick(self) -> None:
        """Ask, or show, when it is time."""
        now = time.monotonic()
        if now >= self._next_ask:
            every = ASK_EVERY if self._is_watched or self._view is None else ASK_EVERY_UNSEEN
            self._next_ask = now + every
            members = [member for member in self._members() if not member.is_settled]
            self._asked = {member.rank for member in members}
            self._group.ask_progress(members)
            self._resources.sample(self._members(), now)
            # Those that answer at once are in the picture; nobody waits for the others.
            self._next_picture = now + ASK_EVERY / 2
        if now >= self._next_picture:
            self._next_picture = float("inf")
            if self._view is not None or self._shows(now):
                self._shown_by().update(self._picture(now))

    def take(self, member: Member, progress: messages.Progress) -> None:
        """A worker has told what it is at."""
        self._track(member.rank).take(progress)
        self._asked.discard(member.rank)
        if not self._asked and self._next_picture != float("inf"):
            self._next_picture = 0.0

    # --- inside -------------------------------------------------------------------------------

    def _members(self) -> Iterable[Member]:
        return [member for member in self._group.members if not member.idles]

    def _track(self, rank: int) -> RankTrack:
        if rank not in self._tracks:
            self._tracks[rank] = RankTrack(rank, self._began)
        return self._tracks[rank]

    def _shows(self, now: float) -> bool:
        if self._mode == ON:
            return True
        return any(
            track.curves or (track.works_since is not None and now - track.works_since >= SHOW_AFTER)
            for track in self._tracks.values()
        )

    def _shown_by(self) -> View:
        if self._view is None:
            make: Callable[[str, screen.Screen, bool], View] = import_module(VIEWS).make_view
            self._view = make(self._surface, self._router.screen, self._mode == ON)
        return self._view

    def _row(self, member: Member, now: float) -> RankRow:
        return self._resources.added_to(self._track(member.rank).row(now))

    def _picture(self, now: float) -> Picture:
        rows = tuple(
            self._row(member, now)
            if not member.is_settled
            else row_at_end(member, self._row(member, now), None)
            for member in self._members()
        )
        return self._compose(now, rows, RUNNING, "")

    def _last_picture(self, error: BaseException | None) -> Picture:
        now = time.monotonic()
        rows = tuple(row_at_end(member, self._row(member, now), error) for member in self._members())
        state, outcome = outcome_of(error, rows)
        return self._compose(now, rows, state, outcome)

    def _compose(self, now: float, rows: tuple[RankRow, ...], state: str, outcome: str) -> Picture:
        curves: dict[str, CurveData] = {}
        for rank in sorted(self._tracks):
            for name, curve in self._tracks[rank].curves.items():
                curves.setdefault(name, curve)
        lead = next((t for _, t in sorted(self._tracks.items()) if t.trained or t.running), None)
        lead = lead or next((t for t in self._tracks.values() if t.standing.steps), None)
        told = estimate(lead, now)
        return Picture(
            title=describe(self._spec),
            state=state,
            outcome=outcome,
            elapsed=now - self._began,
            rows=rows,
            curves=tuple(curves.values()),
            further_names=max((t.standing.further_names for t in self._tracks.values()), default=0),
            epochs=told.epochs,
            total_steps=told.total_steps,
            share=told.share,
            left=told.left if state == RUNNING else None,
            unit="steps" if lead is not None and lead.running is None and not lead.trained else "batches",
        )
