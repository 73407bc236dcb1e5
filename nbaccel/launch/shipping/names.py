"""Which names a cell or a function takes from its namespace, and which a cell binds.

Works on what the compiler makes of the code, statement by statement, so that scopes, comprehensions,
f-strings and the like are the compiler's to understand. A name that a cell surely binds before it uses
it isn't taken from the namespace. Where that can't be told, it counts as used: sending a name too many
is harmless, one too few isn't. Runs nothing.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

_LOADS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"})
_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL"})

_OTHER_LANGUAGES = frozenset(
    [
        "!",
        "bash",
        "cmd",
        "file",
        "html",
        "javascript",
        "js",
        "latex",
        "markdown",
        "perl",
        "pypy",
        "python",
        "python2",
        "python3",
        "ruby",
        "script",
        "sh",
        "svg",
        "sx",
        "system",
        "writefile",
    ]
)
"""Cell magics of IPython whose text isn't code of this notebook."""

_CODE_LINE_MAGICS = frozenset({"time", "timeit", "prun", "memit", "mprun", "lprun", "debug"})
"""Line magics whose text is code, after options."""

_OPTIONS = re.compile(r"^(\s*--?[A-Za-z][\w-]*(?:[ =]?\d+)?)*\s*")
_EXPANSION = re.compile(r"\{([^{}]*)\}|\$\$?([A-Za-z_]\w*)")


@dataclass(frozen=True)
class CellNames:
    """What a cell has to do with its namespace."""

    uses: dict[str, frozenset[str]] = field(default_factory=dict)
    """Name -> the names that the cell has surely bound itself when it first uses this one."""

    binds: frozenset[str] = frozenset()
    """Names that the cell may bind."""


def of_cell(tree: ast.Module, transform: Callable[[str], str]) -> CellNames:
    """The names of a cell.

    Args:
        tree: of the cell after IPython's own transformations.
        transform: these transformations, for the text of magics inside.
    """
    flow = _Flow(transform)
    bound = flow.block(tree.body, frozenset())
    flow.finish(bound)
    return CellNames(flow.uses, frozenset(flow.binds))


@functools.lru_cache(maxsize=4096)
def of_code(code: types.CodeType) -> frozenset[str]:
    """Names that a function's code, functions inside included, takes from its globals or builtins."""
    return frozenset(_loads(code, deep=True))


def _loads(code: types.CodeType, *, deep: bool) -> set[str]:
    found = {i.argval for i in dis.get_instructions(code) if i.opname in _LOADS}
    for inner in _inner_codes(code):
        if deep or not inner.co_flags & inspect.CO_NEWLOCALS:
            found |= _loads(inner, deep=deep)
    return found


def _stores(code: types.CodeType, *, top: bool = True) -> set[str]:
    wanted = _STORES if top else {"STORE_GLOBAL"}
    found = {i.argval for i in dis.get_instructions(code) if i.opname in wanted}
    for inner in _inner_codes(code):
        found |= _stores(inner, top=False)
    return found


def _inner_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    return (const for const in code.co_consts if isinstance(const, types.CodeType))


