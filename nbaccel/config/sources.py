"""Who may say what, and who wins: explicit, session, environment, file, default, for each key by itself.

The environment and the file are read at each resolution and never remembered; the session's values are
this process's only state. Must not warn or print by itself: what is worth a word is in ``Resolved``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from nbaccel.config import conflicts
from nbaccel.config import file as config_file
from nbaccel.config.settings import PREFIX, SETTINGS, likely, setting
from nbaccel.config.spec import active_spec
from nbaccel.config.unsaid import said
from nbaccel.errors import ConfigError

AUTO: Final = "auto"
"""As ``file``: that of ``NBACCEL_CONFIG_FILE``, else the user's, if it is there."""

# Variables of this package that are no settings.
_OTHER_VARIABLES = frozenset({config_file.FILE_VARIABLE, "NBACCEL_PREWARM"})


class Origin(IntEnum):
    """Kinds of sources, the strongest first."""

    EXPLICIT = 0
    SESSION = 1
    ENVIRONMENT = 2
    FILE = 3
    DEFAULT = 4


@dataclass(frozen=True)
class Value:
    """A setting's value and where it came from."""

    value: Any
    origin: Origin
    place: str
    """The flag, variable, or file with its line; for people."""

    @property
    def rank(self) -> int:
        """Strength of the source; less is stronger."""
        return int(self.origin)

    def said(self, name: str) -> str:
        """``num_processes=2 (NBACCEL_NUM_PROCESSES)``."""
        shown = SETTINGS[name].shown(self.value)
        if self.origin is Origin.EXPLICIT and self.place.startswith("-"):
            return self.place if isinstance(self.value, bool) else f"{self.place} {shown}"
        return f"{name}={shown}" + ("" if self.origin is Origin.EXPLICIT else f" ({self.place})")

    def replaced(self, value: object) -> Value:
        """The same origin with another value."""
        return replace(self, value=value)


@dataclass(frozen=True)
class Resolved:
    """A value for each setting."""

    values: Mapping[str, Value]
    warnings: tuple[str, ...] = ()
    """What somebody should hear of: unknown keys, features that aren't there."""

    notes: tuple[str, ...] = ()
    """What was said and isn't used, with the reason."""

    file: Path | None = None
    """The config file that was read."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def origin(self, name: str) -> Origin:
        """Where the value of ``name`` came from."""
        return self.values[name].origin

    def prefer(self, name: str, value: object) -> Any:
        """``value`` if the caller wrote it, else the setting's."""
        return self[name] if said(value) is None else value

    def stated(self) -> dict[str, Any]:
        """All that isn't a default, by name."""
        return {name: each.value for name, each in self.values.items() if each.origin is not Origin.DEFAULT}


def resolve(
    explicit: Mapping[str, object] | None = None,
    *,
    places: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = AUTO,
    strict: bool = False,
    session: Mapping[str, object] | None = None,
) -> Resolved:
    """Find the value of each setting, and where it came from.

    Args:
        explicit: arguments or flags by the name of the setting; None means that nothing was said.
        places: what the caller calls them, e.g. ``{"cpu": "--cpu"}``; by default ``cpu=...``.
        environ: where ``NBACCEL_*`` is read; ``os.environ`` by default.
        file: the config file; :data:`AUTO`, or None for no file.
        strict: unknown keys of the file are errors.
        session: checked values in place of what :func:`set_session_values` set; for trying out.

    Raises:
        ConfigError: an unknown setting, a wrong value, two that contradict each other, or a file that
            can't be read.
    """
    variables = os.environ if environ is None else environ
    names = places or {}
    found: dict[str, Value] = {}
    warnings: list[str] = []
    path = config_path(variables) if file == AUTO else file
    stored = None if path is None else config_file.load(path, strict=strict)
    if stored is not None:
        warnings += stored.warnings
        found |= {n: Value(v, Origin.FILE, stored.places[n]) for n, v in stored.values.items()}
    found |= _from_environment(variables, warnings)
    told = _session if session is None else session
    found |= {n: Value(v, Origin.SESSION, "nbaccel.configure()") for n, v in told.items()}
    for name, value in (explicit or {}).items():
        if value is not None:
            place = names.get(name, name)
            found[name] = Value(setting(name, place).check(value, place), Origin.EXPLICIT, place)
    notes = conflicts.settle(found)
    complete = {
        name: found.get(name, Value(each.default, Origin.DEFAULT, "default"))
        for name, each in SETTINGS.items()
    }
    return Resolved(complete, tuple(warnings), tuple(notes), None if stored is None else stored.path)


def config_path(environ: Mapping[str, str] | None = None) -> Path | None:
    """The config file in use: that of ``NBACCEL_CONFIG_FILE``, else the user's if it is there."""
    named = (os.environ if environ is None else environ).get(config_file.FILE_VARIABLE, "").strip()
    if named:
        return Path(named).expanduser()
    try:
        usual = config_file.default_path()
    except ConfigError:
        return None  # a user without a home has no file
    return usual if usual.is_file() else None


# --- the session ------------------------------------------------------------------------------------

_session: dict[str, object] = {}


def set_session_values(values: Mapping[str, object]) -> None:
    """Replace what this process was told by its user, e.g. by a form. An empty mapping takes it back.

    Raises:
        ConfigError: an unknown setting, or a wrong value; nothing has changed then.
    """
    checked = {
        name: setting(name, "the session").check(value, "the session")
        for name, value in values.items()
        if value is not None
    }
    probe = {name: Value(value, Origin.SESSION, "the session") for name, value in checked.items()}
    conflicts.settle(probe)
    _session.clear()
    _session.update(checked)


def session_values() -> dict[str, Any]:
    """What :func:`set_session_values` set."""
    return dict(_session)


# --- what a process is told without a launch --------------------------------------------------------


def ambient(name: str) -> Any | None:
    """What this process was told about one setting: by its launch, its session or its environment.

    The config file is not asked: a script reads it through ``nbaccel launch``, which puts it into the
    environment.

    Returns:
        The value, or None when nobody said anything.

    Raises:
        ConfigError: the environment variable holds a wrong value.
    """
    spec = active_spec()
    if spec is not None and hasattr(spec, name):
        return getattr(spec, name)
    if name in _session:
        return _session[name]
    each = SETTINGS[name]
    text = os.environ.get(each.variable, "").strip()
    return each.check(text, each.variable) if text else None


def _from_environment(variables: Mapping[str, str], warnings: list[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    by_variable = {each.variable: each for each in SETTINGS.values()}
    for variable, text in variables.items():
        if not variable.startswith(PREFIX) or variable in _OTHER_VARIABLES:
            continue
        each = by_variable.get(variable)
        if each is None:
            # Other tools may use the prefix; only a likely misspelling is worth a word.
            if (meant := likely(variable.removeprefix(PREFIX))) is not None:
                right = SETTINGS[meant].variable
                warnings.append(f"the environment variable {variable} is no setting; did you mean {right}?")
        elif text.strip():
            found[each.name] = Value(each.check(text, variable), Origin.ENVIRONMENT, variable)
    return found
