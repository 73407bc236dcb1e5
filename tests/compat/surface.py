"""The public surface of the incumbent, next to ours. Run as a script to renew the files.

``incumbent.json`` holds names and argument names only, so that the comparison needs no install of it.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import torch

from nbaccel.left_out import LEFT_OUT_MODULES, reason_for

HERE = Path(__file__).parent
SNAPSHOT = HERE / "incumbent.json"
TABLE = HERE.parent.parent / "docs" / "compatibility.md"

WHOLE = ("", ".utils")
"""Modules whose names count wherever they are defined: what scripts import from."""
SKIPPED = (".commands.", ".test_utils.", ".utils.rich")
"""Below modules that are left out as a whole; and one that needs a library of its own to be imported."""
CLASSES = (
    "Accelerator", "PartialState", "AcceleratorState", "GradientState", "AcceleratedOptimizer",
    "AcceleratedScheduler", "GeneralTracker", "LocalSGD", "DataLoaderShard", "DataLoaderDispatcher",
    "BatchSamplerShard", "IterableDatasetShard", "SeedableRandomSampler",
)  # fmt: skip
PLUGINS = (
    "AutocastKwargs", "DataLoaderConfiguration", "DistributedDataParallelKwargs", "GradScalerKwargs",
    "GradientAccumulationPlugin", "InitProcessGroupKwargs", "ProfileKwargs", "ProjectConfiguration",
    "TorchDynamoPlugin",
)  # fmt: skip


def take_snapshot() -> dict[str, Any]:
    """Names, argument names and attributes of the installed incumbent."""
    import accelerate

    found: dict[str, Any] = {"version": accelerate.__version__, "modules": {}, "names": {}, "classes": {}}
    for suffix in _modules(accelerate):
        module = importlib.import_module(f"accelerate{suffix}")
        found["modules"][suffix] = names = [n for n in sorted(dir(module)) if _counts(module, n, suffix)]
        for name in names:
            value = getattr(module, name)
            found["names"].setdefault(name, arguments(value))
            if name in CLASSES:
                found["classes"][name] = {member: arguments_of(value, member) for member in members(value)}
    found["attributes"] = {kind: attributes(each) for kind, each in specimens("accelerate").items()}
    return found


def _modules(package: Any) -> list[str]:
    every = [
        m.name.removeprefix("accelerate") for m in pkgutil.walk_packages(package.__path__, "accelerate.")
    ]
    return ["", *(suffix for suffix in sorted(every) if not f"{suffix}.".startswith(SKIPPED))]


def _counts(module: Any, name: str, suffix: str) -> bool:
    value = getattr(module, name)
    if name.startswith("_") or inspect.ismodule(value):
        return False
    if name.isupper():  # a constant
        return suffix in (".utils", ".utils.constants")
    return _belongs(value) if suffix in WHOLE else getattr(value, "__module__", "") == module.__name__


def specimens(package: str) -> dict[str, Any]:
    """An object of each class that a script holds in its hands, made in the way of scripts."""
    top, state, utils, data = (
        importlib.import_module(f"{package}{suffix}") for suffix in ("", ".state", ".utils", ".data_loader")
    )
    accelerator = top.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(list(range(4)))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    _, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    return {
        "Accelerator": accelerator,
        "AcceleratorState": accelerator.state,
        "PartialState": state.PartialState(),
        "GradientState": accelerator.gradient_state,
        "AcceleratedOptimizer": optimizer,
        "AcceleratedScheduler": scheduler,
        "DataLoaderShard": loader,
        "DataLoaderDispatcher": data.DataLoaderDispatcher(list(range(4))),
        **{name: getattr(utils, name)() for name in PLUGINS},
    }


def attributes(specimen: Any) -> list[str]:
    """What the object itself holds, apart from what its class shows."""
    return sorted(name for name in vars(specimen) if not name.startswith("_"))


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
    # How an Enum is called is Python's affair, and differs between its releases.
    if not callable(value) or (inspect.isclass(value) and issubclass(value, (Exception, enum.Enum))):
        return None
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in named if name != "self" and not name.startswith("_")]


def ours(suffix: str, name: str) -> Any:
    """Our object of that name, in the module of that name; None when there is none."""
    if below(suffix) in LEFT_OUT_MODULES:
        return None
    return getattr(importlib.import_module(f"nbaccel{suffix}"), name, None)


def below(suffix: str) -> str:
    """The path of a module below its package."""
    return suffix.removeprefix(".")


def compare() -> tuple[list[tuple[str, str, str]], dict[str, int]]:
    """Rows of name, state and remark; and how many there are of each state."""
    snapshot = json.loads(SNAPSHOT.read_text())
    rows: list[tuple[str, str, str]] = []
    home: dict[str, Any] = {}
    for suffix, names in snapshot["modules"].items():
        module_reason = LEFT_OUT_MODULES.get(below(suffix))
        for name in names:
            mine = ours(suffix, name)
            row = _row(name, mine, snapshot["names"][name], module_reason)
            home.setdefault(name, mine)
            if row not in rows and not (module_reason and any(r[0] == name for r in rows)):
                rows.append(row)
    mine_made = specimens("nbaccel")
    for kind, its_members in snapshot["classes"].items():
        for member, expected in its_members.items():
            value = getattr(home[kind], member, None)
            if value is None and hasattr(mine_made.get(kind), member):
                rows.append((f"{kind}.{member}", "here", ""))
            else:
                rows.append(_row(f"{kind}.{member}", value, expected))
    for kind, held in snapshot["attributes"].items():
        for name in held:
            there = True if hasattr(mine_made[kind], name) else None
            rows.append(_row(f"{kind}.{name}", there, None))
    rows = sorted(set(rows), key=lambda row: ("." in row[0], row))
    counts = {state: sum(row[1] == state for row in rows) for state in ("here", "left out", "missing")}
    return rows, counts


def _row(
    name: str, mine: Any, expected: list[str] | None, module_reason: str | None = None
) -> tuple[str, str, str]:
    if mine is None:
        why = reason_for(name) or module_reason
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
        "",
        "## Modules",
        "",
        "Names are to be imported from the module of the same path. A name or module that is left out",
        "says so, with the reason, when it is imported.",
        "",
        "| module | state | remark |",
        "| --- | --- | --- |",
        *(_module_row(suffix) for suffix in snapshot["modules"] if suffix),
    ]
    return "\n".join(lines) + "\n"


def _module_row(suffix: str) -> str:
    reason = LEFT_OUT_MODULES.get(below(suffix))
    return f"| `nbaccel{suffix}` | {'left out' if reason else 'here'} | {reason or ''} |"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(take_snapshot(), indent=1, sort_keys=True) + "\n")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table())
    print(compare()[1])
    print([row for row in compare()[0] if row[1] == "missing" or row[2].startswith("without")])
