"""The commands of ``%accelerate``: one function each."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nbaccel.launch import notices
from nbaccel.launch.current import current_session, stop_session
from nbaccel.launch.failures import describe_ranks
from nbaccel.launch.request.resolve import describe
from nbaccel.launch.session import Session
from nbaccel.magics.help import COMMANDS, line_help
from nbaccel.magics.options import OptionError, nearest
from nbaccel.magics.status import StatusTable

if TYPE_CHECKING:
    from nbaccel.magics.magic import AccelerateMagics


def run(magics: AccelerateMagics, line: str) -> Any:
    """Carry out the line of ``%accelerate``.

    Raises:
        OptionError: no such command, or words that it doesn't take.
    """
    words = line.split()
    if not words or words[0] in ("help", "-h", "--help"):
        sys.stdout.write(f"{line_help()}\n\nOf cells: %%accelerate?\n")
        return None
    name, *rest = words
    command = _COMMANDS.get(name)
    if command is None:
        if name.startswith("-"):
            raise OptionError(
                f"%accelerate {name}: options belong to a cell: write %%accelerate {line.strip()}"
            )
        raise OptionError(f"%accelerate {name}: there is no such command; {nearest(name, _COMMANDS)}")
    takes_names = COMMANDS[name][0]
    if takes_names and not rest:
        raise OptionError(f"%accelerate {name} needs names: %accelerate {name} {takes_names}")
    if rest and not takes_names and name not in _WITH_WORDS:
        raise OptionError(f"%accelerate {name} takes nothing else: leave out {' '.join(rest)}")
    return command(magics, [part for word in rest for part in word.split(",") if part])


def _running() -> Session | None:
    running = current_session()
    return running if running is not None and running.is_alive else None


def _status(_magics: AccelerateMagics, _rest: Sequence[str]) -> StatusTable | None:
    running = _running()
    if running is None:
        notices.announce("no workers run; a cell that starts with %%accelerate starts them")
        return None
    return StatusTable(describe(running.spec), running.status())


def _stacks(_magics: AccelerateMagics, _rest: Sequence[str]) -> None:
    running = _running()
    sys.stdout.write(f"{running.stacks() if running is not None else 'no workers run'}\n")


def _pull(magics: AccelerateMagics, rest: Sequence[str]) -> None:
    magics.runner(_needed("pull")).pull(rest)
    names = list(dict.fromkeys(rest))
    values = [magics.shell.user_ns[name] for name in names]
    on_cpu = ", on the CPU" if any(hasattr(v, "device") or hasattr(v, "state_dict") for v in values) else ""
    notices.announce(f"{_are(names)} here now: rank 0's{on_cpu}")


def _push(magics: AccelerateMagics, rest: Sequence[str]) -> None:
    running = _needed("push")
    magics.runner(running).push(rest)
    ranks = describe_ranks(range(running.spec.num_processes))
    notices.announce(f"{_are(list(dict.fromkeys(rest)))} on {ranks} now")


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _restart(_magics: AccelerateMagics, _rest: Sequence[str]) -> None:
    running = current_session()
    if running is not None:
        running.restart()
    notices.announce("the next %%accelerate cell starts new workers")


def _stop(_magics: AccelerateMagics, _rest: Sequence[str]) -> None:
    had = _running() is not None
    stop_session(forget=False)
    notices.announce("the workers have ended" if had else "no workers run")


def _config(_magics: AccelerateMagics, _rest: Sequence[str]) -> Any:
    return _part("nbaccel.widgets.form", "the form").configure()


def _env(_magics: AccelerateMagics, rest: Sequence[str]) -> None:
    _command_line("nbaccel.cli.env_command", "env", rest)


def _test(_magics: AccelerateMagics, rest: Sequence[str]) -> None:
    _command_line("nbaccel.cli.test_command", "test", rest)


def _needed(command: str) -> Session:
    running = _running()
    if running is None:
        raise OptionError(
            f"%accelerate {command}: no workers run; a cell that starts with %%accelerate starts them"
        )
    return running


def _part(module: str, what: str) -> Any:
    if importlib.util.find_spec(module) is None:
        raise OptionError(f"{what} isn't part of this installation of nbaccel ({module} is missing)")
    return importlib.import_module(module)


def _command_line(module: str, name: str, words: Sequence[str]) -> None:
    """Run a command of the terminal here, so that it sees what this notebook is configured for."""
    command = _part(module, f"nbaccel {name}").command
    try:
        status = command.main(list(words), prog_name=f"%accelerate {name}", standalone_mode=False)
    except SystemExit as request:  # the end of the command, not of the notebook
        status = request.code
    if status:
        raise RuntimeError(f"nbaccel {name} ended with status {status}")


_COMMANDS: dict[str, Callable[[Any, Sequence[str]], Any]] = {
    "status": _status,
    "stacks": _stacks,
    "pull": _pull,
    "push": _push,
    "restart": _restart,
    "stop": _stop,
    "config": _config,
    "env": _env,
    "test": _test,
}

_WITH_WORDS = frozenset({"env", "test"})
"""Commands that take further options."""
