"""The IPython shell of a worker, in which cells run. Made with the first cell.

It has what code in a cell expects: magics, shell commands, top-level ``await``, ``In`` and ``Out``, the
last expression displayed. It keeps no history file, reads no configuration, starts no thread, and
shows no traceback: an error is raised to whoever asked for the cell.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import getpass
import inspect
import linecache
import sys
from collections.abc import Coroutine
from contextlib import suppress
from types import CodeType, TracebackType
from typing import Any, NoReturn

from IPython.core import page
from IPython.core.displayhook import DisplayHook
from IPython.core.error import StdinNotImplementedError
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from traitlets.config import Config

from nbaccel.launch.worker.display import Outlet
from nbaccel.launch.worker.display_shell import WorkerDisplayPublisher, figure_as_png


class WorkerDisplayHook(DisplayHook):
    """The value of a cell's last expression: kept on all ranks, shown by one."""

    outlet: Outlet
    shows = True
    """Whether this worker's value is shown."""

    def compute_format_data(self, result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As usual; but who doesn't show it need not compute it."""
        return super().compute_format_data(result) if self.shows else ({}, {})  # type: ignore[no-untyped-call]

    def write_output_prompt(self) -> None:
        """The notebook has its own."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        """Send it to the cell."""
        self.outlet.show(format_dict, md_dict, is_value=True)

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """There is no log."""

    def finish_displayhook(self) -> None:
        """Nothing was written here."""


class CellShell(InteractiveShell):
    """What ``get_ipython()`` is in a worker of a session."""

    displayhook_class = WorkerDisplayHook
    display_pub_class = WorkerDisplayPublisher
    # Declared as traits that may be None; a shell that is made has them all.
    display_formatter: Any
    displayhook: Any
    history_manager: Any

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._hidden_error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        main = sys.modules["__main__"]
        super().__init__(config=config, user_module=main, user_ns=vars(main))  # type: ignore[no-untyped-call]
        self.set_hook("show_in_pager", page.as_hook(page.display_page), 99)  # type: ignore[no-untyped-call]
        self.display_formatter.formatters["image/png"].for_type_by_name(
            "matplotlib.figure", "Figure", figure_as_png
        )
        self.register_magic_function(_refuse_debugger, "line_cell", "debug")  # type: ignore[arg-type]
        for kind in ("cell", "line"):
            self.register_magic_function(_refuse_accelerate, kind, "accelerate")  # type: ignore[arg-type]
        _refuse_questions()

    # --- what a worker has no use for ----------------------------------------------------------

    def init_virtualenv(self) -> None:
        """The kernel's ``sys.path`` holds."""

    def enable_gui(self, gui: str | None = None) -> None:
        """``%matplotlib inline`` asks for none; of the others there is none here."""
        if gui is not None and gui not in ("inline", "agg"):
            raise RuntimeError(f"{gui} windows can't be opened by a worker; %matplotlib inline shows figures")

    def ask_exit(self) -> NoReturn:
        """``exit`` and ``quit``, which here would end nothing that the user sees."""
        raise RuntimeError(
            "exit and quit end a kernel, and this cell runs on workers that stay: %accelerate stop ends "
            "them, sys.exit() only the cell"
        )

    def init_display_pub(self) -> None:
        self.display_pub = self.display_pub_class(parent=self, shell=self, outlet=self._outlet)
        self.configurables.append(self.display_pub)  # type: ignore[arg-type]

    def init_displayhook(self) -> None:
        super().init_displayhook()  # type: ignore[no-untyped-call]
        self.displayhook.outlet = self._outlet

    def showtraceback(self, *_: Any, **__: Any) -> None:
        """Some magics show an error and go on as if all were well: it is raised after the cell."""
        self._hidden_error = sys.exc_info()[1] or self._hidden_error

    def showsyntaxerror(self, *_: Any, **__: Any) -> None:
        self._hidden_error = sys.exc_info()[1] or self._hidden_error

    def showindentationerror(self) -> None:
        self._hidden_error = sys.exc_info()[1] or self._hidden_error

    # --- running ------------------------------------------------------------------------------

    def run_source(
        self, source: str, raw: str, filename: str, *, count: int, offset: int, shows: bool
    ) -> None:
        """Run a cell.

        Args:
            source: after IPython's transformations.
            raw: before them.
            filename: where tracebacks look for it.
            count: number of the cell.
            offset: lines of the cell in front of ``source``.
            shows: whether the value of its last expression is shown.

        Raises:
            BaseException: what the cell raised; its traceback starts at the cell's line.
        """
        self.displayhook.shows = shows
        self._number(count, raw)
        info = ExecutionInfo(raw, True, False, True, None)  # type: ignore[no-untyped-call]
        result = ExecutionResult(info)  # type: ignore[no-untyped-call]
        self._hidden_error = None
        self.events.trigger("pre_execute")
        self.events.trigger("pre_run_cell", info)
        try:
            with self.builtin_trap, self.display_trap:
                tree = self.compile.ast_parse(source, filename=filename)
                tree = ast.increment_lineno(self.transform_ast(tree), offset)  # type: ignore[no-untyped-call]
                steps = self.run_ast_nodes(tree.body, filename, "last_expr", self.compile, result)
                self._run_to_end(steps, awaits=_awaits(tree, filename))
        except BaseException as error:  # noqa: BLE001  # raised below, in one place for all
            result.error_before_exec = error
        finally:
            self.events.trigger("post_execute")
            self.events.trigger("post_run_cell", result)
        failure = result.error_before_exec or result.error_in_exec or self._hidden_error
        self._hidden_error = None
        if failure is not None:
            raise failure.with_traceback(_from(failure.__traceback__, filename))

    async def run_code(
        self, code_obj: CodeType, result: ExecutionResult | None = None, *, async_: bool = False
    ) -> bool:
        """Run one statement; an error is kept in ``result``, whatever its kind."""
        try:
            if async_:
                await eval(code_obj, self.user_global_ns, self.user_ns)  # noqa: S307  # a cell's code
            else:
                exec(code_obj, self.user_global_ns, self.user_ns)  # noqa: S102
        except BaseException as error:  # noqa: BLE001
            if result is not None:
                result.error_in_exec = error
            return True
        return False

    def _run_to_end(self, steps: Coroutine[Any, Any, bool], *, awaits: bool) -> None:
        """Go through a cell; only one that awaits something runs inside an event loop."""
        if not awaits:
            with suppress(StopIteration):
                steps.send(None)
            return
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(steps)
        try:
            self._loop.run_until_complete(task)
        except BaseException:
            # An interrupt: what the cell awaited ends, too.
            task.cancel()
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(task)
            raise

    def _number(self, count: int, raw: str) -> None:
        """``In[count]`` is this cell; those that ran elsewhere are empty."""
        self.execution_count = count
        # Newer versions count up before a cell, older ones after it.
        self.execution_count += count - self.displayhook.prompt_count
        for history in (self.history_manager.input_hist_parsed, self.history_manager.input_hist_raw):
            del history[count:]
            history.extend("" for _ in range(count - len(history)))
            history.append(raw)


_shell: CellShell | None = None


def shell_of(outlet: Outlet) -> CellShell:
    """This worker's shell."""
    global _shell
    if _shell is None:
        inherited = getattr(InteractiveShell, "_instance", None)
        if inherited is not None:
            type(inherited).clear_instance()
        shell = CellShell(outlet)
        for cls in CellShell._walk_mro():  # noqa: SLF001  # what instance() does
            cls._instance = shell  # type: ignore[assignment]
        _shell = shell
    return _shell


def remember_source(filename: str, source: str) -> None:
    """Put a cell's text where tracebacks look; a cell that runs again may have another one."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def _awaits(tree: ast.Module, filename: str) -> bool:
    code = compile(tree, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def _from(tb: TracebackType | None, filename: str) -> TracebackType | None:
    """The traceback from the first frame of the cell on; all of it when the cell has none."""
    start = tb
    while start is not None and start.tb_frame.f_code.co_filename != filename:
        start = start.tb_next
    return start if start is not None else tb


def _refuse_accelerate(_line: str, cell: str | None = None) -> NoReturn:
    raise RuntimeError(
        f"this cell runs on the workers already; write {'%%' if cell is not None else '%'}accelerate in a "
        "cell of its own"
    )


def _refuse_debugger(_line: str, _cell: str | None = None) -> NoReturn:
    raise StdinNotImplementedError(
        "%debug can't be asked in a worker: there are several, and none has a keyboard. "
        "nbaccel.last_failure() in a normal cell shows the frames and variables of the last failure"
    )


def _refuse_questions() -> None:
    """A worker has no keyboard, and there are several of them."""

    def refuse(prompt: object = "", *_: object) -> NoReturn:
        raise StdinNotImplementedError(
            f"input({str(prompt)!r}) can't be asked in a worker: there are several, and none has a "
            "keyboard. Ask in a normal cell and use the answer here"
        )

    builtins.input = refuse
    getpass.getpass = refuse  # type: ignore[assignment]
