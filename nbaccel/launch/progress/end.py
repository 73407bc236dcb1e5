"""How a rank, and a run, ended: in words for the last picture of a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nbaccel.errors import LaunchTimeout
from nbaccel.launch.group.member import Member
from nbaccel.launch.progress.model import ENDED, FAILED, RUNNING, STOPPED, RankRow
from nbaccel.launch.supervision.supervision import story_of
from nbaccel.launch.traces.owners import is_library
from nbaccel.launch.traces.postmortem import FrameReport
from nbaccel.launch.traces.whereabouts import describe_place

_TEXT_SIZE = 200


def row_at_end(member: Member, row: RankRow, error: BaseException | None) -> RankRow:
    """``row`` of a rank that is over: what it did last becomes what came of it.

    Args:
        member: the worker.
        row: what was known of it while it ran.
        error: what the task raises; None when it went well, or is still running.
    """
    if member.returned:
        return replace(row, state=ENDED, doing="has finished", since=None)
    if member.failure is not None:
        if member.failure.type_name == "KeyboardInterrupt":
            how = "stopped" if isinstance(error, Exception) else "interrupted"
            return replace(row, state=STOPPED, doing=_stopped(row, how), since=None)
        if member.failure.consequence and not _is_told(member, error):
            return replace(row, state=STOPPED, doing="lost its connection to the others", since=None)
        where = _place_of(member.frames or ())
        text = f"raised {described(member.failure.type_name, member.failure.text)}"
        return replace(row, state=FAILED, doing=text + (f" at {where}" if where else ""), since=None)
    if isinstance(error, KeyboardInterrupt):
        return replace(row, state=STOPPED, doing=_stopped(row, "interrupted"), since=None)
    if member.asked_exit is not None or (member.has_exited and not _was_ended(member, error)):
        return replace(row, state=FAILED, doing=_cut(story_of(member)), since=None)
    return replace(row, state=STOPPED, doing=_stopped(row, "stopped"), since=None)


def outcome_of(error: BaseException | None, rows: Sequence[RankRow]) -> tuple[str, str]:
    """State of a run that is over, and a sentence on it.

    Args:
        error: what it raises; None when it went well.
        rows: its ranks at the end.
    """
    if error is None:
        return ENDED, "finished"
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, "interrupted"
    if isinstance(error, LaunchTimeout):
        return STOPPED, str(error).partition("\n")[0]
    rank = getattr(error, "rank", None)
    row = next((row for row in rows if row.rank == rank and row.state == FAILED), None)
    if row is not None:
        return FAILED, f"rank {row.rank} {row.doing}"
    return FAILED, described(type(error).__name__, str(error))


def described(type_name: str, text: str) -> str:
    """``KeyError: 'x'``, on one line and of bounded length."""
    line = _cut(text)
    return f"{type_name}: {line}" if line else type_name


def _cut(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _TEXT_SIZE else line[: _TEXT_SIZE - 1] + "…"


def _stopped(row: RankRow, how: str) -> str:
    return f"{how} ({row.doing})" if row.state == RUNNING else how


def _is_told(member: Member, error: BaseException | None) -> bool:
    """Whether its failure is the one that the run raises."""
    return error is not None and getattr(error, "rank", None) == member.rank


def _was_ended(member: Member, error: BaseException | None) -> bool:
    """Whether it was us who ended it, because of what happened to another rank."""
    return error is not None and getattr(error, "rank", member.rank) != member.rank


def _place_of(frames: Sequence[FrameReport]) -> str:
    """The user's innermost line; empty when there is none."""
    for frame in reversed(frames):
        if not is_library(frame.filename):
            return describe_place(frame.filename, frame.line)
    return ""
