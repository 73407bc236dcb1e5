"""What a task of a session finds around it: folder, search path, environment, precision of the kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from nbaccel.config import LaunchSpec
from nbaccel.launch.system import process
from nbaccel.launch.transport import messages


@dataclass(frozen=True)
class Surroundings:
    """As they were at one moment."""

    spec: LaunchSpec
    cwd: str
    path: tuple[str, ...]
    environ: dict[str, str]

    @classmethod
    def now(cls, spec: LaunchSpec) -> Self:
        """Those of this process, at this moment."""
        return cls(spec, process.working_folder(), process.import_path(), dict(os.environ))

    def changes_to(self, other: Surroundings) -> messages.Ambience:
        """What differs; a worker's own changes of the rest stay its own."""
        changed: dict[str, str | None] = {
            name: value for name, value in other.environ.items() if self.environ.get(name) != value
        }
        changed.update({name: None for name in self.environ if name not in other.environ})
        return messages.Ambience(
            spec=other.spec if other.spec != self.spec else None,
            cwd=other.cwd if other.cwd != self.cwd else None,
            path=other.path if other.path != self.path else None,
            environ=changed or None,
        )
