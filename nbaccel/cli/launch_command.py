"""``nbaccel launch``: from flags to a job."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from nbaccel import config
from nbaccel.cli import console, flags
from nbaccel.cli.refusal import Refused, translated
from nbaccel.config import Resolved

if TYPE_CHECKING:
    from nbaccel.cli.script.meeting import MeetingPoint
    from nbaccel.config import LaunchSpec

# Settings that a flag of the same name sets, and what the flag is called in messages.
_PLACES = {
    "cpu": "--cpu",
    "devices": "--gpu-ids",
    "mixed_precision": "--mixed-precision",
    "gradient_accumulation_steps": "--gradient-accumulation-steps",
    "num_cpu_threads": "--num-cpu-threads-per-process",
    "num_nodes": "--num-machines",
    "node_rank": "--machine-rank",
    "master_addr": "--main-process-ip",
    "master_port": "--main-process-port",
    "rdzv_backend": "--rdzv-backend",
    "output": "--output",
    "log_dir": "--log-dir",
    "max_restarts": "--max-restarts",
}

# What workers are told by the environment; the launch has acted on the other settings itself.
_FOR_WORKERS = ("mixed_precision", "cpu", "gradient_accumulation_steps")


@click.command(
    "launch",
    cls=flags.LaunchCommand,
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": flags.without_underscores,
    },
    options_metavar="[FLAGS]",
)
@flags.launch_flags
@click.argument("script", type=click.Path())
@click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT ARGS]...")
def command(script: str, script_args: tuple[str, ...], **given: Any) -> None:
    """Run SCRIPT on several processes; everything after SCRIPT is handed to it.

    The exit code is the script's own, 128 + N when signal N ended it. An interrupt is handed on to the
    script, which may handle it; a second one ends it.
    """
    _check_flags(given)
    settings = resolve_flags(given)
    if not given["quiet"]:
        console.warn(settings.warnings)
    from nbaccel.launch.request.resolve import describe, spec_of

    with translated(ValueError, RuntimeError):
        spec = spec_of(settings)
    if given["multi_gpu"] and len(spec.devices) < 2:
        raise Refused(
            f"--multi-gpu asks for at least two accelerators, and {len(spec.devices) or 'none'} would "
            "be used; leave the flag out"
        )
    if spec.device_type in ("xla", "tpu"):
        # Each process is told something else before it starts, and its runtime is started for it.
        raise Refused(
            f"{describe(spec)}: a script starts its own workers there; call notebook_launcher(train) in it "
            "and run it with python, or add --cpu"
        )
    sys.exit(_run(script, script_args, spec, settings, given))


def resolve_flags(given: dict[str, Any]) -> Resolved:
    """The settings with these flags in front of them.

    Raises:
        ConfigError: a wrong value, a contradiction, or a config file that can't be used.
    """
    explicit = {name: given.get(name) for name in _PLACES}
    places = dict(_PLACES)
    if given.get("cpu") is False:
        places["cpu"] = "--no-cpu"
    if given.get("multi_gpu"):
        explicit["cpu"], places["cpu"] = False, "--multi-gpu"
    for short in ("fp16", "bf16"):
        if given.get(short):
            explicit["mixed_precision"], places["mixed_precision"] = short, f"--{short}"
    options: dict[str, Any] = {"strict": bool(given.get("strict"))}
    if given.get("config_file"):
        options["file"] = given["config_file"]
    count, place = given.get("nproc_per_node"), "--nproc-per-node"
    if given.get("num_processes") is not None:
        nodes = config.resolve(explicit, places=places, **options)["num_nodes"]
        count, place = _share(given["num_processes"], nodes, count), "--num-processes"
    return config.resolve(
        {**explicit, "num_processes": count}, places={**places, "num_processes": place}, **options
    )


def _share(total: object, nodes: int, per_node: object) -> int:
    number = config.SETTINGS["num_processes"].check(total, "--num-processes")
    assert isinstance(number, int)
    if number % nodes:
        raise Refused(
            f"--num-processes {number} counts the processes of all machines, and can't be shared out equally "
            f"among {nodes}; say a multiple of {nodes}, or --nproc-per-node"
        )
    mine = number // nodes
    if per_node is not None:
        said = config.SETTINGS["num_processes"].check(per_node, "--nproc-per-node")
        if said != mine:
            raise Refused(
                f"--num-processes {number} ({mine} on each of {nodes} machines) contradicts --nproc-per-node "
                f"{said}; leave one of them out"
            )
    return mine


def _check_flags(given: dict[str, Any]) -> None:
    """Pairs of flags that can't both be meant."""
    precisions = {f"--{short}": short for short in ("fp16", "bf16") if given[short]}
    if given["mixed_precision"] is not None:
        said = given["mixed_precision"]
        precisions[f"--mixed-precision {said}"] = str(said).lower()
    pairs = (
        (given["module"], "--module", given["no_python"], "--no-python"),
        (given["cpu"], "--cpu", given["multi_gpu"], "--multi-gpu"),
        (given["standalone"], "--standalone", _more_than_one(given["num_nodes"]), "--num-machines"),
        (given["rdzv_endpoint"], "--rdzv-endpoint", given["master_addr"], "--main-process-ip"),
        (given["rdzv_endpoint"], "--rdzv-endpoint", given["master_port"], "--main-process-port"),
        (given["multi_gpu"], "--multi-gpu", given["num_processes"] == "1", "--num-processes 1"),
        (given["multi_gpu"], "--multi-gpu", given["nproc_per_node"] == "1", "--nproc-per-node 1"),
    )
    for one, its_name, other, other_name in pairs:
        if one and other:
            raise Refused(f"{its_name} and {other_name} contradict each other; leave one of them out")
    if len(set(precisions.values())) > 1:
        raise Refused(f"{' and '.join(precisions)} contradict each other; leave one of them out")


