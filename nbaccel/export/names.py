"""Which module-level names a cell binds, and which it uses.

By the compiler's own symbol table, so scopes, comprehensions, closures and ``global`` are as Python has
them. Which attribute of an object is used can't be told, so a cell that changes an object another cell
made (``model.eval()``, ``settings["lr"] = 1``) counts as one that binds it.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from dataclasses import dataclass

_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}


@dataclass(frozen=True)
class Names:
    """Names of one cell."""

    binds: frozenset[str]
    """Assigned, imported, defined or changed at the top level."""

    uses: frozenset[str]
    """Needed when the cell runs, or later by a function that it defines."""

    binds_unknown: bool = False
    """It imports ``*``."""


def names_of(tree: ast.Module, source: str) -> Names:
    """What the code binds and uses at module level."""
    # From Python 3.12 on the names of a comprehension stand among those of the scope around it (PEP 709);
    # those of a generator expression never do.
    scoped = ast.unparse(_Generators().visit(ast.parse(source)))
    table = symtable.symtable(scoped, "<cell>", "exec")
    binds = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
    uses = {each.get_name() for each in table.get_symbols() if each.is_referenced()}
    stack = list(table.get_children())
    while stack:
        child = stack.pop()
        stack += child.get_children()
        for each in child.get_symbols():
            if each.is_global():
                # `g += 1` isn't said to refer to g.
                if each.is_referenced() or each.is_declared_global():
                    uses.add(each.get_name())
                if each.is_assigned():  # declared so, or by := in a comprehension of the top level
                    binds.add(each.get_name())
    changed = _changed(tree)
    has_star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    return Names(frozenset(binds | changed), frozenset((uses | changed) - _BUILTINS), has_star)


def functions_of(tree: ast.Module) -> frozenset[str]:
    """Functions and classes that are defined at the top level."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


class _Generators(ast.NodeTransformer):
    """Comprehensions as generator expressions, with the same names in the same scopes."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.GeneratorExp(node.elt, node.generators), node)

    visit_SetComp = visit_ListComp  # noqa: N815  # NodeTransformer looks for this name

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        self.generic_visit(node)
        pair = ast.Tuple([node.key, node.value], ast.Load())
        return ast.copy_location(ast.GeneratorExp(pair, node.generators), node)


def _changed(tree: ast.Module) -> set[str]:
    """Names whose object is changed by a statement at the top level: ``x.a = 1``, ``x[0] = 1``, ``x.f()``."""
    found: set[str] = set()
    for statement in _top_level(tree.body):
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            targets = (
                statement.targets if isinstance(statement, (ast.Assign, ast.Delete)) else [statement.target]
            )
            # A plain assignment makes a name anew; `x += 1` and `del x` need the one that is there.
            is_new = isinstance(statement, (ast.Assign, ast.AnnAssign))
            found |= {
                root
                for target in targets
                if (root := _root(target)) and not (is_new and isinstance(target, ast.Name))
            }
        elif (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and isinstance(statement.value.func, ast.Attribute)
            and (root := _root(statement.value.func))
        ):
            found.add(root)
    return found


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that run with the module: also in its loops and conditions, not in functions."""
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        found.append(statement)
        for field in ("body", "orelse", "finalbody"):
            found += _top_level(getattr(statement, field, []))
    return found


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
