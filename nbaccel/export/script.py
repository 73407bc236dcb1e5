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
from nbaccel.export.names import Names, functions_of, names_of

EXPORT_TAG = "export"
"""Cells with it are in the script."""

SKIP_TAG = "skip"
"""Cells with it are not, whoever uses their names."""

_LAUNCHERS = frozenset({"notebook_launcher", "debug_launcher"})


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
    call = None
    if function is not None:
        chosen, call = _by_function(cells, function)
    else:
        chosen = _chosen(cells, tag)
    launches = {cell.number: _launch_of(cell) for cell in cells}
    needed = _closure(cells, names, chosen, launches)
    parts, remarks, needs_main = [], [], call
    for cell in cells:
        if cell.number not in needed:
            continue
        text, main = _body(cell, launches[cell.number] if function is None else None)
        if function is not None and launches[cell.number] is not None:
            text = _without_launch(cell)
        needs_main = main or needs_main
        if text.strip():
            parts.append(f"# --- cell {cell.number} {'-' * 60}\n{text.strip()}\n")
        remarks += [f"cell {cell.number}: left out {line}" for line in cell.left_out]
    missing = _missing(cells, names, needed)
    if missing:
        remarks.append(f"bound in no cell: {', '.join(missing)}; the script needs them from somewhere")
    head = f'"""Made of {path.name} by nbaccel export.\n\nRun it with: nbaccel launch <this file>\n"""\n'
    body = "\n\n".join(parts)
    if needs_main:
        body += f'\n\nif __name__ == "__main__":\n    {needs_main}\n'
    return Script(f"{head}\n{body}", tuple(sorted(needed)), tuple(remarks))


# --- which cells ------------------------------------------------------------------------------------


def _by_function(cells: Sequence[Cell], function: str) -> tuple[set[int], str]:
    owners = [cell for cell in cells if function in functions_of(cell.tree)]
    if not owners:
        known = sorted({name for cell in cells for name in functions_of(cell.tree)})
        raise ExportError(
            f"no cell defines the function {function!r}; the notebook defines {', '.join(known) or 'none'}"
        )
    # The last definition is the one that a run of the whole notebook would leave.
    chosen = {owners[-1].number}
    for cell in reversed(cells):
        launch = _launch_of(cell)
        if launch is not None and _launched_name(launch) == function:
            used = {node.id for node in ast.walk(launch) if isinstance(node, ast.Name)}
            chosen |= {other.number for other in cells if other.number < cell.number and used & _bound(other)}
            return chosen, _call_text(launch)
    required = _required_arguments(owners[-1], function)
    if required:
        raise ExportError(
            f"{function}() needs {', '.join(required)}, and no cell calls notebook_launcher({function}, args=...); "
            "add such a call, or give the parameters defaults"
        )
    return chosen, f"{function}()"


def _bound(cell: Cell) -> frozenset[str]:
    return names_of(cell.tree, cell.source).binds


def _chosen(cells: Sequence[Cell], tag: str | None) -> set[int]:
    tagged = {cell.number for cell in cells if (tag or EXPORT_TAG) in cell.tags}
    if tagged:
        return tagged
    if tag is not None:
        known = sorted({each for cell in cells for each in cell.tags})
        raise ExportError(f"no cell has the tag {tag!r}; the tags are {', '.join(known) or 'none'}")
    chosen = {cell.number for cell in cells if cell.is_for_workers}
    chosen = chosen or {cell.number for cell in cells if _launch_of(cell) is not None}
    if not chosen:
        raise ExportError(
            f"it can't be told which cells to take: tag them {EXPORT_TAG!r}, or name the training function: "
            "--function train"
        )
    return chosen


def _closure(
    cells: Sequence[Cell], names: dict[int, Names], chosen: set[int], launches: dict[int, ast.Call | None]
) -> set[int]:
    """Chosen cells and those before them that bind what needed cells use.

    A function's names may be bound after it, as long as that is before the first chosen cell's end: all
    cells up to the last chosen one can bind.
    """
    last = max(chosen)
    needed = set(chosen)
    while True:
        used = {name for number in needed for name in names[number].uses}
        more = {
            cell.number
            for cell in cells
            if cell.number < last
            and cell.number not in needed
            and names[cell.number].binds & used
            and (launches[cell.number] is None or cell.number in chosen)
        }
        if not more:
            return needed
        needed |= more


def _missing(cells: Sequence[Cell], names: dict[int, Names], needed: set[int]) -> list[str]:
    bound = {name for cell in cells if cell.number in needed for name in names[cell.number].binds}
    used = {name for number in needed for name in names[number].uses}
    return sorted(used - bound - {"get_ipython", "display"})


# --- what becomes of a launch -----------------------------------------------------------------------


def _launch_of(cell: Cell) -> ast.Call | None:
    """The call of a launcher at the cell's top level, or None."""
    for statement in cell.tree.body:
        value = getattr(statement, "value", None)
        if isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(value, ast.Call):
            callee = value.func
            name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", None)
            if name in _LAUNCHERS and value.args + value.keywords:
                return value
    return None


def _launched_name(call: ast.Call) -> str | None:
    function = _argument(call, 0, "function")
    return function.id if isinstance(function, ast.Name) else None


def _argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    if len(call.args) > position:
        return call.args[position]
    return next((each.value for each in call.keywords if each.arg == keyword), None)


def _call_text(call: ast.Call) -> str:
    """``train(model, 3)`` for ``notebook_launcher(train, (model, 3), num_processes=2)``."""
    function = _argument(call, 0, "function")
    assert function is not None
    args, kwargs = _argument(call, 1, "args"), _argument(call, len(call.args), "kwargs")
    parts = []
    if isinstance(args, (ast.Tuple, ast.List)):
        parts += [ast.unparse(each) for each in args.elts]
    elif args is not None:
        parts.append(f"*{ast.unparse(args)}")
    if kwargs is not None:
        parts.append(f"**{ast.unparse(kwargs)}")
    return f"{ast.unparse(function)}({', '.join(parts)})"


def _body(cell: Cell, launch: ast.Call | None) -> tuple[str, str | None]:
    """A cell's text without its launch, and the call that the script's end makes instead."""
    if launch is None:
        return cell.source, None
    return _without_launch(cell), _call_text(launch)


def _without_launch(cell: Cell) -> str:
    lines = cell.source.splitlines()
    launch = _launch_of(cell)
    for statement in cell.tree.body:
        if launch is not None and getattr(statement, "value", None) is launch:
            assert statement.end_lineno is not None
            for number in range(statement.lineno - 1, statement.end_lineno):
                lines[number] = ""
    return "\n".join(lines)


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
