"""The config file: where it lies, how it is read, how it is written.

Reading takes this package's own format and Hugging Face Accelerate's (see ``incumbent``). A wrong value is
an error that names file, line and key; an unknown key is a warning, since another version may know it.
Nothing here writes unless :func:`save` or :func:`update` is called.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbaccel.config import incumbent
from nbaccel.config.edit import edited
from nbaccel.config.settings import SETTINGS, nearest
from nbaccel.errors import ConfigError

VERSION = 1
"""Of the format. It changes when a key changes its meaning, not when one is added."""

FILE_VARIABLE = "NBACCEL_CONFIG_FILE"
FILE_NAME = "config.yaml"


@dataclass(frozen=True)
class ConfigFile:
    """What stands in a file."""

    path: Path
    values: Mapping[str, object]
    """Checked, by the name of the setting."""

    places: Mapping[str, str]
    """For messages: ``/home/me/.config/nbaccel/config.yaml, line 3 (use_cpu)``."""

    warnings: tuple[str, ...] = ()

    is_incumbents: bool = False
    """It is Hugging Face Accelerate's."""


def default_path() -> Path:
    """The file in the user's configuration folder; it need not exist.

    Raises:
        ConfigError: there is no such folder, since this user has no home directory.
    """
    import platformdirs

    try:
        return platformdirs.user_config_path("nbaccel", appauthor=False) / FILE_NAME
    except RuntimeError as error:  # of Path.home()
        raise ConfigError(
            f"no configuration folder: {error}; set HOME, or {FILE_VARIABLE} to the file that is meant"
        ) from error


def load(path: str | os.PathLike[str], *, strict: bool = False) -> ConfigFile:
    """Read a file.

    Args:
        path: of the file.
        strict: unknown keys are errors.

    Raises:
        ConfigError: the file isn't there, is no YAML mapping, was written for a newer format, or holds a
            wrong value; the message names it.
    """
    place = Path(path).expanduser()
    entries, lines = _entries(place)
    is_incumbents = incumbent.is_one(entries)
    warnings: list[str] = []
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    _check_version(entries.pop("version", VERSION) if not is_incumbents else VERSION, place)
    for key, value in entries.items():
        where = f"{place}, line {lines[key]}"
        translated = incumbent.translate(key, value)
        if translated.refused:
            warnings.append(f"{where}: {key} {translated.refused}")
        name = _meant(key, translated)
        if name is None or value is None:
            continue
        if name not in SETTINGS:
            text = f"{where}: unknown key {key!r}; {nearest(key)}"
            if strict:
                raise ConfigError(text)
            warnings.append(f"{text} It is left aside" if text.endswith("?") else f"{text}. It is left aside")
            continue
        label = where if name == key else f"{where} ({key})"
        if name in values:
            raise ConfigError(
                f"{label}: {name} is said a second time, after {places[name]}; keep one of them"
            )
        values[name] = SETTINGS[name].check(translated.value, label)
        places[name] = label
    if is_incumbents:
        incumbent.count_per_machine(values, places)
    return ConfigFile(place, values, places, tuple(warnings), is_incumbents)


def save(values: Mapping[str, object], path: str | os.PathLike[str] | None = None) -> Path:
    """Write settings to a file, whole or not at all.

    Args:
        values: checked values by name; None and what isn't there are left out.
        path: of the file; None: :func:`default_path`. Folders are made.

    Returns:
        Where it was written.

    Raises:
        ConfigError: it can't be written there.
    """
    import yaml

    place = default_path() if path is None else Path(path).expanduser()
    content = {"version": VERSION}
    content |= {name: _plain(values[name]) for name in SETTINGS if values.get(name) is not None}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    _write(place, text)
    return place


def update(values: Mapping[str, object], path: str | os.PathLike[str] | None = None) -> Path:
    """As :func:`save`, into a file that may be there: its comments and unknown keys stay.

    Args:
        values: what the file shall say, checked; a setting that isn't among them is taken away.
        path: of the file; None: :func:`default_path`.

    Raises:
        ConfigError: the file can't be read or written, holds a wrong value, or is Hugging Face
            Accelerate's, whose keys count otherwise.
    """
    place = default_path() if path is None else Path(path).expanduser()
    if not place.is_file():
        return save(values, place)
    stored = load(place)
    if stored.is_incumbents:
        raise ConfigError(
            f"{place} is a file of Hugging Face Accelerate and is left as it is; save to another one, or "
            "let nbaccel config rewrite it"
        )
    keys = {_meant(key, incumbent.translate(key, value)): key for key, value in _entries(place)[0].items()}
    # What it says already stays as it is written.
    changes = {
        keys.get(name, name): _plain(values.get(name))
        for name in SETTINGS
        if values.get(name) != stored.values.get(name)
    }
    _write(place, edited(place.read_text(encoding="utf-8"), changes))
    return place


def _meant(key: str, translated: incumbent.Translated) -> str | None:
    """The setting that a key of a file stands for, which may not exist; None for one to be passed over."""
    return translated.name if translated.known else key.replace("-", "_")


def _write(place: Path, text: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(draft).replace(place)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{place} can't be written ({error.strerror}); choose another file") from error


def _plain(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _entries(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Keys with their values, and the line of each."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no config file {path}; correct the path, or write one: nbaccel config"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} can't be read: {error}") from error
    try:
        content = yaml.safe_load(text)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"the config file {path} is no YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}, {}
    if not isinstance(content, dict):
        raise ConfigError(f"the config file {path} holds no settings; write lines such as 'num_processes: 2'")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in tree.value} if tree is not None else {}
    return {str(key): value for key, value in content.items()}, {
        **dict.fromkeys(map(str, content), 1),
        **lines,
    }


def _check_version(version: object, path: Path) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ConfigError(
            f"{path}: version={version!r} is not a number of a format; write version: {VERSION}"
        )
    if version > VERSION:
        raise ConfigError(
            f"{path} is written in format {version}, and this nbaccel reads formats up to {VERSION}; "
            "update nbaccel, or write the file anew: nbaccel config"
        )
