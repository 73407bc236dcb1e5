"""Do something right after a module has been imported, whenever that will be.

For libraries that a worker has to adapt to its place, but must not import by itself because most
work doesn't need them. What is done must not break the import: an error becomes a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


def after_import(actions: dict[str, Action]) -> None:
    """Run ``actions[name](module)`` once the module is there: now, if it is there already.

    Of several actions for a module that isn't there yet, the one asked for last is run.
    """
    later = {}
    for name, action in actions.items():
        if name in sys.modules:
            _perform(action, sys.modules[name])
        else:
            later[name] = action
    if later:
        sys.meta_path.insert(0, _Finder(later))


class _Finder(MetaPathFinder):
    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            # One of us is enough: two would ask each other for ever.
            if isinstance(finder, _Finder) or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._actions[fullname])
                return spec
        return None


class _Loader(Loader):
    """The module's own loader, and the action behind it."""

    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Its own loader from now on: inspect and linecache ask it for the source.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _perform(self._action, module)


def _perform(action: Action, module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:  # noqa: BLE001  # another version of the library than those known
        warnings.warn(
            f"nbaccel could not adapt {module.__name__} to a worker ({type(error).__name__}: {error}); "
            "its output may not reach the notebook",
            RuntimeWarning,
            stacklevel=2,
        )
