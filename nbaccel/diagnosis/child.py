"""The self test in a process of its own, which tells how it goes, one JSON object a line.

::

    kernel ── stdin: settings, then nothing; its end stops the test ──▶ this process
           ◀── stdout: {"begins": stage} {"stage", "ok", "seconds", "text", ...} ... {"over": true}

The kernel stays free meanwhile, and nothing of the test is left in it. When the kernel ends, however it
does, standard input is at its end, and the test and all its processes end too. What stages print goes to
standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from nbaccel import config
from nbaccel.config import SETTINGS

PROGRAM = "from nbaccel.diagnosis.child import main; main()"
"""What an interpreter is given to become such a process, once it finds nbaccel."""

PATIENCE = 5.0
"""Seconds in which an interrupted test has to end by itself."""


def request(said: dict[str, object], timeout_s: float) -> bytes:
    """The line that such a process reads first.

    Args:
        said: what the session says, as :func:`nbaccel.config.set_session_values` takes it.
        timeout_s: seconds for each stage.
    """
    return json.dumps({"said": said, "timeout_s": timeout_s}).encode() + b"\n"


def main() -> None:
    """Run the stages; the exit code is 0 when all passed, 1 when one failed, 130 when it was stopped."""
    # A kernel lets its children ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = json.loads(_read_line(0))
    teller = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_the_kernel, name="nbaccel-kernel-watch", daemon=True).start()
    try:
        ok = _run(asked["said"], float(asked["timeout_s"]), lambda **told: _tell(teller, told))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if ok else 1)


def _run(said: dict[str, object], timeout_s: float, tell: Any) -> bool:
    from nbaccel.diagnosis import selftest

    session = {name: SETTINGS[name].check(value, name) for name, value in said.items()}
    outcomes = selftest.run_stages(
        lambda: config.resolve(session=session),
        timeout_s=timeout_s,
        stages=selftest.STAGES,
        on_start=lambda stage: tell(begins=stage.name),
    )
    ok = True
    for outcome in outcomes:
        ok = outcome.ok
        tell(
            stage=outcome.stage.name,
            ok=outcome.ok,
            seconds=outcome.seconds,
            text=outcome.text,
            details=outcome.details,
            advice="" if outcome.ok else outcome.stage.advice,
        )
    tell(over=True)
    return ok


def _tell(teller: Any, told: dict[str, Any]) -> None:
    try:
        teller.write(json.dumps(told) + "\n")
    except BrokenPipeError:
        raise KeyboardInterrupt from None  # nobody listens any more


def _read_line(descriptor: int) -> bytes:
    """Up to the end of the line and no further: the rest is the watch's."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1)
        if not piece:
            sys.exit(130)
        line += piece
    return line


def _end_with_the_kernel() -> None:
    while os.read(0, 4096):
        pass
    # This process leads its group, in which the scripts that it starts are too.
    os.killpg(os.getpgrp(), signal.SIGINT)
    threading.Event().wait(PATIENCE)
    os.killpg(os.getpgrp(), signal.SIGKILL)
