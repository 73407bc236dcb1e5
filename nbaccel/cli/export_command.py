"""``nbaccel export``: a notebook's training as a script."""

from __future__ import annotations

from pathlib import Path

import click

from nbaccel.cli import console
from nbaccel.cli.refusal import Refused


@click.command("export")
@click.argument("notebook", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The script. Default: the notebook's name."
)
@click.option("--function", metavar="NAME", help="The training function; the script calls it.")
@click.option("--tag", help="Take the cells with this tag. Default: export.")
@click.option("-f", "--force", is_flag=True, help="Write over a file that is there.")
def command(notebook: Path, output: Path | None, function: str | None, tag: str | None, force: bool) -> None:
    """Write a script of NOTEBOOK that nbaccel launch runs: the chosen cells and those that they need.

    Chosen are the cells tagged export, else the %%accelerate cells, else the cell that calls
    notebook_launcher. With -o - the script goes to standard output.
    """
    from nbaccel.export.script import make_script

    if function is not None and tag is not None:
        raise Refused("--function and --tag contradict each other; leave one of them out")
    script = make_script(notebook, function=function, tag=tag)
    if str(output) == "-":
        click.echo(script.text, nl=False)
    else:
        target = output or notebook.with_suffix(".py")
        try:
            with target.open("w" if force else "x", encoding="utf-8") as file:
                file.write(script.text)
        except FileExistsError:
            raise Refused(f"{target} is there already; say --force to write over it, or -o another") from None
        except OSError as error:
            raise Refused(f"{target} can't be written: {error.strerror}") from error
        numbers = ", ".join(map(str, script.cells))
        click.echo(f"nbaccel: {target} has cells {numbers} of {notebook}; run it: nbaccel launch {target}")
    console.warn(script.remarks)
