"""``nbaccel.configure()``: what to run on, chosen in a form or by arguments, for all doors of this kernel.

::

    arguments, controls ──▶ Choice: entries ──▶ form_draft.read ──▶ Apply: the session's settings
                              │                                     Save: the config file
                              ▼                                     Test: a process of its own
                   FormView (widgets) or a table (text)

The form changes nothing until it is told to, and nothing at all while something in it is wrong. It needs
ipywidgets only where there is a page to show it on.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbaccel import config
from nbaccel.config import SETTINGS
from nbaccel.launch import notices
from nbaccel.widgets import form_text
from nbaccel.widgets.form_choice import Choice

if TYPE_CHECKING:
    from nbaccel.widgets.form_trial import Trial
    from nbaccel.widgets.form_view import FormView

_MOVED = "This form is shown again further on; that one holds."


def configure(**settings: Any) -> Form:
    """Choose what to run on: show a form, or set values at once.

    What is set holds in this kernel for ``notebook_launcher``, ``%%accelerate`` and ``Accelerator()``,
    after explicit arguments and before environment and config file. Without widgets (a terminal, a
    script) a table is shown instead of a form.

    Args:
        settings: values by the name of the setting, e.g. ``num_processes=2, mixed_precision="bf16"``;
            they are checked and applied before this returns. None: as it is. ``devices="all"`` and
            ``timeout="none"`` take back what was said.

    Returns:
        The form: ``.values``, ``.apply()``, ``.save()``, ``.reset()``, ``.test()``.

    Raises:
        ConfigError: an unknown setting, a wrong value, two that contradict each other, or what this
            machine doesn't have; a ValueError. Nothing has changed then.
        RuntimeError: this is a worker, which is configured by its launch.
    """
    global _current
    if config.active_spec() is not None:
        raise RuntimeError("configure() is for the notebook; a worker is configured by its launch")
    form = Form()
    if settings:
        form.set(**settings)
        form.apply()
        if said := form.choice.next_cell():
            notices.announce(said)
    if _current is not None:
        _current.close()
    _current = form
    form.show()
    return form


configure.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what help and completion show
    [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in SETTINGS],
    return_annotation="Form",
)


class Form:
    """What is being chosen. Shown by a notebook as its controls, elsewhere as a table."""

    def __init__(self) -> None:
        """Begin with what holds now."""
        self.report: list[str] = []
        """The lines of the last self test."""
        self.view: FormView | None = None
        """Its controls, once it was shown where there can be any."""
        self.choice = Choice(self._on_change, self._on_status)
        """What stands in it."""
        self._trial: Trial | None = None
        self._why_text = ""
        self._shown_in: object = None

    @property
    def values(self) -> dict[str, Any]:
        """The value of each setting as it stands in the form; wrong ones are left out."""
        return dict(self.choice.reading.values)

    @property
    def status(self) -> str:
        """What came of the last action."""
        return self.choice.status[0]

    def set(self, **settings: Any) -> None:
        """Put values into the form; :meth:`apply` puts them to use. None: as it is.

        Raises:
            ConfigError: an unknown setting, or a wrong value; nothing has changed then.
        """
        self.choice.set(**settings)

    def apply(self) -> None:
        """Let what stands in the form hold in this kernel.

        Raises:
            ConfigError: something is wrong; nothing has changed then.
        """
        self.choice.apply()

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write what stands in the form to the config file, or to ``path``, and apply it.

        Raises:
            ConfigError: something is wrong, or the file can't be read or written; nothing has changed then.
        """
        return self.choice.save(path)

    def reset(self) -> None:
        """Take back what was applied in this kernel: environment, file and defaults hold."""
        self.choice.reset()

    # --- the self test --------------------------------------------------------------------------

    def test(self) -> None:
        """Begin the self test of what stands in the form, in a process of its own; returns at once.

        Its lines come to :attr:`report`.

        Raises:
            ConfigError: something is wrong in the form.
            RuntimeError: one runs already.
        """
        from nbaccel.widgets.form_trial import Trial

        if self.is_testing:
            raise RuntimeError("a self test runs already; stop it first")
        self.choice.look_again()
        reading = self.choice.reading
        self.report = []
        if self.view is not None:
            self.view.begin_trial()
        self._trial = Trial(
            dict(reading.said),
            on_begin=self._begin_stage,
            on_line=self._add_line,
            on_progress=self._progress,
            on_end=self._end_test,
        )
        self.choice.say(f"Self test of {reading.would_run} ...")

    def stop_test(self, wait_s: float = 0.0) -> None:
        """End the self test that runs.

        Args:
            wait_s: seconds to wait until all its processes are gone.
        """
        if self._trial is not None:
            self._trial.stop()
            self._trial.wait(wait_s)

    def wait_for_test(self, seconds: float) -> bool:
        """Wait until the self test is over; False when it isn't after so many seconds."""
        return self._trial is None or self._trial.wait(seconds)

    @property
    def is_testing(self) -> bool:
        """Whether a self test runs."""
        return self._trial is not None and not self._trial.has_ended

    def close(self) -> None:
        """Take the form away: it no longer looks at the machine, and its self test ends."""
        if self._trial is not None:
            self._trial.stop()
        if self.view is not None:
            self.view.end(_MOVED)
            self.view = None

    # --- showing --------------------------------------------------------------------------------

    def show(self) -> None:
        """Show it under the cell that runs, or print it where there is no page."""
        self._shown_in = _cell()
        if _shell() is None:
            if not hasattr(sys, "ps1"):  # a prompt shows what a call returns
                sys.stdout.write(f"{self!r}\n")
            return
        self._display()

    def _ipython_display_(self) -> None:
        # As the value of the cell that has shown it already there is nothing to add.
        if self._shown_in is None or self._shown_in != _cell():
            self._shown_in = _cell()
            self._display()

    def _display(self) -> None:
        from IPython.display import display

        self._make_view()
        if self.view is None:
            sys.stdout.write(f"{self!r}\n")
            return
        display(self._repr_mimebundle_(), raw=True)  # type: ignore[no-untyped-call]
        self.view.begin()

    def _make_view(self) -> None:
        if self.view is not None:
            return
        self._why_text = _why_no_widgets()
        if self._why_text:
            return
        try:
            from nbaccel.widgets.form_view import FormView

            self.view = FormView(self)
        except Exception as error:  # noqa: BLE001  # a broken installation of widgets still gets the table
            self._why_text = f"the form can't be shown: {type(error).__name__}: {error}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        self._make_view()
        choice = self.choice
        bundle: dict[str, Any] = {
            "text/plain": repr(self),
            "text/html": form_text.as_html(choice.current(), choice.reading, choice.code(), self._why_text),
        }
        if self.view is not None:
            bundle["application/vnd.jupyter.widget-view+json"] = {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self.view.root.model_id,
            }
        return bundle

    def __repr__(self) -> str:
        choice = self.choice
        return form_text.plain(choice.current(), choice.reading, choice.code(), self._why_text)

    # --- inside ---------------------------------------------------------------------------------

    def _on_change(self) -> None:
        if self.view is not None:
            self.view.show()

    def _on_status(self) -> None:
        if self.view is not None:
            self.view.show_status()

    def _begin_stage(self, name: str) -> None:
        self.choice.say(f"Self test: {name} ...")

    def _add_line(self, line: str) -> None:
        self.report.append(line)
        if self.view is not None:
            self.view.log.add(line)

    def _progress(self, stages: int) -> None:
        if self.view is not None:
            self.view.progress.value = stages

    def _end_test(self, text: str, is_well: bool) -> None:
        if self.view is not None:
            self.view.end_trial(is_well)
        self.choice.say(text, "good" if is_well else "wrong")


_current: Form | None = None
"""The form of this kernel: there is one at a time."""


def _shell() -> Any | None:
    """IPython's shell, if this code runs in one."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _cell() -> object:
    """Something that is the same while one cell runs, and for no other."""
    shell = _shell()
    if shell is None:
        return None
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return shell.execution_count
    return (kernel.get_parent() or {}).get("header", {}).get("msg_id")


def _why_no_widgets() -> str:
    """Why there is no page to show widgets on; empty when there is one."""
    shell = _shell()
    if shell is None or getattr(shell, "kernel", None) is None:
        return "in a notebook this is a form"
    if importlib.util.find_spec("ipywidgets") is None:
        return "with the package ipywidgets in the notebook's environment this is a form"
    return ""
