"""One worker as the kernel knows it: its process and connection, and what it has told of its task.

Only remembers: what follows from it is for :mod:`nbaccel.launch.group.group` and those above it to decide.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from nbaccel.launch.group.spawners import WorkerProcess
from nbaccel.launch.output.byte_sources import ByteSource
from nbaccel.launch.payload.payload import Payload
from nbaccel.launch.traces.postmortem import FrameReport
from nbaccel.launch.traces.whereabouts import Whereabouts, name_cells
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import Channel


@dataclass(eq=False)
class Member:
    """One worker, as the kernel knows it."""

    rank: int
    process: WorkerProcess
    channel: Channel
    streams: Mapping[bool, ByteSource]
    """Whether it is standard error -> the stream."""
    idles: bool = False
    """The task at hand isn't for this rank."""
    returned: bool = False
    """The call is over and went well."""
    has_group: bool = True
    """Whether it had a process group after its last task (told in sessions only)."""
    value: Payload | None = None
    """What it returned, when that was asked for."""
    failure: messages.Failed | None = None
    failure_payload: Payload | None = None
    frames: tuple[FrameReport, ...] | None = None
    """What it told of its frames after a failure."""
    asked_exit: int | None = None
    """Code of ``sys.exit(code)``."""
    exit_text: str = ""
    """What it gave instead of a code."""
    stacks: str | None = None
    """Last answer to :class:`~nbaccel.launch.transport.messages.AskStacks`."""
    whereabouts: Whereabouts | None = None
    """Last answer to :class:`~nbaccel.launch.transport.messages.AskWhereabouts`."""
    steps: int | None = None
    """Last answer to :class:`~nbaccel.launch.transport.messages.AskSteps`."""
    steps_before: int = 0
    """Told with them: those it had taken before its task."""
    regrouped: messages.Regrouped | None = None
    """Last answer to :class:`~nbaccel.launch.transport.messages.Regroup`."""
    unanswered: set[type] = field(default_factory=set)
    """Kinds of questions that are asked again and again, and that it has yet to answer."""
    task_began: float = field(default_factory=time.monotonic)
    """``time.monotonic()`` of its last task."""
    has_exited: bool = False
    exited_at: float = 0.0
    exitcode: int | None = None
    open_streams: set[bool] = field(default_factory=lambda: {False, True})
    source: int = -1
    """Its number from the start, by which its output is told; its rank may be another."""
    hosted: list[Member] = field(default_factory=list)
    """Further ranks, in threads of its process."""
    host: Member | None = None
    """The one in whose process it is a thread; None: it has its own."""

    def __post_init__(self) -> None:
        self.source = self.rank

    @property
    def process_ranks(self) -> list[int]:
        """All ranks of its process; mostly itself alone."""
        host = self.host or self
        return [host.rank, *(member.rank for member in host.hosted)]

    @property
    def is_settled(self) -> bool:
        """Nothing more is to be expected of its task."""
        return (
            self.idles
            or self.returned
            or self.failure is not None
            or self.asked_exit is not None
            or self.has_exited
        )

    @property
    def is_in_trouble(self) -> bool:
        """It failed, or ended before its task was over."""
        return self.is_settled and not self.returned and not (self.idles and not self.has_exited)

    @property
    def trouble_at(self) -> float:
        """``time.monotonic()`` of its failure or end."""
        return self.failure.when if self.failure is not None else self.exited_at

    def begin_task(self, *, idles: bool) -> None:
        """Forget the last task."""
        for payload in (self.value, self.failure_payload):
            if payload is not None:
                payload.close()
        self.idles = idles
        self.task_began = time.monotonic()
        self.steps = None
        self.returned = False
        self.value = self.failure = self.failure_payload = self.frames = self.asked_exit = None
        self.exit_text = ""
        self.stacks = self.whereabouts = None

    def hear(self, message: object, payload: Payload | None) -> None:
        """Remember what it has told of itself and of its task.

        Raises:
            TypeError: that isn't a worker's message.
        """
        if isinstance(message, messages.Returned):
            self.returned = True
            self.has_group = message.has_group
            self.value = payload
        elif isinstance(message, messages.Failed):
            self.failure = message
            self.failure_payload = payload
        elif isinstance(message, messages.FailureDetails):
            self.frames = message.frames
        elif isinstance(message, messages.Exiting):
            self.asked_exit, self.exit_text = message.code, message.text
            self.exited_at = time.monotonic()
        elif isinstance(message, messages.Stacks):
            self.stacks = name_cells(message.text)
        elif isinstance(message, messages.Here):
            self.unanswered.discard(messages.AskWhereabouts)
            self.whereabouts = message.whereabouts
        elif isinstance(message, messages.Steps):
            self.steps = message.count
            self.steps_before = message.before
        elif isinstance(message, messages.Regrouped):
            self.regrouped = message
        else:
            raise TypeError(f"the launcher does not know {type(message).__name__}")
