"""The agent's worker processes as the system sees them: who has ended and how, and how to reach the rest.

Looks without reaping, since reaping is the agent's. Signals only session leaders that it was told of and
that aren't reaped yet, so a pid can't have been given to somebody else.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from nbaccel.launch.system import process

_LOOK_S = 0.02
_KILL_PATIENCE_S = 2.0
"""How long a killed process may take to go; one that waits for a device can take for ever."""


class Workers:
    """The processes of one round of the agent."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        """Watch ``pids``: process ids by rank."""
        self.pids = dict(pids)
        self.codes: dict[int, int] = {}
        """Exit codes by rank of those that have ended, in the order in which that was seen; ``-N`` for
        signal ``N``."""
        self.failed_first: tuple[int, ...] = ()
        """Ranks that were seen to have failed at the first look that saw any."""

    def look(self) -> None:
        """Note who has ended since the last look."""
        new = []
        for rank, pid in self.pids.items():
            if rank in self.codes:
                continue
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                by_signal = ended.si_code in {os.CLD_KILLED, os.CLD_DUMPED}
                self.codes[rank] = -ended.si_status if by_signal else ended.si_status
                new.append(rank)
                # What it left behind in its process group. The pid isn't reaped, so the group is still its.
                process.kill_group(pid, signal.SIGKILL)
        if not self.failed_first:
            self.failed_first = tuple(rank for rank in new if self.codes[rank] != 0)

    def record(self, codes: Mapping[int, int]) -> None:
        """Take exit codes by rank from the agent, where the system doesn't tell without reaping."""
        self.codes |= codes
        self.failed_first = self.failed_first or tuple(rank for rank, code in codes.items() if code != 0)

    @property
    def all_ended(self) -> bool:
        return len(self.codes) == len(self.pids)

    def signal(self, signum: int) -> None:
        """Send a signal to the process group of each that runs."""
        for rank, pid in self.pids.items():
            if rank not in self.codes:
                process.kill_group(pid, signum)

    def stop(self, grace_s: float) -> None:
        """End those that still run: by SIGTERM, and after ``grace_s`` seconds by SIGKILL."""
        for signum, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_PATIENCE_S)):
            self.signal(signum)
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline:
                self.look()
                if self.all_ended:
                    return
                time.sleep(_LOOK_S)
