"""A file a rank with everything it wrote, on request (``NBACCEL_LOG_DIR``).

The files get the bytes as they came, bars and all, also of ranks that aren't shown. A launch adds to
what is there. Must not raise once a launch runs: a full disk costs the log, not the training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO


def _private(path: str, flags: int) -> int:
    # Output may hold what nobody else should read; and a link that another user has put there isn't followed.
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


class RankLogs:
    """Open log files of one launch: ``rank-0.log``, ``rank-1.log``, ..."""

    def __init__(self, folder: str, ranks: Iterable[int]) -> None:
        """Open the files, and the folder if it isn't there.

        Raises:
            OSError: not possible; the text names the folder and the variable to change.
        """
        self._files: dict[int, BinaryIO] = {}
        self._trouble: OSError | None = None
        path = Path(folder).expanduser()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for rank in ranks:
                self._files[rank] = open(path / f"rank-{rank}.log", "ab", buffering=0, opener=_private)  # noqa: SIM115
        except OSError as error:
            self.close()
            raise OSError(
                error.errno,
                f"no logs can be written in log_dir={folder!r} ({error.strerror}); "
                "set NBACCEL_LOG_DIR to another folder, or unset it",
            ) from error
        header = time.strftime("--- launched %Y-%m-%d %H:%M:%S\n").encode()
        for rank in self._files:
            self.write(rank, header)

    def write(self, rank: int, data: bytes) -> None:
        """Add to a rank's file."""
        if self._trouble is not None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._files[rank].write(view) :]
        except OSError as error:
            self._trouble = error

    def close(self) -> OSError | None:
        """Close the files; returns the first error that writing met."""
        for file in self._files.values():
            file.close()
        return self._trouble
