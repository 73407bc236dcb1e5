"""Tracebacks that cross a process boundary look like local ones and hold on to nothing."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref

from nbaccel.launch.traces.frames import capture, rebuild


def _outer(depth):
    if depth:
        return _outer(depth - 1)
    return {}[
        "a long key",
        sum(
            [1, 2],
        ),
    ]


def _caught():
    try:
        _outer(2)
    except KeyError as error:
        return error
    raise AssertionError


def test_a_rebuilt_traceback_reads_as_the_original():
    error = _caught()
    original = traceback.format_tb(error.__traceback__)
    assert traceback.format_tb(rebuild(capture(error.__traceback__))) == original
    assert "_outer(depth - 1)" in original[1]


def test_names_qualified_names_and_modules_are_kept():
    class Thing:
        def method(self):
            raise LookupError

    try:
        Thing().method()
    except LookupError as error:
        tb = rebuild(capture(error.__traceback__))
    frame = tb.tb_next.tb_frame
    assert frame.f_code.co_name == "method"
    assert frame.f_code.co_qualname.endswith("Thing.method")
    assert frame.f_globals["__name__"] == __name__


def test_a_rebuilt_traceback_keeps_no_caller_alive():
    class Big:
        pass

    def build():
        big = Big()
        return rebuild(capture(_caught().__traceback__)), weakref.ref(big)

    tb, big = build()
    gc.collect()
    assert tb is not None
    assert big() is None


def test_lines_far_apart_and_columns_unknown():
    code = compile("\n" * 5000 + "1/0", "far.py", "exec").replace(co_firstlineno=1)
    try:
        exec(code)
    except ZeroDivisionError:
        tb = sys.exc_info()[2].tb_next
    (frame,) = traceback.extract_tb(rebuild(capture(tb)))
    assert (frame.filename, frame.lineno) == ("far.py", 5001)


def test_nothing_to_rebuild():
    assert capture(None) == ()
    assert rebuild(()) is None
