"""Calls of a launcher in a notebook, and the plain calls that they are in a script.

In the script the processes are there already: ``result = notebook_launcher(train, (model, 3))`` becomes
``result = train(model, 3)``.
"""

from __future__ import annotations

import ast

from nbaccel.export.cells import Cell

_LAUNCHERS = frozenset({"notebook_launcher", "debug_launcher"})


def has_launch(cell: Cell) -> bool:
    """Whether the cell launches something at its top level."""
    return any(_launch_in(statement) is not None for statement in cell.tree.body)


def launched_functions(cell: Cell) -> set[str]:
    """Names of the functions that the cell launches."""
    calls = [call for statement in cell.tree.body if (call := _launch_in(statement)) is not None]
    return {name for call in calls if (name := _function_name(call)) is not None}


def with_launches_as_calls(cell: Cell, *, keep: bool, function: str | None = None) -> str:
    """The cell's text with plain calls in place of launches.

    Args:
        cell: the cell.
        keep: False: launches are taken out.
        function: only launches of this function stay; None: all.
    """
    lines = cell.source.splitlines()
    for statement in reversed(cell.tree.body):
        call = _launch_in(statement)
        if call is None:
            continue
        assert statement.end_lineno is not None
        stays = keep and (function is None or _function_name(call) == function)
        replacement = _as_call(statement, call) if stays else []
        lines[statement.lineno - 1 : statement.end_lineno] = replacement
    return "\n".join(lines)


def _launch_in(statement: ast.stmt) -> ast.Call | None:
    if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(statement.value, ast.Call):
        return None
    call = statement.value
    callee = call.func
    name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", None)
    return call if name in _LAUNCHERS and _argument(call, 0, "function") is not None else None


def _function_name(call: ast.Call) -> str | None:
    function = _argument(call, 0, "function")
    return function.id if isinstance(function, ast.Name) else None


def _argument(call: ast.Call, position: int | None, keyword: str) -> ast.expr | None:
    if position is not None and len(call.args) > position:
        return call.args[position]
    return next((each.value for each in call.keywords if each.arg == keyword), None)


def _as_call(statement: ast.stmt, call: ast.Call) -> list[str]:
    text = _call_text(call)
    if isinstance(statement, ast.Assign):
        targets = " = ".join(ast.unparse(target) for target in statement.targets)
        return [f"{targets} = {text}"]
    # Processes that a script's libraries start afresh import it, and must not train.
    return ['if __name__ == "__main__":', f"    {text}"]


def _call_text(call: ast.Call) -> str:
    function = _argument(call, 0, "function")
    assert function is not None
    args, kwargs = _argument(call, 1, "args"), _argument(call, None, "kwargs")
    parts: list[str] = []
    if isinstance(args, (ast.Tuple, ast.List)):
        parts += [ast.unparse(each) for each in args.elts]
    elif args is not None:
        parts.append(f"*{ast.unparse(args)}")
    if kwargs is not None:
        parts.append(f"**{ast.unparse(kwargs)}")
    return f"{ast.unparse(function)}({', '.join(parts)})"