def _more_than_one(number: object) -> bool:
    return number is not None and number != "1"


def _run(
    script: str, script_args: tuple[str, ...], spec: LaunchSpec, settings: Resolved, given: dict[str, Any]
) -> int:
    from nbaccel.cli.script import job
    from nbaccel.errors import WorkerDied
    from nbaccel.launch import notices
    from nbaccel.launch.devices import worker_environ
    from nbaccel.launch.request.resolve import describe

    environ = worker_settings(spec) | worker_environ(spec.device_type, spec.devices)
    if settings["num_cpu_threads"] is not None:
        environ["OMP_NUM_THREADS"] = str(settings["num_cpu_threads"])
    if not given["quiet"]:
        notices.announce(describe(spec) + _origins(settings))
    try:
        job.run(
            job.Job(
                job.script_command(
                    script, script_args, is_module=given["module"], is_program=given["no_python"]
                ),
                # Each worker sees the chosen devices and no others.
                replace(spec, devices=tuple(range(len(spec.devices)))),
                environ,
                output=settings["output"],
                max_restarts=settings["max_restarts"],
                monitor_interval=given["monitor_interval"],
                meeting=_meeting(settings, given),
                role=given["role"],
                owns_process=True,
                debug=given["debug"],
            )
        )
    except WorkerDied as error:
        summary, _, tail = str(error).partition("\n")
        if not given["quiet"]:
            # A single process's last words stand right above.
            notices.warn(summary if spec.num_processes == 1 or not tail else f"{summary}\n{tail}")
        code = error.exitcode or 0
        return 128 - code if code < 0 else code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        raise Refused(str(error)) from error
    return 0


def worker_settings(spec: LaunchSpec) -> dict[str, str]:
    """What each worker's ``Accelerator()`` reads; an empty text takes a variable away."""
    told = {name: config.SETTINGS[name].shown(getattr(spec, name)) for name in _FOR_WORKERS}
    return {each.variable: told.get(name, "") for name, each in config.SETTINGS.items()}


def _origins(settings: Resolved) -> str:
    """Where the values come from that shape the run: `` (num_processes: --num-processes)``."""
    shown = ("num_processes", "devices", "cpu", "mixed_precision", "gradient_accumulation_steps", "num_nodes")
    told = [
        f"{name}: {settings.values[name].place}"
        for name in shown
        if config.Origin.EXPLICIT < settings.origin(name) < config.Origin.DEFAULT
    ]
    return f" ({'; '.join(told)})" if told else ""


def _meeting(settings: Resolved, given: dict[str, Any]) -> MeetingPoint:
    from nbaccel.cli.script.meeting import MeetingPoint

    address, port = settings["master_addr"], settings["master_port"]
    if given["rdzv_endpoint"]:
        address, _, tail = given["rdzv_endpoint"].rpartition(":")
        if not address or not tail.isdecimal():
            raise Refused(f"--rdzv-endpoint {given['rdzv_endpoint']} is not HOST:PORT, e.g. 10.0.0.1:29500")
        port = int(tail)
    options = {}
    for part in filter(None, (given["rdzv_conf"] or "").split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise Refused(f"--rdzv-conf {part} is not KEY=VALUE, e.g. timeout=60")
        options[key.strip()] = value.strip()
    return MeetingPoint(
        backend=settings["rdzv_backend"],
        address=address,
        port=port or None,
        run_id=given["rdzv_id"] or os.environ.get("TORCHELASTIC_RUN_ID") or "none",
        options=options,
    )
