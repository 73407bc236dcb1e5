"""``nbaccel test``: the self test, stage by stage."""

from __future__ import annotations

import sys
from typing import Any

import click

from nbaccel.cli import flags
from nbaccel.cli.launch_command import resolve_flags
from nbaccel.diagnosis import selftest


@click.command("test", context_settings={"token_normalize_func": flags.without_underscores})
@click.option(
    "--config-file", metavar="PATH", help="Settings, instead of NBACCEL_CONFIG_FILE and the user's."
)
@click.option("--cpu/--no-cpu", default=None, help="Run on the CPU even where there is an accelerator.")
@click.option("--gpu-ids", "--devices", "devices", metavar="IDS", help="Accelerators: 0,2 or idle or all.")
@click.option("--num-processes", metavar="N", help="Processes on all machines together.")
@click.option("--mixed-precision", metavar="P", help="no, fp16, bf16 or fp8.")
@click.option(
    "--num-machines", "--nnodes", "num_nodes", metavar="N", help="Machines that run this test together."
)
@click.option("--machine-rank", "--node-rank", "node_rank", metavar="I", help="Index of this one, from 0.")
@click.option("--main-process-ip", "--master-addr", "master_addr", metavar="IP", help="Address of machine 0.")
@click.option(
    "--main-process-port", "--master-port", "master_port", metavar="PORT", help="Port on machine 0."
)
@click.option("--start-method", metavar="HOW", help="How workers are started.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=selftest.TIMEOUT_S,
    show_default=True,
    help="Seconds for each stage.",
)
def command(timeout: float, **given: Any) -> None:
    """Try out, in stages, whether training works as configured.

    Prints each stage when it starts and how it ended. The exit code is 1 when a stage fails; it says on
    which rank, and what to try.
    """
    outcomes = selftest.run_stages(
        lambda: resolve_flags(given), timeout_s=timeout, stages=selftest.STAGES, on_start=_say_start
    )
    failed: selftest.Outcome | None = None
    total = 0.0
    for outcome in outcomes:
        _say(outcome)
        total += outcome.seconds
        failed = None if outcome.ok else outcome
    if failed is not None:
        click.echo(f"nbaccel test: stage {failed.stage.name!r} failed")
        sys.exit(1)
    click.echo(f"nbaccel test: all {len(selftest.STAGES)} stages passed in {total:.1f} s")


def _say_start(stage: selftest.Stage) -> None:
    click.echo(f"{stage.name:14}", nl=False)
    sys.stdout.flush()


def _say(outcome: selftest.Outcome) -> None:
    mark = click.style("ok", fg="green") if outcome.ok else click.style("FAILED", fg="red", bold=True)
    first, _, rest = outcome.text.partition("\n")
    click.echo(f" {mark:6} {outcome.seconds:5.1f} s  {first}")
    if outcome.ok:
        return
    for text in (rest, outcome.details):
        if text.strip():
            click.echo("\n".join(f"    {line}" for line in text.rstrip().splitlines()))
    click.echo(f"    What to try: {outcome.stage.advice}")
