"""Pick the cells that are needed, and write the script.

Needed is a chosen cell, and before it every cell that binds a name which a needed cell uses; of cells that
only look at something (a plot, a table) none. A call of ``notebook_launcher(train, args, ...)`` becomes
``train(*args)``: in the script the processes are there already.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbaccel.export import ExportError
from nbaccel.export.cells import Cell, read_cells
from nbaccel.export.launches import has_launch, launched_functions, with_launches_as_calls
from nbaccel.export.names import Names, functions_of, names_of

EXPORT_TAG = "export"
"""Cells with it are in the script."""

SKIP_TAG = "skip"
"""Cells with it are not, whoever uses their names."""


@dataclass(frozen=True)
class Script:
    """A script, and what its author should know."""

    text: str
    cells: tuple[int, ...]
    """Numbers of the notebook's cells that are in it."""

    remarks: tuple[str, ...] = ()


def make_script(path: Path, *, function: str | None = None, tag: str | None = None) -> Script:
    """The script of a notebook.

    Args:
        path: of the notebook.
        function: name of the training function: its cell is in the script, and the script calls it.
            Arguments are taken from a ``notebook_launcher`` call with it, if there is one.
        tag: cells with this tag are in the script. Without either: those tagged ``export``, else the
            ``%%accelerate`` cells, else the cell with the ``notebook_launcher`` call.

    Raises:
        ExportError: there is no such notebook, function or cell, a needed name is bound nowhere, or the
            function needs arguments that nobody gives.
    """
    cells = [cell for cell in read_cells(path) if SKIP_TAG not in cell.tags]
    names = {cell.number: names_of(cell.tree, cell.source) for cell in cells}
    ending = ""
    if function is None:
        chosen = _chosen(cells, tag)
    else:
        chosen, is_called = _by_function(cells, function)
        ending = "" if is_called else f'\n\nif __name__ == "__main__":\n    {function}()\n'
    needed = _closure(cells, names, chosen)
    parts, remarks = [], []
    for cell in cells:
        if cell.number in needed:
            text = with_launches_as_calls(cell, keep=cell.number in chosen, function=function).strip()
            if text:
                parts.append(f"# --- cell {cell.number} {'-' * 60}\n{text}\n")
            remarks += [f"cell {cell.number}: left out {line}" for line in cell.left_out]
    missing = _missing(cells, names, needed)
    if missing:
        remarks.append(f"bound in no cell: {', '.join(missing)}; the script needs them from somewhere")
    head = f'"""Made of {path.name} by nbaccel export.\n\nRun it with: nbaccel launch <this file>\n"""\n'
    text = f"{head}\n{chr(10).join(parts)}{ending}"
    return Script(text, tuple(sorted(needed)), tuple(remarks))


# --- which cells ------------------------------------------------------------------------------------


def _by_function(cells: Sequence[Cell], function: str) -> tuple[set[int], bool]:
    """The function's cell, and that of the last launch with it; whether there is one."""
    owners = [cell for cell in cells if function in functions_of(cell.tree)]
    if not owners:
        known = sorted({name for cell in cells for name in functions_of(cell.tree)})
        raise ExportError(
            f"no cell defines the function {function!r}; the notebook defines {', '.join(known) or 'none'}"
        )
    # The last definition is the one that a run of the whole notebook would leave.
    chosen = {owners[-1].number}
    for cell in reversed(cells):
        if function in launched_functions(cell):
            return chosen | {cell.number}, True
    required = _required_arguments(owners[-1], function)
    if required:
        raise ExportError(
            f"{function}() needs {', '.join(required)}, and no cell calls notebook_launcher({function}, "
            "args=...); add such a call, or give the parameters defaults"
        )
    return chosen, False


def _chosen(cells: Sequence[Cell], tag: str | None) -> set[int]:
    tagged = {cell.number for cell in cells if (tag or EXPORT_TAG) in cell.tags}
    if tagged:
        return tagged
    if tag is not None:
        known = sorted({each for cell in cells for each in cell.tags})
        raise ExportError(f"no cell has the tag {tag!r}; the tags are {', '.join(known) or 'none'}")
    chosen = {cell.number for cell in cells if cell.is_for_workers}
    chosen = chosen or {cell.number for cell in cells if has_launch(cell)}
    if not chosen:
        raise ExportError(
            f"it can't be told which cells to take: tag them {EXPORT_TAG!r}, or name the training function: "
            "--function train"
        )
    return chosen


def _closure(cells: Sequence[Cell], names: dict[int, Names], chosen: set[int]) -> set[int]:
    """Chosen cells, and those before the last of them that bind what needed cells use."""
    last = max(chosen)
    needed = chosen | {
        cell.number for cell in cells if cell.number < last and names[cell.number].binds_unknown
    }
    while True:
        used = {name for number in needed for name in names[number].uses}
        more = {
            cell.number
            for cell in cells
            if cell.number < last and cell.number not in needed and names[cell.number].binds & used
        }
        if not more:
            return needed
        needed |= more


def _missing(cells: Sequence[Cell], names: dict[int, Names], needed: set[int]) -> list[str]:
    bound = {name for cell in cells if cell.number in needed for name in names[cell.number].binds}
    if any(names[number].binds_unknown for number in needed):
        return []
    used = {name for number in needed for name in names[number].uses}
    return sorted(used - bound - {"get_ipython", "display"})


def _required_arguments(cell: Cell, function: str) -> list[str]:
    node = next(each for each in cell.tree.body if getattr(each, "name", None) == function)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    required = positional[: len(positional) - len(spec.defaults)]
    required += [
        arg for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is None
    ]
    return [each.arg for each in required]
