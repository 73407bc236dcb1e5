"""``display(...)``, figures and ``clear_output`` in a worker: on their way to the cell.

A worker has no notebook of its own. What is displayed goes to the kernel over the channel, and a mark
in standard output says where it stands among the text. IPython, matplotlib and tqdm are adapted only
when user code imports them. In a fork of the worker, which must not speak on its channel, the text
form is printed.
"""

from __future__ import annotations

import base64
import builtins
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from nbaccel.launch.transport.messages import Display
from nbaccel.launch.worker.after_import import after_import
from nbaccel.launch.worker.streams import Turns, flush_streams

FIGURES_MODULE = "nbaccel.launch.worker.figures"
_BACKEND = f"module://{FIGURES_MODULE}"
_INTERACTIVE_BACKENDS = ("gtk", "macosx", "nbagg", "nbaccel", "notebook", "qt", "tk", "web", "wx", "inline")

_WIDGETS = "application/vnd.jupyter.widget-view+json"
"""A widget lives where its kernel is; a worker's would show an error in its place."""


class Outlet:
    """Sends displays to the kernel."""

    def __init__(self, send: Callable[[Display], None], turns: Turns) -> None:
        """Prepare for sending.

        Args:
            send: hands a message to the kernel; raises when the kernel is gone.
            turns: where to mark the place of a display.
        """
        self._send = send
        self._turns = turns
        self._pid = os.getpid()
        self._of_thread: dict[int, Outlet] = {}

    def delegate(self, thread: int, outlet: Outlet) -> None:
        """Let what a thread displays go through another outlet: it is a rank of its own."""
        self._of_thread[thread] = outlet

    def show(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        display_id: str | None = None,
        update: bool = False,
        is_value: bool = False,
    ) -> None:
        """Show one object.

        Args:
            data: MIME type -> representation: text, bytes, or what JSON can express.
            metadata: the same keys -> hints for the front end.
            display_id: name under which it can be updated.
            update: replace what was shown under ``display_id``.
            is_value: it is what the cell's last expression gave, and needs no label.
        """
        own = self._of_thread.get(threading.get_ident())
        if own is not None:
            own.show(data, metadata, display_id=display_id, update=update, is_value=is_value)
            return
        if os.getpid() != self._pid or not self._turns.are_marked:
            sys.stdout.write(f"{data.get('text/plain', '')}\n")
            return
        plain = {mime: _plain(value) for mime, value in data.items() if mime != _WIDGETS}
        self._place(
            Display(
                number=self._turns.next_display(),
                action="update" if update else "show",
                data=plain,
                metadata=_plain(dict(metadata or {})),
                display_id=display_id,
                is_value=is_value,
            )
        )

    def clear(self, *, wait: bool) -> None:
        """Remove what the cell shows; ``wait``: only when something new comes."""
        own = self._of_thread.get(threading.get_ident())
        if own is not None:
            own.clear(wait=wait)
        elif os.getpid() == self._pid and self._turns.are_marked:
            self._place(Display(number=self._turns.next_display(), action="clear", wait=wait))

    def _place(self, display: Display) -> None:
        flush_streams()
        # In a thread, because signals are answered in the main one: an interrupt must not leave half
        # a message on the channel.
        errors: list[Exception] = []
        sender = threading.Thread(target=self._try_to_send, args=(display, errors), name="nbaccel-display")
        sender.start()
        sender.join()
        if errors:
            raise errors[0]
        self._turns.mark_display(display.number)

    def _try_to_send(self, display: Display, errors: list[Exception]) -> None:
        try:
            self._send(display)
        except Exception as error:  # noqa: BLE001  # raised again by the thread that displays
            errors.append(error)


_outlet: Outlet | None = None


def current_outlet() -> Outlet | None:
    """This worker's outlet; None in any other process."""
    return _outlet


def install(outlet: Outlet) -> None:
    """Let everything that displays in this worker use ``outlet``."""
    global _outlet
    _outlet = outlet
    # Notebooks have it without an import.
    builtins.display = _display  # type: ignore[attr-defined]
    if not _is_for_files(os.environ.get("MPLBACKEND", "")):
        os.environ["MPLBACKEND"] = _BACKEND
    after_import(
        {
            "IPython.core.interactiveshell": _adapt_ipython,
            "matplotlib": _adapt_matplotlib,
            "tqdm.notebook": _adapt_tqdm,
        }
    )


def show_open_figures() -> None:
    """Show what user code has drawn and not shown, as a notebook does at the end of a cell."""
    figures = sys.modules.get(FIGURES_MODULE)
    if figures is not None:
        figures.show()


def _display(*objects: Any, **options: Any) -> Any:
    """IPython's ``display``, imported when it is used."""
    from IPython.display import display

    return display(*objects, **options)  # type: ignore[no-untyped-call]


def _is_for_files(backend: str) -> bool:
    """A backend that was chosen on purpose and opens no window."""
    name = backend.lower()
    return bool(name) and not any(word in name for word in _INTERACTIVE_BACKENDS)


def _adapt_ipython(_module: ModuleType) -> None:
    from nbaccel.launch.worker.display_shell import install_shell

    assert _outlet is not None
    install_shell(_outlet)


def _adapt_matplotlib(module: ModuleType) -> None:
    """It looks at its variable once, which may have been before this worker began."""
    backend = os.environ["MPLBACKEND"]
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")  # figures of the process that this one was forked from
        pyplot.switch_backend(backend)
    elif hasattr(module, "rcParams"):
        module.rcParams["backend"] = backend


def _adapt_tqdm(module: ModuleType) -> None:
    """The notebook's bar becomes the text bar it derives from, for whoever holds its class already."""
    bar = module.tqdm_notebook
    for name, value in list(vars(bar).items()):
        if callable(value) or isinstance(value, (property, staticmethod, classmethod)):
            delattr(bar, name)


def _plain(value: Any) -> Any:
    """Data that can be unpickled anywhere: nothing of a worker's own classes travels."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if type(value) in {type(None), bool, int, float, str} else _base(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _base(value: Any) -> Any:
    """A subclass's value as the built-in type it derives from."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)
    return str(value)
