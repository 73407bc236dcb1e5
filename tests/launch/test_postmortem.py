"""What is shown of a failed rank's frames: the user's names and lines, little of anybody else's."""

from __future__ import annotations

import json
import linecache
from dataclasses import dataclass

import pytest

from nbaccel.launch.traces import owners, postmortem_text
from nbaccel.launch.traces.owners import is_library, is_ours, name_in_library, without_ours
from nbaccel.launch.traces.postmortem import FailureReport, describe_frames

CELL = """\
import json
unused = 3
words = ["one", "two"]
def helper(x):
    return x
class Thing:
    pass
def reads(text):
    broken = text + "}."
    return json.loads(
        broken,
    )
out = words, helper(reads(Out.get(1, "{")[
    :number]))
"""


def reports_of(source=CELL, *, filename="cell.py", namespace=None):
    """The frames of what ``source`` raises, as a worker describes them."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    try:
        exec(compile(source, filename, "exec"), namespace)
    except Exception as error:
        return describe_frames(error.__traceback__.tb_next)
    finally:
        del linecache.cache[filename]
    raise AssertionError("nothing was raised")


def of_ipython():
    """What a notebook's namespace has besides the user's names."""
    from IPython.core.autocall import ExitAutocall

    past, values, here = ["", "x = 1"], {1: "{"}, ["/home"]
    return {
        "__name__": "__main__",
        "In": past,
        "Out": values,
        "_ih": past,
        "_oh": values,
        "_dh": here,
        "_i": "",
        "_ii": "",
        "_i1": "x = 1",
        "_1": "{",
        "_": "{",
        "__": "",
        "get_ipython": of_ipython,
        "exit": ExitAutocall(),
        "quit": ExitAutocall(),
        "open": open,
        "number": 7,
        "_mine": 8,
    }


def test_a_cell_s_frame_has_the_user_s_names_those_of_the_line_first():
    frame = reports_of(namespace=of_ipython())[0]
    assert list(frame.locals)[:4] == ["words", "helper", "reads", "number"]
    assert sorted(list(frame.locals)[4:]) == ["_mine", "unused"]
    assert frame.named == ("words", "helper", "reads", "number")


def test_names_like_ipython_s_are_the_user_s_where_they_hold_something_else():
    namespace = of_ipython() | {"Out": "mine"}
    source = "In = 'also mine'\nopen = 5\nraise KeyError"
    assert set(reports_of(source, namespace=namespace)[0].locals) == {
        "In", "Out", "open", "number", "_mine",
    }  # fmt: skip
    in_function = reports_of("def f(_, In, exit):\n    raise KeyError\nf(1, 2, 3)")[1]
    assert in_function.locals == {"_": "1", "In": "2", "exit": "3"}


def test_frames_of_libraries_are_a_line_each_and_the_one_that_raised_is_brief():
    frames = reports_of(namespace=of_ipython())
    assert [frame.name for frame in frames] == ["<module>", "reads", "loads", "decode"]
    cell, function, passed, raised = postmortem_text.blocks(frames)
    assert cell.startswith("cell.py, line 13, in <module>\n")
    assert "-->   13 out = words, helper(" in cell
    assert "        words = ['one', 'two']" in cell.splitlines()
    assert "_ih" not in cell
    assert "        broken = '{}.'" in function.splitlines()
    assert passed == f"json/__init__.py, line {frames[2].line}, in loads"
    head, source, *variables = raised.splitlines()
    assert head == f"json/decoder.py, line {frames[3].line}, in decode"
    assert "raise JSONDecodeError" in source
    assert variables == ["        s = '{}.'", "        end = 2"]
    told = str(FailureReport(1, KeyError("x"), frames))
    assert told == f"rank 1: KeyError: 'x'\n\n{cell}\n\n{function}\n\n{passed}\n\n{raised}"


def test_values_of_many_lines_are_one_line_and_many_names_are_counted():
    source = (
        "class Model:\n    def __repr__(self): return 'Model(\\n  (layer): ' + 'x' * 200 + '\\n)'\n"
        "model = Model()\n" + "".join(f"n{i} = {i}\n" for i in range(30)) + "model.fit()"
    )
    told = str(reports_of(source)[0]).splitlines()
    values = [line.strip() for line in told if " = " in line and "    " * 2 in line]
    assert values[0].startswith("model = Model( (layer): xxx")
    assert values[0].endswith(" ...")
    assert len(values[0]) <= len("model = ") + postmortem_text.WIDTH
    assert len(values) == 1 + postmortem_text.MOST_OTHERS
    assert told[-1].strip() == f"and {30 - postmortem_text.MOST_OTHERS} more variables in .frames[...].locals"


def test_the_user_s_frames_are_described_before_the_time_is_over(monkeypatch):
    from nbaccel.launch.traces import postmortem

    looked_at = []
    monkeypatch.setattr(
        postmortem._describer, "describe", lambda value: looked_at.append(value) or repr(value)
    )
    reports_of("import json\ntext = '{'\njson.loads(text)")
    assert looked_at[0] == "{"
    assert len(looked_at) > 3


def test_an_object_that_lies_about_its_class_is_described_all_the_same():
    class Lazy:
        @property
        def __class__(self):
            raise RuntimeError("not bound")

    assert "lazy" in reports_of("raise KeyError", namespace={"lazy": Lazy()})[0].locals


# --- whose code -------------------------------------------------------------------------------------


@dataclass
class Frame:
    filename: str


@pytest.mark.parametrize(
    ("filename", "library", "name"),
    [
        (json.__file__, True, "json/__init__.py"),
        (pytest.__file__, True, "pytest/__init__.py"),
        (owners.__file__, True, "nbaccel/launch/traces/owners.py"),
        (
            "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py",
            True,
            "torch/nn/modules/module.py",
        ),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", True, "yaml/loader.py"),
        ("<frozen importlib._bootstrap>", True, "<frozen importlib._bootstrap>"),
        (__file__, False, __file__),
        ("/tmp/ipykernel_12/345.py", False, "/tmp/ipykernel_12/345.py"),
        ("<string>", False, "<string>"),
    ],
)
def test_whose_code_a_file_is(filename, library, name):
    assert is_library(filename) == library
    assert name_in_library(filename) == name
    assert is_ours(filename) == (filename == owners.__file__)


def test_our_frames_are_left_out_where_something_else_was_called_and_stay_where_they_raised():
    user, torch, ours = Frame(__file__), Frame(json.__file__), Frame(owners.__file__)
    assert without_ours([user, torch, ours, torch, ours, user]) == (user, torch, torch, user)
    assert without_ours([user, ours, torch]) == (user, torch)
    assert without_ours([user, ours, torch, ours, ours]) == (user, torch, ours, ours)
    assert without_ours([ours, ours]) == (ours, ours)
    assert without_ours([]) == ()


def test_modules_never_and_functions_only_in_the_line_are_shown():
    names = reports_of("import json\ndef f(): pass\nclass C: pass\nx = 1\nf(json, C, 1)")[0].locals
    assert list(names) == ["f", "C", "x"]
