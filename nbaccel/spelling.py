"""What somebody may have meant who wrote a name that isn't there.

Words only: knows nothing of what the names stand for. Costs nothing where the names are right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

CLOSE = 0.6
"""From which likeness on, of 1, a word is worth proposing."""


def likely(word: str, choices: Iterable[str], *, cutoff: float = CLOSE) -> str | None:
    """The choice that is written most like ``word``; None when none is."""
    import difflib  # only where something is wrong

    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=cutoff)
    return close[0] if close else None


def known_arguments(
    elsewhere: Mapping[str, str] | None = None, otherwise: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that a keyword argument that it hasn't is answered with what to write.

    Args:
        elsewhere: names that belong to another place, with how it is written there.
        otherwise: the remedy for a name that is like none of the function's; ``{name}`` stands for it. By
            default all of its arguments are listed.

    The decorated function keeps its signature. It raises a ``TypeError`` that names the argument, the
    function and the remedy.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        import inspect  # slow to import, and not needed for the words

        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        known = frozenset(names)
        shown = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True
            if not known.issuperset(kwargs):
                wrong = next(name for name in kwargs if name not in known)
                remedy = (elsewhere or {}).get(wrong) or _instead(wrong, names, otherwise)
                raise TypeError(f"{shown}() has no argument {wrong!r}; {remedy}")
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                # This frame says nothing; the traceback reads as if the function had been called itself.
                # Not by assignment, which a user's class may refuse.
                BaseException.with_traceback(error, error.__traceback__ and error.__traceback__.tb_next)
                raise

        return checked

    return decorate


def known_fields(**elsewhere: str) -> Callable[[C], C]:
    """Decorate a dataclass so that a field that it hasn't is answered as :func:`known_arguments` does."""

    def decorate(kind: C) -> C:
        kind.__init__ = known_arguments(elsewhere)(kind.__init__)  # type: ignore[misc]
        return kind

    return decorate


def _instead(wrong: str, names: list[str], otherwise: str) -> str:
    public = [name for name in names if name != "self" and not name.startswith("_")]
    near = likely(wrong.lower(), public)
    if near:
        return f"did you mean {near!r}?"
    return otherwise.format(name=wrong) if otherwise else f"it has {', '.join(public)}"
