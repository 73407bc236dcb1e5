"""What stands in the form, read: from entries to settings, or to what is wrong with them.

::

    entries ──▶ checked values ──▶ what the session would say ──▶ resolved as if applied ──▶ what would run
                     └─ a problem for a setting, one line          └─ conflicts             └─ the machine

Nothing here changes anything or shows anything; the rules are those of :mod:`nbaccel.config` and
:mod:`nbaccel.launch`, asked as if the form had been applied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbaccel import config
from nbaccel.config import SETTINGS, Resolved, Setting
from nbaccel.errors import ConfigError
from nbaccel.launch import devices
from nbaccel.launch.devices import Accelerators, abilities

Entries = Mapping[str, object]
"""For each setting what its control holds; an empty text where nothing is said."""

_HERE = "the form"

WHOLE = ""
"""In place of a setting's name: the problem belongs to none of them."""


@dataclass(frozen=True)
class Reading:
    """What entries come to."""

    values: Mapping[str, Any]
    """The checked value of each setting; a setting whose entry is wrong isn't there."""

    said: Mapping[str, object]
    """What the session has to say so that this holds, as :func:`config.set_session_values` takes it."""

    settings: Resolved | None = None
    """As if applied; None when something is wrong."""

    problems: Mapping[str, str] = field(default_factory=dict)
    """Name of the setting, or :data:`WHOLE` -> what is wrong, in one line."""

    notes: tuple[str, ...] = ()
    """What is said elsewhere and gives way."""

    would_run: str = ""
    """``2 processes on cpu, bf16``; empty when something is wrong."""

    def check(self) -> None:
        """Raise when something is wrong.

        Raises:
            ConfigError: names the first problem.
        """
        for text in self.problems.values():
            raise ConfigError(text)


@dataclass(frozen=True)
class Ground:
    """What holds without the form: environment, file, defaults."""

    base: Resolved
    trouble: str = ""
    """Why environment or file can't be used; ``base`` then has the defaults."""

    has_file: bool = True
    """False: as if there were no config file."""

    @classmethod
    def now(cls, *, has_file: bool = True) -> Ground:
        """Read environment and file."""
        try:
            return cls(config.resolve(session={}, file=_file(has_file)), has_file=has_file)
        except ConfigError as error:
            return cls(config.resolve(session={}, environ={}, file=None), _line(error))

    def with_session(self, said: Mapping[str, object]) -> Resolved:
        """What would hold if the session said this.

        Raises:
            ConfigError: as :func:`nbaccel.config.resolve`.
        """
        session = {name: SETTINGS[name].check(value, name) for name, value in said.items()}
        return config.resolve(session=session, file=_file(self.has_file))


def entries_of(settings: Resolved) -> dict[str, object]:
    """The entries of a form that shows these settings."""
    return {name: entry(SETTINGS[name], value.value) for name, value in settings.values.items()}


def entry(each: Setting, value: object) -> object:
    """What controls hold for a value: itself where there are choices or boxes, else a text."""
    if each.choices or isinstance(value, (bool, tuple)):
        return value
    if value is None:
        return unsaid_word(each) or ""
    return each.shown(value)


def unsaid_word(each: Setting) -> str:
    """The word that says None over a weaker source, e.g. ``all``; empty where there is none."""
    try:
        return each.detected if each.detected and each.parse(each.detected) is None else ""
    except ValueError:
        return ""


def read(entries: Entries, ground: Ground, pinned: Collection[str] = ()) -> Reading:
    """Read a form.

    Args:
        entries: what stands in it.
        ground: what holds without it.
        pinned: settings that stay said even where the ground says the same.
    """
    problems: dict[str, str] = {WHOLE: ground.trouble} if ground.trouble else {}
    values: dict[str, Any] = {}
    for name, each in SETTINGS.items():
        try:
            values[name] = _value(each, entries.get(name, ""), ground.base, entries)
        except ConfigError as error:
            problems[name] = _line(error)
    if problems:
        return Reading(values, {}, problems=problems)
    said = _said(values, ground.base, pinned)
    try:
        settings = ground.with_session(said)
        would_run = _would_run(settings)
    except (ValueError, RuntimeError) as error:
        text = _line(error)
        return Reading(values, said, problems={blamed(text): text})
    why = precision_problem(settings)
    if why:
        return Reading(values, said, problems={"mixed_precision": why})
    return Reading(values, said, settings, notes=settings.notes, would_run=would_run)


def blamed(text: str) -> str:
    """The setting that a message is about: the first one that it names."""
    places = {text.find(f"{name}="): name for name in SETTINGS if f"{name}=" in text}
    return places[min(places)] if places else WHOLE


def precision_problem(settings: Resolved) -> str:
    """Why the chosen precision isn't to be had on what is chosen; empty when it is."""
    chosen = settings["mixed_precision"]
    why = lacking(settings["cpu"], settings["devices"]).get(chosen)
    return f"mixed_precision={chosen} isn't enabled here: {why}" if why else ""


def lacking(on_cpu: bool, chosen: object) -> dict[str, str]:
    """The precisions that what is chosen doesn't have, each with the reason."""
    found = Accelerators("cpu", "cpu") if on_cpu else devices.visible_accelerators()
    return abilities.lacking(found, chosen if isinstance(chosen, tuple) else None)


# --- inside -----------------------------------------------------------------------------------------


def _value(each: Setting, said: object, base: Resolved, entries: Entries) -> Any:
    if isinstance(said, str) and not said.strip():
        below = base.values[each.name]
        gives_way = each.name == "num_processes" and isinstance(entries.get("devices"), tuple)
        if below.value != each.default and not gives_way:
            raise ConfigError(
                f"{each.name} is empty here, and {below.place} says {each.shown(below.value)}; "
                "write a value, or take it out there"
            )
        return each.default
    return each.check(said, _HERE)


def _said(values: Mapping[str, Any], base: Resolved, pinned: Collection[str]) -> dict[str, object]:
    said: dict[str, object] = {}
    for name, value in values.items():
        each = SETTINGS[name]
        if value == base[name] and (name not in pinned or value is None):
            continue
        if value is not None:
            said[name] = value
        elif unsaid_word(each):
            said[name] = unsaid_word(each)
    if values["cpu"]:
        said.pop("devices", None)  # those of a weaker source give way
    chosen = values["devices"]
    if isinstance(chosen, tuple) and values["num_processes"] == len(chosen):
        said.pop("num_processes", None)  # that is what the devices say
    return said


def _would_run(settings: Resolved) -> str:
    from nbaccel.launch.request.resolve import describe, spec_of

    found = devices.visible_accelerators()
    if settings["cpu"] or settings["devices"] != devices.IDLE or found.count == 0:
        return describe(spec_of(settings, warns=False))
    # Which ones are idle is found out by each launch; how many there are holds now.
    count, precision = settings["num_processes"], settings["mixed_precision"]
    devices.choose(None, count, found, tuple)
    if count is None:
        text = f"a process on each of the {found.count} {found.platform} devices that is idle then"
    else:
        processes = f"{count} process{'es' if count != 1 else ''}"
        text = f"{processes} on the least used of {found.count} {found.platform} devices"
    return text if precision == "no" else f"{text}, {precision}"


def _file(has_file: bool) -> str | None:
    return config.AUTO if has_file else None


def _line(error: Exception) -> str:
    return " ".join(str(error).removeprefix(f"{_HERE}: ").split())
