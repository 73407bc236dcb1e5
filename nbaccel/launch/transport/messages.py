"""What the kernel, the zygote and the workers say to each other. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbaccel.config import LaunchSpec
from nbaccel.launch.traces.postmortem import FrameReport
from nbaccel.launch.traces.whereabouts import Whereabouts
from nbaccel.runtime.environment import ProcessEnvironment
from nbaccel.runtime.gauges import Standing

# --- kernel -> zygote -------------------------------------------------------------------------


@dataclass(frozen=True)
class Fork:
    """Fork one worker. Descriptors beside it: channel, stdout, stderr, exit-status pipe."""

    name: str
    """Shown as the process's title where the system allows."""


@dataclass(frozen=True)
class ForkZygote:
    """Fork a further zygote with further modules. Descriptor beside it: its control channel."""

    packages: tuple[tuple[str, ...], ...]
    """Modules to import, those of one package together."""
    environ: Mapping[str, str]
    path: tuple[str, ...]
    """``sys.path``."""


@dataclass(frozen=True)
class EndZygote:
    """Kill a zygote that was forked from this one."""

    pid: int


@dataclass(frozen=True)
class Retire:
    """Nothing more will be asked: leave when the workers forked so far have ended."""


@dataclass(frozen=True)
class Signal:
    """Send ``signum`` to a worker that is still alive, or to its whole process group."""

    pid: int
    signum: int
    group: bool


# --- zygote -> kernel -------------------------------------------------------------------------


@dataclass(frozen=True)
class Importing:
    """A forked zygote is about to import this; when it is not heard of again, that was why."""

    pid: int
    package: str


@dataclass(frozen=True)
class ZygoteReady:
    """All imports are done and forks are served from now on."""

    pid: int
    loaded: frozenset[str]
    """Every module that a fork has at once."""
    failed: Mapping[str, str]
    """Module -> why its import failed."""
    unclean: str
    """Why this process must not be forked (threads, a device); empty when it is clean."""


@dataclass(frozen=True)
class Forked:
    """The process asked for runs."""

    pid: int


@dataclass(frozen=True)
class ForkFailed:
    """The system refused the fork."""

    errno: int
    text: str


# --- kernel -> worker -------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """Everything a worker takes on before user code runs."""

    spec: LaunchSpec
    place: ProcessEnvironment
    environ: Mapping[str, str]
    """The worker's whole environment, rank names included."""
    cwd: str
    path: tuple[str, ...]
    """The kernel's ``sys.path``."""
    argv: tuple[str, ...]
    """The kernel's ``sys.argv``."""
    main_file: str | None
    """``__main__.__file__`` of the kernel, for code that looks at it; never executed."""
    num_threads: int
    """Intra-op threads of torch."""
    stays: bool = False
    """It belongs to a session: a failed task isn't its end."""
    marks_secret: bytes = b""
    """What the marks in its output start with (:mod:`nbaccel.launch.output.marks`); empty: no marks."""
    meeting_timeout: float | None = None
    """Seconds to wait for the other machines before the first task; None: there are none."""


@dataclass(frozen=True)
class Host:
    """Take on a further rank, in a thread of its own. Descriptors beside it: its channel, stdout and
    stderr.
    """

    setup: Setup


@dataclass(frozen=True)
class Ambience:
    """What a task of a session finds around it, as it is in the kernel now. None: as it was."""

    spec: LaunchSpec | None = None
    cwd: str | None = None
    path: tuple[str, ...] | None = None
    environ: Mapping[str, str | None] | None = None
    """Variables that were set, and with None those that were deleted."""


@dataclass(frozen=True)
class Run:
    """Call what is in the payload whose descriptor goes along, and report."""

    task: int
    wants_value: bool
    """False: the return value stays in the worker."""
    ambience: Ambience | None = None
    """What has changed around the kernel since the last task of a session."""


@dataclass(frozen=True)
class Interrupt:
    """Raise ``KeyboardInterrupt`` in user code, where no signal can be sent."""


@dataclass(frozen=True)
class AskStacks:
    """Report where every thread is."""


@dataclass(frozen=True)
class AskWhereabouts:
    """Report in short what the main thread does."""


@dataclass(frozen=True)
class AskSteps:
    """Report how many optimizer steps were taken."""


@dataclass(frozen=True)
class WatchProgress:
    """Somebody watches the next task: note what it logs, and report before its end."""


@dataclass(frozen=True)
class AskProgress:
    """Report what the training loop is at."""


@dataclass(frozen=True)
class StopAtStep:
    """Interrupt user code right after this optimizer step; None takes it back."""

    count: int | None


@dataclass(frozen=True)
class Sever:
    """Shut down these connections with other workers, so that whoever waits on them is freed."""

    connections: frozenset[tuple[int, int]]
    """Local and remote port of each."""


@dataclass(frozen=True)
class Regroup:
    """End the process group and make a new one with all other workers.

    On XLA devices, which have none, there are two rounds: without ``align`` the core comes to rest, with it
    replicas are made equal.
    """

    number: int
    """Of the round: the same for all, and never used before in this session."""
    align: bool
    """Replicas may differ: rank 0's state goes to all."""


@dataclass(frozen=True)
class Stop:
    """No more tasks: shut down in order."""


# --- worker -> kernel -------------------------------------------------------------------------


@dataclass(frozen=True)
class Returned:
    """The call is over. Descriptor beside it: the value's payload, when one was wanted."""

    task: int
    has_group: bool = False
    """Whether the worker has a default process group now."""


@dataclass(frozen=True)
class Failed:
    """The call raised. Descriptor beside it: the packed exception, when it can be pickled."""

    task: int
    rank: int
    when: float
    """``time.monotonic()``, which all processes of a machine share."""
    type_name: str
    text: str
    traceback: str
    consequence: bool
    """The exception only tells that a peer is gone."""
    in_result: bool
    """The call itself went well, but its value could not be sent."""


@dataclass(frozen=True)
class Exiting:
    """The call asked for the end of the process with this code (``sys.exit(3)``)."""

    task: int
    code: int
    text: str = ""
    """What it gave instead of a number (``sys.exit("no data")``), which counts as 1."""


@dataclass(frozen=True)
class Display:
    """Something for the cell's output area; its place among the text is marked there."""

    number: int
    """Counts up from 1 in each worker."""
    action: str
    """``show``, ``update`` or ``clear``."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """MIME type -> representation, of built-in types that JSON can express."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """MIME type -> hints for the front end."""
    display_id: str | None = None
    """Name under which it can be updated."""
    is_value: bool = False
    """It is what the cell's last expression gave, of one rank on behalf of all."""
    wait: bool = False
    """Clear only when something new comes."""


@dataclass(frozen=True)
class Stacks:
    """Answer to :class:`AskStacks`."""

    text: str


@dataclass(frozen=True)
class Here:
    """Answer to :class:`AskWhereabouts`."""

    whereabouts: Whereabouts


@dataclass(frozen=True)
class Progress:
    """Answer to :class:`AskProgress`, and the last word on a task that was watched."""

    standing: Standing
    whereabouts: Whereabouts


@dataclass(frozen=True)
class FailureDetails:
    """After :class:`Failed`: the frames with their local variables, as texts."""

    frames: tuple[FrameReport, ...]


@dataclass(frozen=True)
class Steps:
    """Answer to :class:`AskSteps`."""

    count: int
    before: int
    """Those that were taken before the last task began."""


@dataclass(frozen=True)
class Regrouped:
    """Answer to :class:`Regroup`."""

    number: int
    trouble: str
    """Why there is no new group; empty when there is one."""
