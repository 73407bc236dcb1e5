"""The public surface of the incumbent, next to ours. Run as a script to renew the files.

``incumbent.json`` holds names and argument names only, so that the comparison needs no install of it.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SNAPSHOT = HERE / "incumbent.json"
LEFT_OUT = HERE / "left_out.json"
"""By reason: the names that are left out, each in full, so that no other hides behind it."""
TABLE = HERE.parent.parent / "docs" / "compatibility.md"

MODULES = {
    "": "nbaccel",
    ".data_loader": "nbaccel.data_loader",
    ".local_sgd": "nbaccel.local_sgd",
    ".logging": "nbaccel.logging",
    ".optimizer": "nbaccel.optimizer",
    ".scheduler": "nbaccel.scheduler",
    ".state": "nbaccel.state",
    ".tracking": "nbaccel.tracking",
    ".utils": "nbaccel.utils",
}
CLASSES = (
    "Accelerator", "PartialState", "AcceleratorState", "GradientState", "AcceleratedOptimizer",
    "AcceleratedScheduler", "GeneralTracker", "LocalSGD", "DataLoaderShard", "DataLoaderDispatcher",
    "BatchSamplerShard", "IterableDatasetShard", "SeedableRandomSampler",
)  # fmt: skip


def take_snapshot() -> dict[str, Any]:
    """Names and argument names of the installed incumbent."""
    import accelerate

    found: dict[str, Any] = {"version": accelerate.__version__, "names": {}, "classes": {}}
    for suffix in MODULES:
        module = importlib.import_module(f"accelerate{suffix}")
        for name in sorted(dir(module)):
            value = getattr(module, name)
            if name.startswith("_") or inspect.ismodule(value) or not _belongs(value):
                continue
            found["names"].setdefault(name, {"at": suffix, "arguments": arguments(value)})
            if name in CLASSES:
                found["classes"][name] = {member: arguments_of(value, member) for member in members(value)}
    return found


def _belongs(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("accelerate")


def members(kind: type) -> list[str]:
    """Public members that a class of its own package defines."""
    own = [c for c in kind.__mro__ if c.__module__.split(".")[0] in {"accelerate", "nbaccel"}]
    return sorted({name for c in own for name in vars(c) if not name.startswith("_")})


def arguments_of(kind: type, member: str) -> list[str] | None:
    """Argument names of a method; None for anything else."""
    value = inspect.getattr_static(kind, member)
    return (
        arguments(getattr(kind, member))
        if callable(getattr(kind, member, None)) and not isinstance(value, property)
        else None
    )


def arguments(value: Any) -> list[str] | None:
    """Argument names; None where there are none to ask for."""
    if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
        return None
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in named if name != "self" and not name.startswith("_")]


def reason_for(name: str) -> str | None:
    """Why ``name`` is left out; None when it should be there."""
    left_out: dict[str, list[str]] = json.loads(LEFT_OUT.read_text())
    return next((why for why, names in left_out.items() if name in names), None)


def ours(name: str, at: str) -> Any:
    """Our object of that name; None when there is none."""
    for module in (MODULES[at], "nbaccel.utils", "nbaccel", "nbaccel.state"):
        found = getattr(importlib.import_module(module), name, None)
        if found is not None:
            return found
    return None


def compare() -> tuple[list[tuple[str, str, str]], dict[str, int]]:
    """Rows of name, state and remark; and how many there are of each state."""
    snapshot = json.loads(SNAPSHOT.read_text())
    rows: list[tuple[str, str, str]] = []
    for name, about in snapshot["names"].items():
        rows.append(_row(name, ours(name, about["at"]), about["arguments"]))
    for kind, its_members in snapshot["classes"].items():
        mine = ours(kind, snapshot["names"][kind]["at"])
        for member, expected in its_members.items():
            value = None if mine is None else inspect.getattr_static(mine, member, None)
            resolved = getattr(mine, member, value) if value is not None else None
            if value is None and mine is not None and _set_by_constructor(mine, member):
                rows.append((f"{kind}.{member}", "here", ""))
                continue
            rows.append(_row(f"{kind}.{member}", resolved, expected))
    counts = {state: sum(row[1] == state for row in rows) for state in ("here", "left out", "missing")}
    return rows, counts


def _set_by_constructor(kind: type, member: str) -> bool:
    return any(
        f"self.{member} =" in inspect.getsource(c) for c in kind.__mro__ if c.__module__.startswith("nbaccel")
    )


def _row(name: str, mine: Any, expected: list[str] | None) -> tuple[str, str, str]:
    if mine is None:
        why = reason_for(name)
        return (name, "left out", why) if why else (name, "missing", "")
    have = arguments(mine) if expected is not None else None
    lacking = sorted(set(expected or []) - set(have or [])) if have is not None else []
    return name, "here", f"without {', '.join(f'`{a}`' for a in lacking)}" if lacking else ""


def table() -> str:
    """The page for the documentation."""
    snapshot = json.loads(SNAPSHOT.read_text())
    rows, counts = compare()
    lines = [
        "# Compatibility with Hugging Face Accelerate",
        "",
        f"Compared with Accelerate {snapshot['version']} by `tests/compat`, which also writes this page.",
        (
            f"{counts['here']} public names are here, {counts['left out']} are left out, "
            f"{counts['missing']} are missing without a reason."
        ),
        "",
        "| name | state | remark |",
        "| --- | --- | --- |",
        *(f"| `{name}` | {state} | {remark} |" for name, state, remark in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(take_snapshot(), indent=1, sort_keys=True) + "\n")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table())
    print(compare()[1])
    print([row for row in compare()[0] if row[1] == "missing" or row[2].startswith("without")])
