"""Notices ranks that wait for each other for ever, and says once who waits where.

It must not cry wolf: a rank that downloads, evaluates or loads data while the others wait in a
collective is no hang. So it speaks only when, in three looks in a row, every rank has either finished
or sits in an operation that waits for peers without using the processor, and not all at the same
place.
"""

from __future__ import annotations

import time

from nbaccel.launch import notices
from nbaccel.launch.failures import describe_ranks
from nbaccel.launch.group.group import WorkerGroup
from nbaccel.launch.traces.whereabouts import Whereabouts, describe_place

LOOK_EVERY = 2.5
"""Seconds between two looks."""

IDLE_SHARE = 0.05
"""Share of one core below which a process only waits."""

_REMEDY = "interrupt to end this, or set a timeout"

LOOKS_NEEDED = 3
"""Looks in a row that must agree."""


class HangWatch:
    """Looks at a group now and then while its supervisor waits."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._next_look = time.monotonic() + LOOK_EVERY
        self._last_looked = time.monotonic()
        self._before: dict[int, Whereabouts] = {}
        self._agreeing = 0
        self._has_spoken = len(group.members) < 2  # a rank alone waits for nobody

    @property
    def next_look(self) -> float:
        """``time.monotonic()`` of the next look; infinite when there will be none."""
        return float("inf") if self._has_spoken else self._next_look

    def look(self) -> None:
        """Judge the answers to the last question, and ask again."""
        now = time.monotonic()
        self._next_look = now + LOOK_EVERY
        working = [member for member in self._group.members if not member.is_settled]
        answered = {m.rank: m.whereabouts for m in working if m.whereabouts is not None}
        if len(answered) == len(working) and self._all_wait(answered, now - self._last_looked):
            self._agreeing += 1
        else:
            self._agreeing = 0
        if self._agreeing >= LOOKS_NEEDED and self._differ(answered):
            self._has_spoken = True
            notices.warn(f"the ranks wait for each other: {self._describe(answered)}; {_REMEDY}")
            return
        self._before = answered
        self._last_looked = now
        self._group.ask_whereabouts()

    def _all_wait(self, answered: dict[int, Whereabouts], seconds: float) -> bool:
        for rank, here in answered.items():
            before = self._before.get(rank)
            if before is None or not here.waits_in:
                return False
            if (here.waits_in, here.filename, here.line) != (before.waits_in, before.filename, before.line):
                return False
            if here.cpu_seconds - before.cpu_seconds > IDLE_SHARE * seconds:
                return False
        return bool(answered)

    def _differ(self, answered: dict[int, Whereabouts]) -> bool:
        places = {(here.waits_in, here.filename, here.line) for here in answered.values()}
        return len(places) > 1 or any(member.is_settled for member in self._group.members)

    def _describe(self, answered: dict[int, Whereabouts]) -> str:
        stories: dict[str, list[int]] = {}
        for rank, here in answered.items():
            story = f"in {here.waits_in} at {describe_place(here.filename, here.line)}"
            stories.setdefault(story, []).append(rank)
        parts = [
            f"{describe_ranks(ranks)} wait{'' if len(ranks) > 1 else 's'} {story}"
            for story, ranks in stories.items()
        ]
        finished = [member.rank for member in self._group.members if member.is_settled]
        if finished:
            parts.append(f"{describe_ranks(finished)} {'have' if len(finished) > 1 else 'has'} finished")
        return "; ".join(parts)
