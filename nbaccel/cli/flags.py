"""The flags of ``nbaccel launch``, and a command class that reads them as its users write them.

``--num-processes 2``, ``--num_processes=2``: dashes or underscores, a space or an equals sign. Names are
never abbreviated. The first word that is no flag is the script; everything after it is the script's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import click

from nbaccel.cli import left_out

SCRIPT, WHERE, HOW_MANY, MACHINES, RUN = (
    "What to run",
    "What to run on",
    "How",
    "Several machines",
    "The run",
)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class LaunchCommand(click.Command):
    """Flags in sections; ``accelerate launch``'s other flags are refused with their reason."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            what = left_out.reason(error.option_name)
            if what is None:
                raise
            raise click.UsageError(f"{error.option_name}: nbaccel leaves out {what}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if record is not None:
                sections[getattr(each, "section", RUN)].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Flag(click.Option):
    """A flag that knows its section, and by which name it is spoken of."""

    def __init__(self, *args: Any, section: str = RUN, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


def _flag(section: str, *names: str, **kwargs: Any) -> Decorator:
    return click.option(*names, cls=Flag, section=section, **kwargs)


def _only_no(ctx: click.Context, _flag: click.Parameter, value: str | None) -> None:
    if value is not None and value.lower() != "no":
        raise click.UsageError(
            f"--dynamo-backend {value}: nbaccel leaves out {left_out.reason('dynamo-backend')}", ctx
        )


_FLAGS: tuple[Decorator, ...] = (
    _flag(SCRIPT, "-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m."),
    _flag(SCRIPT, "--no-python", is_flag=True, help="SCRIPT is a program of any kind."),
    _flag(WHERE, "--cpu/--no-cpu", default=None, help="Run on the CPU even where there is an accelerator."),
    _flag(
        WHERE, "--gpu-ids", "--devices", "devices", metavar="IDS", help="Accelerators: 0,2 or idle or all."
    ),
    _flag(WHERE, "--multi-gpu", is_flag=True, help="Refuse to run on fewer than two accelerators."),
    _flag(
        WHERE,
        "--num-processes",
        metavar="N",
        help="Processes on all machines together. Default: one for each accelerator, else 1.",
    ),
    _flag(
        WHERE,
        "--nproc-per-node",
        metavar="N",
        help="Processes on this machine, as torchrun counts.",
    ),
    _flag(HOW_MANY, "--mixed-precision", metavar="P", help="no, fp16, bf16 or fp8."),
    _flag(HOW_MANY, "--fp16", is_flag=True, help="Short for --mixed-precision fp16."),
    _flag(HOW_MANY, "--bf16", is_flag=True, help="Short for --mixed-precision bf16."),
    _flag(
        HOW_MANY,
        "--gradient-accumulation-steps",
        metavar="N",
        help="Micro-batches for each optimizer step, where the script doesn't say.",
    ),
    _flag(
        HOW_MANY,
        "--num-cpu-threads-per-process",
        "num_cpu_threads",
        metavar="N",
        help="Threads of each process. Default: OMP_NUM_THREADS, else cores / processes.",
    ),
    _flag(MACHINES, "--num-machines", "--nnodes", "num_nodes", metavar="N", help="Machines that take part."),
    _flag(
        MACHINES, "--machine-rank", "--node-rank", "node_rank", metavar="I", help="Index of this one, from 0."
    ),
    _flag(
        MACHINES,
        "--main-process-ip",
        "--master-addr",
        "master_addr",
        metavar="IP",
        help="Address of machine 0.",
    ),
    _flag(
        MACHINES,
        "--main-process-port",
        "--master-port",
        "--use-port",
        "master_port",
        metavar="PORT",
        help="Port on machine 0 where all meet. On one machine a free one is taken.",
    ),
    _flag(MACHINES, "--rdzv-backend", metavar="B", help="static (default) or c10d."),
    _flag(MACHINES, "--rdzv-endpoint", metavar="HOST:PORT", help="Instead of address and port."),
    _flag(MACHINES, "--rdzv-id", metavar="ID", help="Name of the job; machines of one job say the same."),
    _flag(MACHINES, "--rdzv-conf", metavar="K=V,...", help="Options of torch's rendezvous, e.g. timeout=60."),
    _flag(MACHINES, "--standalone", is_flag=True, help="One machine, a free port: the default, said aloud."),
    _flag(
        RUN, "--config-file", metavar="PATH", help="Settings, instead of NBACCEL_CONFIG_FILE and the user's."
    ),
    _flag(RUN, "--strict", is_flag=True, help="An unknown key in the config file is an error."),
    _flag(RUN, "--output", metavar="WHOSE", help="Lines of all ranks (default), of the main one, or none."),
    _flag(RUN, "--log-dir", metavar="DIR", help="Also write a file a rank with all it says."),
    _flag(RUN, "--max-restarts", metavar="N", help="How often to start anew after a failure."),
    _flag(RUN, "--monitor-interval", type=float, default=0.1, help="Seconds between looks at the processes."),
    _flag(RUN, "-q", "--quiet", is_flag=True, help="Say nothing but errors."),
    _flag(RUN, "--debug", is_flag=True, help="Show the log of torch's elastic agent."),
    # Understood and without effect: what they describe is found out, or the same either way.
    _flag(RUN, "--same-network", is_flag=True, hidden=True, expose_value=False),
    _flag(RUN, "--main-training-function", hidden=True, expose_value=False),
    _flag(RUN, "--no-tpu-cluster", is_flag=True, hidden=True, expose_value=False),
    _flag(RUN, "--dynamo-backend", hidden=True, expose_value=False, callback=_only_no),
    _flag(RUN, "--role", default="default", hidden=True),
    _flag(RUN, "-t", "--tee", hidden=True, expose_value=False),
    _flag(RUN, "-r", "--redirects", hidden=True, expose_value=False),
)


def launch_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the command with all flags, in the order in which help shows them."""
    for decorator in reversed(_FLAGS):
        function = decorator(function)
    return function


def without_underscores(name: str) -> str:
    """How flags are compared."""
    return name.replace("_", "-")
