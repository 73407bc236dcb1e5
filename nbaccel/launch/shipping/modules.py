"""The notebook's own modules: which of them were reloaded in the kernel since the workers imported them.

Workers import modules by name, and keep what they have imported. When the kernel reloads one (with
``importlib.reload`` or ``%autoreload``), they must, too, or they would go on with the old code. Each
reload gives the module a new spec. Installed packages and the standard library aren't watched.
"""

from __future__ import annotations

import sys
import sysconfig

_OURS = __name__.partition(".")[0]
_ROOTS = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_FOLDERS = ("site-packages", "dist-packages")


class ModuleWatch:
    """The state of local modules, as the workers of one session know it."""

    def __init__(self) -> None:
        """Look at what is loaded now."""
        self._count = -1
        self._local: dict[str, object] = {}
        self._others: set[str] = set()
        self.reloaded()

    def reloaded(self) -> tuple[str, ...]:
        """Modules that were reloaded since the last look, in the order in which they were imported."""
        found = []
        for name, spec in self._local.items():
            module = sys.modules.get(name)
            now = getattr(module, "__spec__", None)
            if module is not None and now is not None and now is not spec:
                found.append(name)
                self._local[name] = now
        if len(sys.modules) != self._count:
            self._count = len(sys.modules)
            for name, module in list(sys.modules.items()):
                if name in self._local or name in self._others:
                    continue
                file = getattr(module, "__file__", None)
                spec = getattr(module, "__spec__", None)
                if isinstance(file, str) and spec is not None and not _is_outside(name, file):
                    self._local[name] = spec
                else:
                    self._others.add(name)
        return tuple(found)


def _is_outside(name: str, file: str) -> bool:
    """Whether a module belongs to Python, to an installed package, to this one, or is the notebook itself."""
    return (
        name == "__main__"
        or name.partition(".")[0] == _OURS
        or file.startswith(_ROOTS)
        or any(folder in file for folder in _FOLDERS)
    )
