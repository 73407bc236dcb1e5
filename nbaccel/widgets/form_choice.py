"""What is being chosen, between its sources and its uses: entries in, settings applied or saved.

Changes nothing until it is told to, and nothing at all while an entry is wrong. Knows no widgets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nbaccel import config
from nbaccel.config import SETTINGS, Resolved
from nbaccel.config import file as config_file
from nbaccel.config.parsing import ALL
from nbaccel.launch.current import current_session
from nbaccel.launch.request.resolve import describe
from nbaccel.widgets import form_code
from nbaccel.widgets.form_draft import Ground, Reading, entries_of, entry, read


class Choice:
    """An entry for each setting, and what they come to."""

    def __init__(self, on_change: Callable[[], None], on_status: Callable[[], None]) -> None:
        """Begin with what holds now.

        Args:
            on_change: called when entries have changed, or were read anew.
            on_status: called when there is something to say.
        """
        self._on_change, self._on_status = on_change, on_status
        self.entries: dict[str, object] = {}
        self.reading: Reading
        self.status: tuple[str, str] = ("", "")
        """What came of the last action, and ``good``, ``wrong`` or nothing."""
        self._ground: Ground
        self._pinned: set[str] = set()
        self._load()

    # --- what stands in it ----------------------------------------------------------------------

    def set(self, **settings: Any) -> None:
        """Put values into the form; :meth:`apply` puts them to use. None: as it is.

        Raises:
            ConfigError: an unknown setting, or a wrong value; nothing has changed then.
        """
        given = {config.setting(name, "configure()").name: value for name, value in settings.items()}
        given = {name: SETTINGS[name].check(v, "configure()") for name, v in given.items() if v is not None}
        # Said in one breath, they must not contradict each other.
        config.resolve(given, environ={}, file=None, session={})
        changes = {name: entry(SETTINGS[name], value) for name, value in given.items()}
        # What was said before and doesn't go with it is taken back.
        if "devices" in given and "cpu" not in given:
            changes["cpu"] = False
        if isinstance(given.get("devices"), tuple) and "num_processes" not in given:
            changes["num_processes"] = ""
        chosen = self.entries["devices"]
        if "num_processes" in given and "devices" not in given and isinstance(chosen, tuple):
            changes["devices"] = ALL
        self._pinned |= set(given)
        self.change(changes)

    def change(self, entries: Mapping[str, object]) -> None:
        """What the controls hold has changed."""
        self.entries |= entries
        self.status = ("", "")
        self._read()

    def _load(self) -> None:
        self._ground = Ground.now()
        self._pinned = set(config.session_values())
        self.entries = entries_of(self.current())
        self._read()

    def _read(self) -> None:
        self.reading = read(self.entries, self._ground, self._pinned)
        self._on_change()

    def current(self) -> Resolved:
        """What holds now, whatever stands in the form; without environment and file when they are wrong."""
        if self._ground.trouble:
            return config.resolve(environ={}, file=None)
        return config.resolve()

    def look_again(self) -> None:
        """Read environment and file anew, which may have changed, and check the entries.

        Raises:
            ConfigError: something is wrong.
        """
        self._ground = Ground.now()
        self._read()
        self.reading.check()

    # --- actions --------------------------------------------------------------------------------

    def apply(self) -> None:
        """Let what stands in the form hold in this kernel.

        Raises:
            ConfigError: something is wrong; nothing has changed then.
        """
        self.look_again()
        self._put_to_use()
        self._read()
        self.say(f"Applied: {self.reading.would_run}. {self.next_cell()}", "good")

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write what stands in the form to a config file, and apply it.

        Comments, unknown keys, and settings that the form doesn't change stay as they are in the file.

        Args:
            path: another file than :meth:`target`.

        Returns:
            Where it was written.

        Raises:
            ConfigError: something is wrong, or the file can't be read or written; nothing has changed then.
        """
        target = self.target() if path is None else Path(path).expanduser()
        # A file that was named and isn't there is about to be.
        self._ground = Ground.now(has_file=path is not None or target.is_file())
        self._read()
        self.reading.check()
        written = config_file.update(self._for_file(target), target)
        self._pinned = set()
        self.look_again()
        self._put_to_use()
        self._read()
        self.say(f"Saved to {written}, and applied: {self.reading.would_run}. {self.next_cell()}", "good")
        return written

    def reset(self) -> None:
        """Take back what was applied in this kernel: environment, file and defaults hold."""
        config.set_session_values({})
        self._load()
        self.say(f"Taken back. {self.reading.would_run or ''}".strip(), "good")

    # --- what it says ---------------------------------------------------------------------------

    def target(self) -> Path:
        """The file that :meth:`save` writes."""
        return config.config_path() or config_file.default_path()

    def code(self) -> dict[str, str]:
        """Lines that say what stands in the form, by what they are for; none while something is wrong."""
        settings = self.reading.settings
        if settings is None:
            return {}
        return {
            "configure": form_code.configure_line(settings),
            "launcher": form_code.launcher_line(settings),
            "cell": form_code.cell_line(settings)[0],
        }

    def not_in_a_cell(self) -> tuple[str, ...]:
        """Settings that the first line of a cell can't say."""
        settings = self.reading.settings
        return () if settings is None else form_code.cell_line(settings)[1]

    def next_cell(self) -> str:
        """What a ``%%accelerate`` cell will do, where workers with other settings run; else empty."""
        running = current_session()
        if running is None or not self.reading.would_run or describe(running.spec) == self.reading.would_run:
            return ""
        return (
            f"Workers are there already: {describe(running.spec)}. The next %%accelerate cell goes on with "
            "them; with --fresh it ends them, and all that they hold, and starts these."
        )

    def say(self, text: str, manner: str = "") -> None:
        """Keep what came of an action, to be shown."""
        self.status = (text.strip(), manner)
        self._on_status()

    # --- inside ---------------------------------------------------------------------------------

    def _put_to_use(self) -> None:
        said = self.reading.said
        config.set_session_values(said)
        self._pinned = set(said)

    def _for_file(self, target: Path) -> dict[str, Any]:
        """What the file shall say: its own, changed by what the form says."""
        values = dict(config_file.load(target).values) if target.is_file() else {}
        for name in self.reading.said:
            value = self.reading.values[name]
            if value == SETTINGS[name].default:
                values.pop(name, None)
            else:
                values[name] = value
        if values.get("cpu"):
            values.pop("devices", None)
        chosen = values.get("devices")
        if isinstance(chosen, tuple) and values.get("num_processes", len(chosen)) != len(chosen):
            del values["num_processes"]
        config.resolve(values, environ={}, file=None, session={})
        return values
