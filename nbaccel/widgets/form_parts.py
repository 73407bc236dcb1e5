"""Parts that the form is made of: rows with a note, texts that follow the theme, a log.

Only controls that ipywidgets 7 and 8 both have, only colours of the front end's theme.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Sequence
from typing import Any

import ipywidgets

from nbaccel.config import SETTINGS
from nbaccel.config.explanations import explained

STYLE = """\
<style>
.nbaccel-form { max-width: 62em; }
.nbaccel-form .nbaccel-row { align-items: baseline; flex-wrap: wrap; }
.nbaccel-form .nbaccel-device { align-items: center; flex-wrap: wrap; }
.nbaccel-form .nbaccel-device label { display: flex; align-items: center; }
.nbaccel-form .nbaccel-usage .widget-html-content { white-space: nowrap; }
.nbaccel-form .nbaccel-note, .nbaccel-form .nbaccel-note .widget-html-content { line-height: 1.4; }
.nbaccel-form .widget-html-content {
  color: var(--jp-ui-font-color1, inherit); white-space: normal; }
.nbaccel-form .nbaccel-quiet { opacity: 0.7; }
.nbaccel-form .nbaccel-wrong { color: var(--jp-error-color1, var(--vscode-errorForeground, currentColor));
  font-weight: 600; }
.nbaccel-form .nbaccel-good { color: var(--jp-success-color1, var(--vscode-charts-green, currentColor));
  font-weight: 600; }
.nbaccel-form pre { white-space: pre-wrap; margin: 0; max-height: 24em; overflow: auto;
  font-family: var(--jp-code-font-family, monospace); font-size: var(--jp-code-font-size, 0.9em);
  color: inherit; background: transparent; }
.nbaccel-form .nbaccel-code input { font-family: var(--jp-code-font-family, monospace); }
</style>"""

DESCRIPTIONS = {
    "num_processes": "Processes",
    "mixed_precision": "Precision",
    "gradient_accumulation_steps": "Accumulation steps",
    "start_method": "Start method",
    "output": "Output",
    "timeout": "Time limit",
    "log_dir": "Log folder",
    "num_nodes": "Machines",
    "node_rank": "This machine",
    "master_addr": "First machine",
    "master_port": "Port",
    "rdzv_backend": "Rendezvous",
    "max_restarts": "Restarts",
    "num_cpu_threads": "CPU threads",
}
"""What a control is called, where that isn't its setting's name."""

WIDTH = "34em"
"""Of a control with its description."""

_DESCRIPTION_STYLE = {"description_width": "11em"}


def description(name: str) -> str:
    """What the control of a setting is called."""
    return DESCRIPTIONS.get(name, name.replace("_", " ").capitalize())


def control(name: str) -> Any:
    """The control of a setting, without a value."""
    each = SETTINGS[name]
    common = {
        "description": description(name),
        "style": dict(_DESCRIPTION_STYLE),
        "layout": control_layout(),
    }
    if each.choices:
        return ipywidgets.Dropdown(options=options(name, each.choices), **common)
    if isinstance(each.default, bool):
        return ipywidgets.Checkbox(**common)
    hint = each.detected if each.default is None else each.shown(each.default)
    return ipywidgets.Text(placeholder=hint, continuous_update=False, **common)


def options(name: str, choices: Sequence[str]) -> list[tuple[str, str]]:
    """Choices with what they mean."""
    return [(explained(name, choice), choice) for choice in choices]


def dropdown(text: str, choices: Sequence[tuple[str, object]]) -> Any:
    """A choice that isn't a setting's."""
    return ipywidgets.Dropdown(
        description=text,
        options=list(choices),
        style=dict(_DESCRIPTION_STYLE),
        layout=control_layout(),
    )


def box(text: str) -> Any:
    """Something to be chosen or not."""
    made = ipywidgets.Checkbox(description=text, indent=False)
    made.layout = ipywidgets.Layout(width="24em", max_width="100%")
    return made


def fold(text: str, inside: Any) -> Any:
    """A button that shows and hides something; unlike an accordion's, it can have the focus."""
    made = ipywidgets.ToggleButton(
        description=text, icon="caret-right", layout=ipywidgets.Layout(width="auto", min_width="12em")
    )

    def turn(_: Any) -> None:
        show_only_if(inside, made.value)
        made.icon = "caret-down" if made.value else "caret-right"

    made.observe(turn, names="value")
    show_only_if(inside, False)
    return made


def control_layout() -> Any:
    """As wide as all controls are, if there is room."""
    return ipywidgets.Layout(width=WIDTH, max_width="100%")


def code_field(text: str) -> Any:
    """A line to copy: it takes the focus, so that it can be copied without a mouse."""
    field = ipywidgets.Text(
        description=text, style=dict(_DESCRIPTION_STYLE), layout=ipywidgets.Layout(width="98%")
    )
    field.add_class("nbaccel-code")
    return field


def button(text: str, name: str, style: str = "") -> Any:
    """A button that tests and styles find as ``.nbaccel-<name>``."""
    made = ipywidgets.Button(
        description=text, button_style=style, layout=ipywidgets.Layout(width="auto", min_width="6em")
    )
    made.add_class(f"nbaccel-{name}")
    return made


class Words:
    """A text that can be quiet, good or wrong."""

    def __init__(self, *classes: str, width: str = "auto") -> None:
        self.widget = ipywidgets.HTML(layout=ipywidgets.Layout(width=width))
        for each in classes:
            self.widget.add_class(each)
        self.text = ""

    def say(self, text: str, manner: str = "") -> None:
        """Show ``text``.

        Args:
            text: plain; it is escaped.
            manner: ``quiet``, ``good``, ``wrong`` or nothing.
        """
        self.text = text
        sign = {"wrong": "\N{BALLOT X} ", "good": "\N{CHECK MARK} "}.get(manner, "")
        shown = f'<span class="nbaccel-{manner or "plain"}">{html.escape(sign + text)}</span>' if text else ""
        if self.widget.value != shown:
            self.widget.value = shown


class Row:
    """A control, and a note next to it: what is wrong, or where its value comes from, or what it means."""

    def __init__(self, control: Any) -> None:
        self.control = control
        self.note = Words("nbaccel-note", width="auto")
        self.note.widget.layout.flex = "1 1 16em"
        self.widget = ipywidgets.HBox([control, self.note.widget])
        self.widget.add_class("nbaccel-row")


class Log:
    """Lines that are added from any thread; none is lost, and none goes to another cell's output."""

    def __init__(self) -> None:
        self.widget = ipywidgets.HTML()
        self.widget.add_class("nbaccel-log")
        self.lines: list[str] = []
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        """Add a line at the end."""
        with self._lock:
            self.lines.append(line)
            self._show()

    def clear(self) -> None:
        """Take all lines away."""
        with self._lock:
            self.lines.clear()
            self._show()

    def _show(self) -> None:
        text = html.escape("\n".join(self.lines))
        self.widget.value = f"<pre>{text}</pre>" if text else ""


def show_only_if(widget: Any, is_shown: bool) -> None:
    """Take a widget out of the page, or put it back."""
    widget.layout.display = None if is_shown else "none"
