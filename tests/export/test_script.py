"""From notebooks to scripts: which cells, which lines, and that the scripts run."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from nbaccel.export import ExportError
from nbaccel.export.names import names_of
from nbaccel.export.script import make_script


def notebook(folder: Path, *cells: str | tuple[str, str]) -> Path:
    """A notebook of code cells; a pair is a tag and a source."""
    content: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": ["# A title"]}]
    for cell in cells:
        tag, source = cell if isinstance(cell, tuple) else ("", cell)
        tags = {"tags": [tag]} if tag else {}
        content.append(
            {
                "cell_type": "code",
                "metadata": tags,
                "source": source.splitlines(keepends=True),
                "outputs": [],
                "execution_count": None,
            }
        )
    path = folder / "train.ipynb"
    path.write_text(json.dumps({"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


TRAIN = "def train(n):\n    print(helper(n), scale)\n"
CELLS = (
    "import math\nfrom nbaccel import notebook_launcher",  # 2
    "scale = 3",  # 3
    "def helper(x):\n    return math.sqrt(x)",  # 4
    "unused = helper(9)\nprint(unused)",  # 5
    TRAIN,  # 6
    "scale = 4",  # 7
    "result = notebook_launcher(train, (16,), num_processes=2)\nprint('done', result)",  # 8
    "scale = 100",  # 9
)


def run(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


def test_the_launch_chooses_and_what_it_needs_comes_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = make_script(notebook(tmp_path, *CELLS))
    assert script.cells == (2, 3, 4, 6, 7, 8)
    assert run(script.text, capsys) == "4.0 4\ndone None\n"
    assert "num_processes" not in script.text


def test_a_function_by_name_takes_its_arguments_from_the_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = make_script(notebook(tmp_path, *CELLS), function="train")
    assert run(script.text, capsys).startswith("4.0 4\n")


def test_a_function_that_nobody_launches_is_called_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = notebook(tmp_path, "x = 1", "def train(n=2):\n    print(x + n)", "x = 5")
    script = make_script(path, function="train")
    assert script.cells == (2, 3)
    assert 'if __name__ == "__main__":\n    train()' in script.text
    assert run(script.text, capsys) == "3\n"
    with pytest.raises(ExportError, match=r"train\(\) needs n"):
        make_script(notebook(tmp_path, "def train(n): pass"), function="train")
    with pytest.raises(ExportError, match=r"no cell defines.*'fit'.*defines train"):
        make_script(path, function="fit")


def test_tags_choose_and_skip(tmp_path: Path) -> None:
    path = notebook(tmp_path, "a = 1", ("export", "print(a)"), ("skip", "a = 2"), ("export", "print('end')"))
    assert make_script(path).cells == (2, 3, 5)
    with pytest.raises(ExportError, match=r"no cell has the tag 'main'; the tags are export"):
        make_script(path, tag="main")


def test_cells_for_workers_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = notebook(tmp_path, "a = 1", "b = 2", "%%accelerate --cpu -n 2\nprint(a)", "print('kernel only')")
    script = make_script(path)
    assert script.cells == (2, 4)
    assert run(script.text, capsys) == "1\n"


def test_lines_that_only_a_notebook_can_run_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = notebook(
        tmp_path,
        "!pip install x\n%matplotlib inline\nfiles = !ls\na = 1",
        "if a:\n    %time\nelse:\n    !ls",
        "%%bash\necho hello",
        ("export", "print(a)"),
    )
    script = make_script(path)
    assert run(script.text, capsys) == "1\n"
    assert "get_ipython" not in script.text
    told = "\n".join(script.remarks)
    assert "!pip install x" in told
    assert "%matplotlib inline" in told
    assert "!ls" in told


def test_a_cell_that_changes_an_object_is_needed(tmp_path: Path) -> None:
    path = notebook(
        tmp_path,
        "settings = {}\nother = {}",
        "settings['lr'] = 1",
        "for key in 'ab':\n    settings.update({key: 1})",
        "other['x'] = 1",
        ("export", "print(settings)"),
    )
    assert make_script(path).cells == (2, 3, 4, 6)


def test_a_star_import_is_kept_and_an_unbound_name_is_told(tmp_path: Path) -> None:
    assert make_script(notebook(tmp_path, "from math import *", ("export", "print(sqrt(4))"))).cells == (2, 3)
    (remark,) = make_script(notebook(tmp_path, ("export", "print(nowhere)"))).remarks
    assert "nowhere" in remark


def test_what_cannot_be_chosen_or_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="--function"):
        make_script(notebook(tmp_path, "a = 1"))
    with pytest.raises(ExportError, match=r"cell 2, line 1"):
        make_script(notebook(tmp_path, "a = = 1"))
    with pytest.raises(ExportError, match="there is no notebook"):
        make_script(tmp_path / "none.ipynb")
    (tmp_path / "x.ipynb").write_text("[]")
    with pytest.raises(ExportError, match="format 4"):
        make_script(tmp_path / "x.ipynb")


@pytest.mark.parametrize(
    ("source", "binds", "uses"),
    [
        ("a = b", {"a"}, {"b"}),
        ("import x.y as z, w.v", {"z", "w"}, set()),
        ("def f(p):\n    q = p\n    return r + len(q)", {"f"}, {"r"}),
        ("def f():\n    global g\n    g += h", {"f", "g"}, {"g", "h"}),
        ("[i + k for i in j]", set(), {"j", "k"}),
        ("x = {i: [k for k in i] for i in j} or {n for n in m}", {"x"}, {"j", "m"}),
        ("[(last := i) for i in j]", {"last"}, {"last", "j"}),
        ("class C(B):\n    a = d\n    def m(self):\n        return e", {"C"}, {"B", "d", "e"}),
        ("a += 1", {"a"}, {"a"}),
        ("del a", {"a"}, {"a"}),
        ("x = y = z", {"x", "y"}, {"z"}),
        ("m.eval()", {"m"}, {"m"}),
        ("with o() as p:\n    p.x = 1", {"p"}, {"o", "p"}),
        ("print(len([]))", set(), set()),
        ("async def f():\n    return await g()", {"f"}, {"g"}),
        ("f = lambda x: x + y", {"f"}, {"y"}),
    ],
)
def test_names_of_a_cell(source: str, binds: set[str], uses: set[str]) -> None:
    names = names_of(ast.parse(source), source)
    assert names.binds == binds
    assert names.uses == uses
