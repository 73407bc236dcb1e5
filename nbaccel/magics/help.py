"""What the magics say of themselves: ``%accelerate`` alone, ``%%accelerate?``."""

from __future__ import annotations

from nbaccel.magics.options import OPTIONS

EXAMPLES = """\
Examples:
    %%accelerate --gpus 4 --bf16            the first such cell starts four workers
    from nbaccel import Accelerator
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    %%accelerate                            later ones find all that is there
    for batch in loader: ...
    model                                   the last expression is shown, once

    %%accelerate --cpu -n 2                 two workers on the CPU
    %%accelerate --ranks 0 --timeout 30     this cell on one worker, for half a minute at most
    %%accelerate -o history                 bring a name home, whatever it is
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("", "what each worker does, its device and memory"),
    "stacks": ("", "where each worker is, line by line"),
    "pull": ("NAME...", "bring names from the workers: rank 0's, on the CPU"),
    "push": ("NAME...", "send names to the workers, also those that they have changed"),
    "restart": ("", "end the workers; the next cell starts new ones"),
    "stop": ("", "end the workers"),
    "config": ("", "choose devices, number and precision in a form"),
    "env": ("", "each setting and where it comes from, versions, devices"),
    "test": ("", "try out, in stages, whether training works as configured"),
}
"""Command -> what follows it, what it does."""


def cell_help() -> str:
    """The text of ``%%accelerate?``."""
    rows = [
        (", ".join(option.names) + (f" {option.metavar}" if option.metavar else ""), option.help)
        for option in OPTIONS
    ]
    return "\n".join(
        [
            "Run a cell on live workers, which keep their state from cell to cell.",
            "",
            "Names of the notebook that the cell uses are sent when they are new or changed. Plain data",
            "that it binds comes home; models, optimizers and the like stay, and %accelerate pull brings",
            "them. An option that is left out means: as in the running session.",
            "",
            "Options:",
            *_table(rows),
            "",
            EXAMPLES,
        ]
    )


def line_help() -> str:
    """The text of ``%accelerate`` alone."""
    rows = [(f"%accelerate {name} {rest}".rstrip(), text) for name, (rest, text) in COMMANDS.items()]
    return "\n".join(["Workers of this notebook, for cells that start with %%accelerate.", "", *_table(rows)])


def _table(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows) + 2
    return [f"    {left.ljust(width)}{right}" for left, right in rows]