def _compiled(*statements: ast.stmt) -> types.CodeType | None:
    module = ast.Module(list(statements), [])
    try:
        code = compile(ast.fix_missing_locations(module), "<names>", "exec", _FLAGS, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None  # `break` outside its loop, and the like: the whole cell is compiled elsewhere
    assert isinstance(code, types.CodeType)
    return code


class _Flow:
    """Goes through statements in order, with the set of names that are surely bound."""

    def __init__(self, transform: Callable[[str], str]) -> None:
        self.uses: dict[str, frozenset[str]] = {}
        self.binds: set[str] = set()
        self._transform = transform
        self._later: dict[str, set[str]] = {}
        """Functions and classes of the cell -> what their bodies take once they are called."""

    def finish(self, bound: frozenset[str]) -> None:
        """The end of the cell: what was defined may be called by later cells."""
        for names in list(self._later.values()):
            self._use(names, bound)

    def block(self, statements: Sequence[ast.stmt], bound: frozenset[str]) -> frozenset[str]:
        """Go through ``statements``; returns what is surely bound after them."""
        for statement in statements:
            bound = self._statement(statement, bound)
        return bound

    def _statement(self, node: ast.stmt, bound: frozenset[str]) -> frozenset[str]:
        if isinstance(node, ast.If):
            self._expressions([node.test], bound)
            return self._branches([node.body, node.orelse], bound)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._expressions([node.iter], bound)
            inside = self._assign(node.target, bound)
            self.block(node.body, inside)
            self.block(node.orelse, bound)
            return bound
        if isinstance(node, ast.While):
            self._expressions([node.test], bound)
            self.block(node.body, bound)
            self.block(node.orelse, bound)
            return bound
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._expressions([item.context_expr], bound)
                if item.optional_vars is not None:
                    bound = self._assign(item.optional_vars, bound)
            return self.block(node.body, bound)
        if isinstance(node, (ast.Try, ast.TryStar)):
            return self._try(node, bound)
        if isinstance(node, ast.Match):
            return self._match(node, bound)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return self._definition(node, bound)
        return self._simple(node, bound)

    def _simple(self, node: ast.stmt, bound: frozenset[str]) -> frozenset[str]:
        code = _compiled(node)
        if code is None:
            return bound
        self._use(_loads(code, deep=True), bound)
        bound = self._magics(node, bound)
        deleted = {i.argval for i in dis.get_instructions(code) if i.opname == "DELETE_NAME"}
        stored = _stores(code)
        self.binds |= stored
        return (bound | _surely_stored(node, stored)) - deleted

    def _definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, bound: frozenset[str]
    ) -> frozenset[str]:
        code = _compiled(node)
        if code is None:
            return bound
        now = _loads(code, deep=False)
        self._use(now, bound)
        self._later[node.name] = _loads(code, deep=True) - now
        self.binds |= _stores(code)
        return bound | {node.name}

    def _try(self, node: ast.Try | ast.TryStar, bound: frozenset[str]) -> frozenset[str]:
        whole = self.block(node.orelse, self.block(node.body, bound))
        ends = [whole]
        for handler in node.handlers:
            if handler.type is not None:
                self._expressions([handler.type], bound)
            inside = bound | {handler.name} if handler.name else bound
            self.binds |= {handler.name} if handler.name else set()
            after = self.block(handler.body, inside)
            if not _leaves(handler.body):
                ends.append(after - {handler.name})
        sure = frozenset.intersection(*ends)
        return sure | self.block(node.finalbody, bound)

    def _match(self, node: ast.Match, bound: frozenset[str]) -> frozenset[str]:
        self._expressions([node.subject], bound)
        for case in node.cases:
            taken = {n.id for n in ast.walk(case.pattern) if isinstance(n, ast.Name)}
            self._use(taken, bound)
            captured = {
                name
                for n in ast.walk(case.pattern)
                for name in (getattr(n, "name", None), getattr(n, "rest", None))
                if isinstance(name, str)
            }
            self.binds |= captured
            inside = bound | captured
            if case.guard is not None:
                self._expressions([case.guard], inside)
            self.block(case.body, inside)
        return bound

    def _branches(self, branches: Iterable[Sequence[ast.stmt]], bound: frozenset[str]) -> frozenset[str]:
        ends = [(branch, self.block(branch, bound)) for branch in branches]
        staying = [after for branch, after in ends if not _leaves(branch)]
        return frozenset.intersection(*staying) if staying else bound

    def _assign(self, target: ast.expr, bound: frozenset[str]) -> frozenset[str]:
        return self._simple(ast.Assign([target], ast.Constant(None)), bound)

    def _expressions(self, nodes: Iterable[ast.expr], bound: frozenset[str]) -> None:
        for node in nodes:
            self._simple(ast.Expr(node), bound)

    def _use(self, names: Iterable[str], bound: frozenset[str]) -> None:
        for name in names:
            if name in bound:
                # Its body runs from here on, with what is bound by now.
                self._use(self._later.pop(name, ()), bound)
                continue
            self.uses[name] = self.uses.get(name, bound) & bound

    # --- magics -------------------------------------------------------------------------------

    def _magics(self, node: ast.stmt, bound: frozenset[str]) -> frozenset[str]:
        for call in ast.walk(node):
            if not isinstance(call, ast.Call) or not _is_of_shell(call):
                continue
            texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
            if not all(isinstance(text, str) for text in texts):
                continue
            kind = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            words = [str(text) for text in texts]
            if kind == "run_line_magic" and len(words) == 2:
                self._expand(words[1], bound)
                if words[0] in _CODE_LINE_MAGICS:
                    bound = self._code(_OPTIONS.sub("", words[1], count=1), bound)
            elif kind == "run_cell_magic" and len(words) == 3:
                self._expand(words[1], bound)
                if words[0] not in _OTHER_LANGUAGES:
                    if words[0] in _CODE_LINE_MAGICS:  # of %%timeit the line is code, too
                        bound = self._code(_OPTIONS.sub("", words[1], count=1), bound)
                    bound = self._code(words[2], bound)
            elif kind in ("system", "getoutput"):
                self._expand(words[0] if words else "", bound)
        return bound

    def _expand(self, text: str, bound: frozenset[str]) -> None:
        """``{expression}`` and ``$name`` in the text of a magic or a shell command."""
        for expression, name in _EXPANSION.findall(text):
            if name:
                self._use([name], bound)
                continue
            try:
                tree = ast.parse(expression.strip(), mode="eval")
            except SyntaxError:
                continue  # braces of the shell's own
            self._expressions([tree.body], bound)

    def _code(self, text: str, bound: frozenset[str]) -> frozenset[str]:
        try:
            tree = ast.parse(self._transform(text))
        except SyntaxError:
            return bound  # not code of this notebook after all
        return self.block(tree.body, bound)


def _surely_stored(node: ast.stmt, stored: set[str]) -> set[str]:
    """Of the names that a simple statement stores, those that it can't leave out."""
    if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Import, ast.ImportFrom)):
        return set()
    named = {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
    return stored - named


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether nothing after these statements runs when they have run."""
    return bool(statements) and isinstance(statements[-1], (ast.Raise, ast.Return, ast.Continue, ast.Break))


def _is_of_shell(call: ast.Call) -> bool:
    """``get_ipython().something(...)``, which IPython makes of magics."""
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Call)
        and isinstance(call.func.value.func, ast.Name)
        and call.func.value.func.id == "get_ipython"
    )
