"""Code cells of a notebook as plain Python.

IPython's own transformer turns magics and shell lines into calls of ``get_ipython()``, which a script has
not: such lines are left out as comments, and what they would have done is told. A ``%%accelerate`` cell is
code for the workers, so its body is kept.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbaccel.export import ExportError

_BODY_RUNS = ("accelerate", "time", "timeit", "capture")
"""Cell magics whose body is Python that the script should run."""


@dataclass(frozen=True)
class Cell:
    """One code cell."""

    number: int
    """Counted from 1 among all cells of the notebook, as people count."""

    source: str
    """Plain Python."""

    tree: ast.Module
    tags: frozenset[str]
    left_out: tuple[str, ...] = ()
    """Lines that only a notebook can run."""

    is_for_workers: bool = False
    """It was a ``%%accelerate`` cell."""


def read_cells(path: Path) -> list[Cell]:
    """The code cells of a notebook that aren't empty, in order.

    Raises:
        ExportError: it isn't there, is no notebook, or a cell is no Python; the message names the cell.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExportError(f"there is no notebook {path}") from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} is no notebook: {error}") from error
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        raise ExportError(f"{path} is no notebook of format 4; open it in Jupyter and save it anew")
    found = []
    for number, cell in enumerate(cells, 1):
        if cell.get("cell_type") == "code":
            made = _cell(number, cell, path)
            if made.tree.body or made.left_out:
                found.append(made)
    return found


def _cell(number: int, cell: Mapping[str, Any], path: Path) -> Cell:
    source = cell.get("source", "")
    text = source if isinstance(source, str) else "".join(source)
    tags = frozenset(map(str, cell.get("metadata", {}).get("tags", ())))
    first = text.lstrip().split("\n", 1)[0]
    is_for_workers = False
    if first.startswith("%%"):
        magic = first[2:].split(" ", 1)[0].strip()
        if magic not in _BODY_RUNS:
            return Cell(number, "", ast.Module([], []), tags, (f"%%{magic} cell",))
        is_for_workers = magic == "accelerate"
        text = text.lstrip().partition("\n")[2]
    plain, left_out = _without_magics(text)
    try:
        tree = ast.parse(plain)
    except SyntaxError as error:
        raise ExportError(
            f"{path}, cell {number}, line {error.lineno}: {error.msg}; mend the cell, or leave it out by the "
            "tag 'skip'"
        ) from None
    return Cell(number, plain, tree, tags, left_out, is_for_workers)


def _without_magics(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with lines that need a notebook as comments."""
    from IPython.core.inputtransformer2 import TransformerManager

    manager = TransformerManager()  # type: ignore[no-untyped-call]
    plain = manager.transform_cell(text)
    if "get_ipython()" not in plain:
        return plain, ()
    try:
        tree = ast.parse(plain)
    except SyntaxError:
        return plain, ()
    lines, left_out = plain.splitlines(), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body") or not _uses_shell(node):
            continue
        assert node.end_lineno is not None
        original = _original(node)
        left_out.append(original)
        indent = lines[node.lineno - 1][: node.col_offset]
        # `pass` keeps a block that had nothing else.
        lines[node.lineno - 1] = f"{indent}pass  # in the notebook: {original}"
        for extra in range(node.lineno, node.end_lineno):
            lines[extra] = ""
    return "\n".join(lines) + "\n", tuple(left_out)


def _uses_shell(node: ast.stmt) -> bool:
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "get_ipython"
        for part in ast.walk(node)
    )


def _original(node: ast.stmt) -> str:
    """``!pip install x`` for ``get_ipython().system('pip install x')``."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            words = [str(arg.value) for arg in part.args if isinstance(arg, ast.Constant)]
            if part.func.attr in {"system", "getoutput"}:
                return "!" + " ".join(words)
            if part.func.attr == "run_line_magic":
                return "%" + " ".join(words).rstrip()
    return ast.unparse(node)
