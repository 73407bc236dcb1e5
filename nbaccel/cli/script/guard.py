"""Becomes a worker: asks the system to end it with its launcher, then turns into the command.

Run as ``python -I -S guard.py LAUNCHER_PID COMMAND...``. It is a file of its own with no import of the
package, so that it costs a bare interpreter's start, some 15 ms. What it asks for outlives the exec, so
a launcher that is killed leaves nobody behind.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(launcher: int, command: list[str]) -> int:
    """Turn into ``command``; returns an exit code when that can't be done."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != launcher:
            return 1  # it was gone before we asked
    try:
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
    except OSError as error:
        sys.stderr.write(f"nbaccel: {command[0]} can't be run: {error.strerror}\n")
        # As a shell answers: 127 for what isn't there, 126 for what can't be run.
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
