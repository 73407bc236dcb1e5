"""The part of an IPython shell that ``display`` needs, for a worker that has no shell.

Imported only once user code has imported IPython. A whole shell would cost a start ten times as
long, open a history file and install hooks; this one formats objects and hands them on, nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.events import EventManager, available_events
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import SingletonConfigurable

from nbaccel.launch.worker.display import Outlet


class WorkerDisplayPublisher(DisplayPublisher):
    """Hands what is displayed to the worker's outlet. Also fit for a whole shell in a worker."""

    def __init__(self, *args: Any, outlet: Outlet, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._outlet = outlet

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *_source: object,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_options: object,
    ) -> None:
        """Show one object; see the display protocol of Jupyter for the arguments."""
        display_id = (transient or {}).get("display_id")
        self._outlet.show(
            data, metadata, display_id=None if display_id is None else str(display_id), update=update
        )

    def clear_output(self, wait: bool = False) -> None:
        """Clear the output of the cell that submitted the work."""
        self._outlet.clear(wait=wait)


class DisplayShell(InteractiveShell):
    """What ``InteractiveShell.instance()`` is in a worker."""

    def __init__(self, outlet: Outlet) -> None:
        # Past InteractiveShell's own: it starts what a worker has no use for.
        SingletonConfigurable.__init__(self)
        self._outlet = outlet
        self._whole: InteractiveShell | None = None
        self.configurables = [self]
        self.events = EventManager(self, available_events)
        self.user_module = sys.modules["__main__"]
        self.user_ns = vars(self.user_module)
        self.display_formatter = DisplayFormatter(parent=self)
        self.display_pub = WorkerDisplayPublisher(outlet=outlet)
        self.display_formatter.formatters["image/png"].for_type_by_name(
            "matplotlib.figure", "Figure", figure_as_png
        )

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """``%timeit f(x)`` in a function of the notebook."""
        return self._whole_shell().run_line_magic(magic_name, line, _stack_depth + 1)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        """The same for a magic with a body."""
        return self._whole_shell().run_cell_magic(magic_name, line, cell)

    def system(self, cmd: str) -> None:
        """``!cmd`` in a function of the notebook."""
        self._whole_shell().system(cmd)

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """``text = !cmd`` in a function of the notebook."""
        return self._whole_shell().getoutput(cmd, split, depth + 1)

    def _whole_shell(self) -> Any:
        """The one that has all this, made when it is first asked for."""
        if self._whole is None:
            from nbaccel.launch.worker.cell_shell import CellShell

            self._whole = CellShell(self._outlet)
        return self._whole


def install_shell(outlet: Outlet) -> None:
    """Make IPython's functions find a shell in this process; one inherited by a fork is put aside."""
    inherited = getattr(InteractiveShell, "_instance", None)
    if inherited is not None:
        type(inherited).clear_instance()
    # `instance()` would make a whole one.
    InteractiveShell._instance = DisplayShell(outlet)  # type: ignore[assignment]  # noqa: SLF001


def figure_as_png(figure: Any) -> str:
    from nbaccel.launch.worker.figures import as_png

    return as_png(figure)
