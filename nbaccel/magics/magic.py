"""The magics themselves: ``%%accelerate`` runs a cell on the workers, ``%accelerate`` looks after them.

What IPython shows of an error raised here is the worker's own error, once; these functions leave
themselves out of its traceback.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class

import nbaccel
from nbaccel import config
from nbaccel.launch import devices, notices
from nbaccel.launch.current import session, stop_session
from nbaccel.launch.session import Session
from nbaccel.launch.system import process
from nbaccel.launch.zygotes import prewarm, zygote_client
from nbaccel.launch.zygotes.zygote import SHELL_MODULES
from nbaccel.magics import commands, hints
from nbaccel.magics import help as help_texts
from nbaccel.magics.cell_text import running_cell
from nbaccel.magics.completion import complete
from nbaccel.magics.options import CellOptions, OptionError, parse_line
from nbaccel.magics.runner import Runner

_PACKAGE = f"{Path(nbaccel.__file__).parent}{os.sep}"


@magics_class
class AccelerateMagics(Magics):
    """``%%accelerate`` and ``%accelerate``."""

    shell: Any  # declared as one that may be None

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._runner: Runner | None = None

    @line_cell_magic
    def accelerate(self, line: str, cell: str | None = None) -> Any:
        """Replaced by the text of :mod:`nbaccel.magics.help`."""
        __tracebackhide__ = True
        try:
            if cell is None:
                return commands.run(self, line)
            return self._run_cell(line, cell)
        except BaseException as error:
            BaseException.with_traceback(error, _without_our_frames(error.__traceback__))
            raise

    accelerate.__doc__ = f"{help_texts.cell_help()}\n\n{help_texts.line_help()}"

    def runner(self, running: Session) -> Runner:
        """What runs cells on this session for this notebook."""
        if self._runner is None or self._runner.session is not running:
            before, self._runner = (
                self._runner,
                Runner(running, self.shell.user_ns, self.shell.transform_cell),
            )
            if before is not None:
                self._runner.inherit(before)
            hints.remember(self._runner)
        return self._runner

    def _run_cell(self, line: str, cell: str) -> None:
        options = parse_line(line)
        ending = self._runner if self._runner is not None and self._runner.session.is_alive else None
        chosen = choose_session(options)
        # Those that begin with an underscore are mostly IPython's own: values of earlier cells.
        lost = [name for name in ending.names_of_workers if name[0] != "_"] if ending is not None else []
        if lost and ending is not None and chosen is not ending.session:
            notices.announce(f"with its workers went {', '.join(lost)}: run the cells again that made them")
        self.runner(chosen).run(
            running_cell(self.shell, line, cell),
            ranks=options.ranks,
            output=options.output or config.resolve()["output"],
            timeout=options.timeout,
            out=options.out,
            progress=options.progress,
        )


def _without_our_frames(tb: TracebackType | None) -> TracebackType | None:
    """What is left of a traceback when the leading frames of this package are taken off."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        tb = tb.tb_next
    return tb


def choose_session(options: CellOptions) -> Session:
    """The session that a cell with these options runs on.

    Raises:
        OptionError: accelerators that aren't there.
        ValueError: what is asked for can't be had.
    """
    asked = options.gpu_ids or (tuple(range(options.gpus)) if options.gpus else None)
    if asked is not None:
        _check_accelerators(options, asked)
    return session(
        options.num_processes,
        devices=asked,
        cpu=options.cpu,
        mixed_precision=options.mixed_precision,
        fresh=options.fresh,
    )


def _check_accelerators(options: CellOptions, asked: tuple[int, ...]) -> None:
    """``--gpus 4`` on a machine that has fewer: said before anything starts."""
    found = devices.visible_accelerators(os.environ)
    said = f"--gpus {options.gpus}" if options.gpus else f"--gpu-ids {','.join(map(str, asked))}"
    instead = f"--cpu -n {len(asked)} runs {len(asked)} worker{'s' if len(asked) > 1 else ''} on the CPU"
    if not found.count:
        raise OptionError(f"{said}: no accelerator is visible ({found.reason}); {instead}")
    missing = [number for number in asked if number >= found.count]
    if missing:
        there = f"{found.count} {found.platform} device{'s' if found.count > 1 else ''}"
        raise OptionError(f"{said}: there {'are' if found.count > 1 else 'is'} {there} here; {instead}")


def start(shell: Any) -> None:
    """Completion and hints, and the process that workers are forked from, while nobody waits for it."""
    shell.set_hook("complete_command", complete, str_key="%%accelerate")
    shell.set_hook("complete_command", complete, str_key="%accelerate")
    shell.events.register("post_run_cell", hints.hint_of_workers)
    if os.environ.get(prewarm.SWITCH) != "0" and process.forks_safely():
        zygote_client.start_zygote(SHELL_MODULES)


def stop(shell: Any) -> None:
    """End the workers; leave the shell as it was."""
    stop_session()
    shell.events.unregister("post_run_cell", hints.hint_of_workers)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("accelerate", None)
