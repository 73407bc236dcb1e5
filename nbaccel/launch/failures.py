"""A worker's exception on its way to the notebook.

In the worker :func:`pack` turns it into a message and, where it can be pickled, a payload with the
exception and the frames of its traceback: the user's and those of libraries, not what this package has
put in between. In the kernel :func:`revive` makes it an exception again whose traceback shows these
frames. Which one is raised is for :mod:`nbaccel.launch.supervision.supervision` to say.
"""

from __future__ import annotations

import re
import textwrap
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from nbaccel.errors import WorkerError
from nbaccel.launch.payload import payload
from nbaccel.launch.traces.frames import RemoteFrame, capture, rebuild
from nbaccel.launch.traces.owners import is_launcher, without_ours
from nbaccel.launch.transport import messages

_MAX_CHAIN = 8
_MAX_LINE = 100
_MAX_TEXT = 100_000

_CONSEQUENCES = (
    # gloo, when a peer's process or its process group has gone
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    # torch's store and NCCL's watchdog, for the same reason
    "recvValue failed",
    "sendBytes failed",
    "Failed to recv, got 0 bytes",
    "remote process exited or there was a network error",
    "NCCL communicator was aborted",
)
"""What collectives say when a peer has gone: these tell of an end, not of its cause."""


@dataclass(frozen=True)
class PackedException:
    """An exception with what pickle would drop."""

    exception: BaseException
    frames: tuple[RemoteFrame, ...]
    cause: PackedException | None
    context: PackedException | None
    suppress_context: bool


def pack(
    error: BaseException, *, task: int, rank: int, when: float, in_result: bool, skip_file: str
) -> tuple[messages.Failed, payload.Payload | None]:
    """Make ``error`` ready for the channel.

    Args:
        error: what user code raised.
        task: number of the task that failed.
        rank: global rank of this worker.
        when: ``time.monotonic()`` at the failure.
        in_result: the call went well, sending its value failed.
        skip_file: leading frames of this file and its neighbours are ours, not the user's, and are left out.
    """
    _set(error, "__traceback__", _without_leading(error.__traceback__, skip_file))
    packed: payload.Payload | None = None
    try:
        packed = payload.dump_result(_pack_chain(error, 0))
        packed.load()  # an exception that can't be rebuilt here can't be rebuilt there either
    except BaseException:  # noqa: BLE001  # whatever an object's own methods raise, an exit included
        # The type name, the text and the traceback go in any case.
        if packed is not None:
            packed.close()
        packed = None
    failed = messages.Failed(
        task=task,
        rank=rank,
        when=when,
        type_name=type(error).__name__,
        text=_shortened(text_of(error)),
        traceback=_shortened(_traceback_text(error)),
        consequence=is_consequence(error),
        in_result=in_result,
    )
    return failed, packed


def is_consequence(error: BaseException) -> bool:
    """Whether ``error`` only tells that a peer has gone."""
    if not isinstance(error, (RuntimeError, ConnectionError)):
        return False
    return tells_of_a_peer(text_of(error))


def tells_of_a_peer(text: str) -> bool:
    """Whether an error's text says that a peer has gone."""
    return any(sign in text for sign in _CONSEQUENCES)


def revive(failed: messages.Failed, packed: payload.Payload | None) -> BaseException:
    """The exception to raise in the kernel: the worker's own, else a :class:`WorkerError`.

    It has ``.rank`` and ``.remote_traceback`` (where its class lets attributes be set).
    """
    error: BaseException | None = None
    if packed is not None:
        try:
            error = _unpack_chain(packed.load())
        except BaseException:  # noqa: BLE001
            error = None  # its class can't be rebuilt in this process; the text is told instead
    if error is None:
        error = WorkerError(f"{failed.type_name}: {failed.text}")
        annotate(error, f"Traceback of rank {failed.rank}:\n{failed.traceback.rstrip()}")
    for name, value in (("rank", failed.rank), ("remote_traceback", failed.traceback)):
        _attach(error, name, value)
    return error


def annotate(error: BaseException, note: str) -> None:
    """``error.add_note(note)``, also where its class lets nothing be set."""
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001  # a frozen dataclass, or a class with a __setattr__ of its own
        _attach(error, "__notes__", [*getattr(error, "__notes__", ()), note])


def _attach(error: BaseException, name: str, value: object) -> None:
    try:
        setattr(error, name, value)
    except Exception:  # noqa: BLE001  # frozen, a property of that name, a __setattr__ of its own
        if hasattr(error, "__dict__"):
            vars(error)[name] = value


def _set(error: BaseException, name: str, value: object) -> None:
    """Set one of the attributes that every exception has, past a ``__setattr__`` of its class."""
    getattr(BaseException, name).__set__(error, value)


def without_our_frames(tb: TracebackType | None) -> TracebackType | None:
    """Leave out the launcher's own frames in front of the worker's; None when there are no others."""
    while tb is not None and is_launcher(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    return tb


def hide_our_frames(error: BaseException) -> None:
    """Before it is raised on: show the caller's frames and the worker's, not the launcher's."""
    _set(error, "__traceback__", without_our_frames(error.__traceback__))


def summarise(others: Iterable[messages.Failed]) -> list[str]:
    """A line for each different failure, with the ranks that had it."""
    ranks: dict[tuple[str, bool], list[int]] = {}
    for failed in others:
        # A bracketed place in torch's own C++ source leads such texts; it helps nobody here.
        text = re.sub(r"^\[[^\]]*\]\s*", "", failed.text.split("\n", 1)[0])
        line = textwrap.shorten(f"{failed.type_name}: {text}", _MAX_LINE, placeholder=" ...")
        ranks.setdefault((line, failed.consequence), []).append(failed.rank)
    lines = []
    for (line, consequence), members in ranks.items():
        who = describe_ranks(members)
        lines.append(f"{who} {'failed in consequence' if consequence else 'also failed'}: {line}")
    return lines


def describe_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    numbers = sorted(ranks)
    if not numbers:
        return "no rank"
    parts: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if number is not None:
            start = previous = number
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def _pack_chain(error: BaseException, depth: int) -> PackedException:
    def linked(other: BaseException | None) -> PackedException | None:
        return None if other is None or depth >= _MAX_CHAIN else _pack_chain(other, depth + 1)

    return PackedException(
        error,
        without_ours(capture(error.__traceback__)),
        linked(error.__cause__),
        linked(error.__context__),
        error.__suppress_context__,
    )


def _unpack_chain(packed: PackedException) -> BaseException:
    error = packed.exception
    _set(error, "__traceback__", rebuild(packed.frames))
    if packed.cause is not None:
        _set(error, "__cause__", _unpack_chain(packed.cause))
    if packed.context is not None:
        _set(error, "__context__", _unpack_chain(packed.context))
    _set(error, "__suppress_context__", packed.suppress_context)
    return error


def _without_leading(tb: TracebackType | None, skip_file: str) -> TracebackType | None:
    ours = Path(skip_file).parent
    while tb is not None and tb.tb_next is not None and Path(tb.tb_frame.f_code.co_filename).parent == ours:
        tb = tb.tb_next
    return tb


def text_of(obj: object) -> str:
    """``str(obj)``, whatever its class makes of that."""
    try:
        return str(obj)
    except BaseException as broken:  # noqa: BLE001
        return f"<str() of it raised {type(broken).__name__}>"


def _traceback_text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  # its own str() again, or a note that is no text
        return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__


def _shortened(text: str) -> str:
    """What a person reads of it: the start and the end."""
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
