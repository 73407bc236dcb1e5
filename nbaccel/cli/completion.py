"""Completion of words in a shell: the lines to put into its start file."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")

_VARIABLE = "_NBACCEL_COMPLETE"


def show(ctx: click.Context, _option: click.Parameter, shell: str | None) -> None:
    """Print the completion script for ``shell``, and end the program."""
    if shell is None or ctx.resilient_parsing:
        return
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.command, {}, "nbaccel", _VARIABLE).source())
    ctx.exit()
