"""The program: its commands, each loaded when it is used, and what an error looks like."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

import nbaccel
from nbaccel.cli import completion
from nbaccel.cli.refusal import translated

_COMMANDS = {
    "config": ("nbaccel.cli.config_command", "Choose what to run on, and keep it in a file."),
    "launch": ("nbaccel.cli.launch_command", "Run a script on several processes."),
    "test": ("nbaccel.cli.test_command", "Try out, in stages, whether training works as configured."),
    "env": ("nbaccel.cli.env_command", "Show each setting with its origin, versions and devices."),
    "export": ("nbaccel.cli.export_command", "Make a script of a notebook."),
}


class Commands(click.Group):
    """Knows the commands' names and summaries; imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(_COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        with translated():
            return super().invoke(ctx)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Completion of words in your shell: nbaccel --completion bash|zsh|fish",
)
@click.version_option(nbaccel.__version__, "-V", "--version", prog_name="nbaccel")
@click.option(
    "--completion",
    type=click.Choice(completion.SHELLS),
    expose_value=False,
    is_eager=True,
    callback=completion.show,
    help="Print what makes the shell complete nbaccel's words, and end.",
)
def application() -> None:
    """PyTorch training on everything the machine has."""
