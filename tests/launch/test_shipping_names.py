"""Which names a cell takes from its namespace: statement by statement, without running anything."""

from __future__ import annotations

import ast
import builtins

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from nbaccel.launch.shipping.names import CellNames, of_cell, of_code

NOT_OF_A_NOTEBOOK = {"get_ipython", *dir(builtins)}
transform = TransformerManager().transform_cell


def names(text: str) -> CellNames:
    return of_cell(ast.parse(transform(text)), transform)


def used(text: str) -> set[str]:
    return {name for name in names(text).uses if name not in NOT_OF_A_NOTEBOOK and not name.startswith("__")}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("print(x)", {"x"}),
        ("x = 1\nprint(x)", set()),
        ("print(x)\nx = 1", {"x"}),
        ("x += 1", {"x"}),
        ("import numpy as np\nnp.zeros(n)", {"n"}),
        ("a.b.c = d[e]", {"a", "d", "e"}),
        ("x: int = y", {"y"}),
        ("x: int\nprint(x)", {"x"}),
        ("del x", {"x"}),
        ("x = 1\ndel x\nx", {"x"}),
        # scopes are the compiler's
        ("[x for x in data]", {"data"}),
        ("[x for x in data if x > limit]", {"data", "limit"}),
        ("f = lambda x: x + k", {"k"}),
        ("print(f'{value:{width}}')", {"value", "width"}),
        # branches: bound only where all ways bind
        ("if c:\n    x = 1\nprint(x)", {"c", "x"}),
        ("if c:\n    x = 1\nelse:\n    x = 2\nprint(x)", {"c"}),
        ("if c:\n    raise ValueError\nelse:\n    x = 2\nprint(x)", {"c"}),
        ("for i in data:\n    print(i)", {"data"}),
        ("for i, (j, k) in data:\n    print(i, j, k)", {"data"}),
        ("while go:\n    y = 1\nprint(y)", {"go", "y"}),
        ("with open(p) as f, lock:\n    f.read()\nf", {"p", "lock"}),
        ("try:\n    import fast as m\nexcept ImportError:\n    m = None\nm", set()),
        ("try:\n    v = f()\nexcept ValueError as e:\n    print(e)\nv", {"f", "v"}),
        (
            "match point:\n    case Point(x=px, y=0) if px > limit:\n        print(px)",
            {"point", "Point", "limit"},
        ),
        ("(y := 3) and y", {"y"}),
        # definitions: what a body takes counts when it is called
        ("def f():\n    return K\nK = 1\nf()", set()),
        ("def f():\n    return K\nf()\nK = 1", {"K"}),
        ("def f():\n    return K", {"K"}),
        ("def f(a=default):\n    return f(a)", {"default"}),
        ("@wrap\ndef f(): ...", {"wrap"}),
        ("class A(Base):\n    k = K\n    def go(self):\n        return L", {"Base", "K", "L"}),
        ("def outer():\n    def inner():\n        return deep\n    return inner", {"deep"}),
        ("async def f():\n    await g()\nawait f()", {"g"}),
        ("await thing\nasync for x in stream:\n    print(x)", {"thing", "stream"}),
        # magics and shell commands
        ("%time train(model)", {"train", "model"}),
        ("%timeit -n 10 -r3 train(model)", {"train", "model"}),
        ("%%time\nloss = train()\nprint(loss)", {"train"}),
        ("%%timeit setup()\nrun()", {"setup", "run"}),
        ("%%time\n%time go(x)", {"go", "x"}),
        ("%%capture out\nprint(x)", {"x"}),
        ("!echo {folder} $name", {"folder", "name"}),
        ("files = !ls {folder}\nfiles", {"folder"}),
        ("%%bash\necho model", set()),
        ("%%writefile model.py\nmodel = 1", set()),
        ("%cd {folder}", {"folder"}),
        ("!awk '{print $1}'", set()),
    ],
)
def test_what_a_cell_uses(cell: str, expected: set[str]) -> None:
    assert used(cell) == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x = y = 1\nimport a.b, c as d\nfor i in (): pass", {"x", "y", "a", "d", "i"}),
        ("def f():\n    global g\n    g = 1", {"f", "g"}),
        ("if 0:\n    x = 1\nwith open('f') as h: pass", {"x", "h"}),
        ("%%time\nz = 1", {"z"}),
        ("try:\n    pass\nexcept ValueError as e:\n    pass", {"e"}),
        ("[k := 1]", {"k"}),
    ],
)
def test_what_a_cell_may_bind(cell: str, expected: set[str]) -> None:
    assert names(cell).binds == expected


def test_a_use_knows_what_was_bound_by_then() -> None:
    found = names("a = 1\nb = 2\nf()\nc = 3\ng()\nf()")
    assert found.uses["f"] == {"a", "b"}
    assert found.uses["g"] == {"a", "b", "c"}


def test_names_of_a_function_s_code_include_those_of_functions_inside() -> None:
    def outer(x):
        return [inner_name(y, other.attribute) for y in x]  # noqa: F821

    assert of_code(outer.__code__) == {"inner_name", "other"}


SIMPLE = st.sampled_from(["a", "b", "c", "d"])


@given(st.lists(st.tuples(SIMPLE, SIMPLE), max_size=8))
def test_straight_lines_agree_with_running_them(assignments: list[tuple[str, str]]) -> None:
    """Each use is of a name that is missing when the cell runs in an empty namespace, and of no other."""
    expected: set[str] = set()
    bound: set[str] = set()
    for target, source in assignments:
        expected |= {source} - bound
        bound.add(target)
    text = "\n".join(f"{target} = {source}" for target, source in assignments)
    assert set(names(text).uses) == expected
    namespace = dict.fromkeys(expected, 1)
    exec(text, namespace)
