"""The form's controls: they show what a :class:`~nbaccel.widgets.form.Form` holds, and hand changes to it.

Holds no settings of its own and decides nothing. What a callback raises is said in the form: front ends
hide errors of callbacks, or print them where nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets

from nbaccel.config import SETTINGS, Origin
from nbaccel.config.parsing import ALL, IDLE
from nbaccel.diagnosis.selftest import STAGES
from nbaccel.widgets import form_devices as machine
from nbaccel.widgets import form_parts as parts
from nbaccel.widgets.form_draft import WHOLE, lacking
from nbaccel.widgets.form_parts import Log, Row, Words

if TYPE_CHECKING:
    from nbaccel.widgets.form import Form

MAIN = ("num_processes", "mixed_precision", "gradient_accumulation_steps", "start_method", "output")
"""Settings that are always seen; the others are folded, but ``cpu`` and ``devices``, which lie above."""

_CPU, _CHOSEN = "cpu", "chosen"


class FormView:
    """The controls of one form."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._choice = form.choice
        self._is_showing = False
        self._watch: machine.Watch | None = None
        self._found = machine.look()
        self._build_devices()
        self.rows = {name: self._row(name) for name in SETTINGS if name not in ("cpu", "devices")}
        self._build_actions()
        rest = ipywidgets.VBox([row.widget for name, row in self.rows.items() if name not in MAIN])
        self.more = parts.fold("More settings", rest)
        self.more.add_class("nbaccel-more")
        self.root = ipywidgets.VBox(
            [
                ipywidgets.HTML(parts.STYLE),
                self.run_on.widget,
                self._device_list,
                *(self.rows[name].widget for name in MAIN),
                self.more,
                rest,
                self.outlook.widget,
                self._buttons,
                self.status.widget,
                self._trial_box,
                self._code_box,
            ]
        )
        self.root.add_class("nbaccel-form")
        self.show()

    # --- building -------------------------------------------------------------------------------

    def _build_devices(self) -> None:
        if self._found.count:
            choices = [
                (f"all accelerators ({self._found.count})", ALL),
                ("the accelerators chosen below", _CHOSEN),
                ("those with the least memory in use", IDLE),
                ("the CPU", _CPU),
            ]
        else:
            choices = [("accelerators, or the CPU where there is none", ALL), ("the CPU", _CPU)]
            if isinstance(self._choice.entries["devices"], (tuple, str)):
                # Said by somebody, and to be seen: it can't be had here.
                choices.insert(1, ("certain accelerators", _CHOSEN))
        self.run_on = Row(parts.dropdown("Run on", choices))
        self.run_on.control.add_class("nbaccel-run_on")
        self.run_on.control.observe(self._guarded(self._on_place), names="value")
        self.boxes = [parts.box(label) for label in machine.device_labels(self._found)]
        for index, box in enumerate(self.boxes):
            box.add_class(f"nbaccel-device-{index}")
            box.observe(self._guarded(self._on_box), names="value")
        self.usage = [Words("nbaccel-usage") for _ in self.boxes]
        self.cpu = Words("nbaccel-cpu")
        lines = [
            ipywidgets.HBox([box, words.widget]) for box, words in zip(self.boxes, self.usage, strict=True)
        ]
        for line in lines:
            line.add_class("nbaccel-device")
        self._device_list = ipywidgets.VBox(
            [*lines, self.cpu.widget], layout=ipywidgets.Layout(margin="0 0 0.5em 11.5em")
        )

    def _row(self, name: str) -> Row:
        row = Row(parts.control(name))
        row.control.add_class(f"nbaccel-{name}")
        row.control.observe(
            self._guarded(lambda: self._choice.change({name: row.control.value})), names="value"
        )
        return row

    def _build_actions(self) -> None:
        self.outlook = Words("nbaccel-outlook")
        self.apply_button = parts.button("Apply", "apply", "primary")
        self.save_button = parts.button("Save", "save")
        self.test_button = parts.button("Test", "test")
        self.reset_button = parts.button("Reset", "reset")
        actions: dict[Any, Callable[[], object]] = {
            self.apply_button: self._choice.apply,
            self.save_button: self._choice.save,
            self.test_button: self._toggle_test,
            self.reset_button: self._choice.reset,
        }
        for button, action in actions.items():
            button.on_click(self._guarded(action))
        meaning = Words("nbaccel-meaning")
        meaning.say(
            f"Apply: for this kernel. Save: also for later ones, in {_below_home(self._choice.target())}. "
            "Test: try it out. Reset: take back what was applied here.",
            "quiet",
        )
        self._buttons = ipywidgets.VBox([ipywidgets.HBox(list(actions)), meaning.widget])
        self.status = Words("nbaccel-status")
        self.progress = ipywidgets.IntProgress(
            min=0, max=len(STAGES), description="Self test", layout=parts.control_layout()
        )
        self.log = Log()
        self._trial_box = ipywidgets.VBox([self.progress, self.log.widget])
        parts.show_only_if(self._trial_box, False)
        self.code = {
            "configure": parts.code_field("The same"),
            "launcher": parts.code_field("A launch"),
            "cell": parts.code_field("A cell"),
        }
        for what, field in self.code.items():
            field.add_class(f"nbaccel-code-{what}")
            # To be copied, not to be written: what somebody types goes again.
            field.observe(self._guarded(self.show), names="value")
        self._missing = Words("nbaccel-missing")
        heading = Words("nbaccel-heading")
        heading.say("The same in code, to copy:")
        self._code_box = ipywidgets.VBox([heading.widget, *self.code.values(), self._missing.widget])

    # --- what the user does ---------------------------------------------------------------------

    def _guarded(self, action: Callable[[], object]) -> Callable[[Any], None]:
        """A callback for ``action``; it does nothing while the form itself sets its controls."""

        def call(_change: Any) -> None:
            if self._is_showing:
                return
            try:
                action()
            except Exception as error:  # noqa: BLE001  # a callback's error has nowhere else to go
                text = " ".join(str(error).split()) or type(error).__name__
                kind = "" if isinstance(error, (ValueError, RuntimeError)) else f"{type(error).__name__}: "
                self._choice.say(f"{kind}{text}", "wrong")

        return call

    def _on_place(self) -> None:
        place = self.run_on.control.value
        if place == _CHOSEN:
            chosen = self._checked() or tuple(range(len(self.boxes)))
            self._choice.change({"cpu": False, "devices": chosen, "num_processes": ""})
        elif place == _CPU:
            self._choice.change({"cpu": True, "devices": ALL})
        else:
            self._choice.change({"cpu": False, "devices": place})

    def _on_box(self) -> None:
        self._choice.change({"cpu": False, "devices": self._checked(), "num_processes": ""})

    def _checked(self) -> tuple[int, ...]:
        return tuple(index for index, box in enumerate(self.boxes) if box.value)

    def _toggle_test(self) -> None:
        if self._form.is_testing:
            self._form.stop_test()
        else:
            self._form.test()

    # --- showing --------------------------------------------------------------------------------

    def show(self) -> None:
        """Bring all controls to what the form holds."""
        self._is_showing = True
        try:
            self._show_place()
            for name, row in self.rows.items():
                if name == "mixed_precision":
                    self._show_precisions(row)
                row.control.value = self._choice.entries[name]
                self._show_note(name, row)
            self._show_outlook()
            self._show_code()
            self.show_status()
        finally:
            self._is_showing = False

    def _show_place(self) -> None:
        entries, problems = self._choice.entries, self._choice.reading.problems
        chosen = entries["devices"]
        if entries["cpu"]:
            place, checked = _CPU, set[int]()
        elif isinstance(chosen, tuple):
            place, checked = _CHOSEN, set(chosen)
        elif chosen == IDLE:
            place, checked = (IDLE if self.boxes else _CHOSEN), set[int]()
        else:
            place, checked = ALL, set(range(len(self.boxes)))
        known = {value for _, value in self.run_on.control.options}
        self.run_on.control.value = place if place in known else ALL
        for index, box in enumerate(self.boxes):
            box.value = index in checked
        wrong = problems.get("devices") or problems.get("cpu")
        if wrong:
            self.run_on.note.say(wrong, "wrong")
        elif not self._found.count:
            self.run_on.note.say(f"no accelerator: {self._found.reason}", "quiet")
        else:
            self.run_on.note.say(self._origin("devices") or self._origin("cpu"), "quiet")
        self.look()

    def _show_precisions(self, row: Row) -> None:
        entries = self._choice.entries
        missing = lacking(bool(entries["cpu"]), entries["devices"])
        present = entries["mixed_precision"]
        enabled = [name for name in SETTINGS["mixed_precision"].choices if name not in missing]
        choices = parts.options("mixed_precision", enabled)
        if present in missing:
            choices.append((f"{present}: not enabled here", str(present)))
        if tuple(choices) != tuple(row.control.options):
            row.control.options = choices

    def _show_note(self, name: str, row: Row) -> None:
        wrong = self._choice.reading.problems.get(name)
        if wrong:
            row.note.say(wrong, "wrong")
            return
        each, texts = SETTINGS[name], []
        if name == "mixed_precision":
            missing = lacking(bool(self._choice.entries["cpu"]), self._choice.entries["devices"])
            texts += [f"not enabled here: {other}, {why}" for other, why in missing.items()]
        origin = self._origin(name)
        row.note.say("; ".join([*texts, *([origin] if origin else [])]) or each.help, "quiet")

    def _origin(self, name: str) -> str:
        settings = self._choice.reading.settings
        if settings is None or settings.origin(name) in (Origin.DEFAULT, Origin.SESSION):
            return ""
        return f"from {settings.values[name].place}"

    def _show_outlook(self) -> None:
        reading = self._choice.reading
        if reading.problems:
            whole = reading.problems.get(WHOLE)
            self.outlook.say(
                whole or "Something is wrong above; nothing is applied until it is put right.", "wrong"
            )
            return
        words = [f"Would run: {reading.would_run}.", *(f"{note}." for note in reading.notes)]
        words.append(self._choice.next_cell())
        self.outlook.say(" ".join(filter(None, words)))

    def _show_code(self) -> None:
        code, missing = self._choice.code(), self._choice.not_in_a_cell()
        for what, field in self.code.items():
            field.value = code.get(what, "")
        self._missing.say(
            f"A cell's line has no word for {', '.join(missing)}; the first line has." if missing else "",
            "quiet",
        )

    def show_status(self) -> None:
        """What came of the last action."""
        self.status.say(*self._choice.status)
        testing = self._form.is_testing
        self.test_button.description = "Stop test" if testing else "Test"

    # --- the self test and the machine: also called in threads ----------------------------------

    def begin_trial(self) -> None:
        """Make room for the report of a self test."""
        self.log.clear()
        self.progress.value = 0
        self.progress.bar_style = "info"
        parts.show_only_if(self._trial_box, True)

    def end_trial(self, is_well: bool) -> None:
        """Colour its bar."""
        self.progress.bar_style = "success" if is_well else "danger"

    def look(self) -> None:
        """Show how busy the machine is now."""
        for words, text in zip(self.usage, machine.usage_texts(self._found), strict=True):
            words.say(text, "quiet")
        self.cpu.say(f"CPU: {machine.cpu_text()}", "quiet")

    def begin(self) -> None:
        """It is on a page: look at the machine from now on."""
        if self._watch is None:
            self._watch = machine.Watch(self.look)

    @property
    def is_watching(self) -> bool:
        """Whether it looks at the machine again and again."""
        return self._watch is not None and self._watch.is_running

    def end(self, farewell: str) -> None:
        """Stop looking; a sentence is left of the form."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self.status.say(farewell, "quiet")
        kept = self.status.widget
        doomed = [widget for widget in _all_below(self.root) if widget is not kept]
        self.root.children = (kept,)
        for widget in doomed:
            widget.close()


def _below_home(path: Path) -> str:
    """``~/.config/...`` for what lies in the home directory; elsewhere the path as it is."""
    try:
        home = Path.home()
    except RuntimeError:  # this user has none
        return str(path)
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)


def _all_below(widget: Any) -> list[Any]:
    found: list[Any] = []
    for child in getattr(widget, "children", ()):
        found += [*_all_below(child), child]
    return found
