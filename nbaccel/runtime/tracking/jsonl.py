"""A tracker without dependencies: one JSON object a line, in a file per run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar, TextIO

from nbaccel.runtime.tracking.base import GeneralTracker, plain_number


class JsonLinesTracker(GeneralTracker):
    """Writes ``<logging_dir>/<run_name>.jsonl``; a run of the same name is appended to.

    Lines are ``{"time": ..., "config": {...}}`` and ``{"time": ..., "step": ..., "values": {...}}``,
    time in seconds since the epoch. Each line is on disk when ``log`` returns.
    """

    name: ClassVar[str] = "jsonl"
    requires_logging_directory: ClassVar[bool] = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str] = ".", **_: Any) -> None:
        super().__init__()
        self.path = Path(logging_dir, f"{run_name}.jsonl")
        self._file: TextIO | None = None

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")

    @property
    def tracker(self) -> Any:
        return self.path

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._write({"config": values})

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self._write({"step": step, "values": {key: plain_number(value) for key, value in values.items()}})

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError(f"the tracker for {self.path} isn't open: call init_trackers first")
        self._file.write(json.dumps({"time": time.time(), **record}, default=str) + "\n")
        self._file.flush()

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
