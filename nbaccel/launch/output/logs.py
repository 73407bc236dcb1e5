"""A file a rank with everything it wrote, on request (``NBACCEL_LOG_DIR``).

The files get the bytes as they came, bars and all, also of ranks that aren't shown. A launch adds to
what is there. Must not raise once a launch runs: a full disk costs the log, not the training.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO


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
            path.mkdir(parents=True, exist_ok=True)
            for rank in ranks:
                self._files[rank] = (path / f"rank-{rank}.log").open("ab", buffering=0)
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
