"""The self test: does training work here as it is configured? In stages, each with its own time limit.

::

    settings ─▶ devices ─▶ start ─▶ group ─▶ communication ─▶ data ─▶ training ─▶ script
                            └───────── fresh workers for each stage ─────────┘

A stage that fails ends the test: the later ones stand on it. Each failure names the stage, the rank where
one is to blame, and what to try. With several machines each runs the test at the same time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbaccel import config
from nbaccel.config import LaunchSpec, Resolved
from nbaccel.diagnosis import checks
from nbaccel.errors import LaunchTimeout, WorkerError
from nbaccel.launch.failures import describe_ranks
from nbaccel.launch.request.rendezvous import DEFAULT_MULTI_NODE_PORT

TIMEOUT_S = 120.0
"""Of each stage. The first use of a GPU and of NCCL takes tens of seconds on some machines."""


@dataclass(frozen=True)
class Stage:
    """A name, what is done, and what to try when it fails."""

    name: str
    advice: str
    run: Callable[[Plan], str]
    """Returns a line about what was found; raises when it is wrong."""


@dataclass(frozen=True)
class Plan:
    """What is tested."""

    resolve: Callable[[], Resolved]
    timeout_s: float
    found: dict[str, Any]
    """What earlier stages have found out, by name."""

    @property
    def settings(self) -> Resolved:
        settings = self.found["settings"]
        assert isinstance(settings, Resolved)
        return settings

    @property
    def spec(self) -> LaunchSpec:
        spec = self.found["spec"]
        assert isinstance(spec, LaunchSpec)
        return spec

    def next_port(self) -> int:
        """A port of its own for each stage.

        Machines don't start a stage at the same moment, and one that is early must not meet the store of
        the stage before.
        """
        used = int(self.found.get("ports_used", 0))
        self.found["ports_used"] = used + 1
        return int(self.settings["master_port"] or DEFAULT_MULTI_NODE_PORT) + used


@dataclass(frozen=True)
class Outcome:
    """How a stage went."""

    stage: Stage
    seconds: float
    text: str
    """What was found, or what is wrong."""

    ok: bool
    details: str = ""
    """Where each rank was, or the worker's traceback."""


def run_stages(
    resolve: Callable[[], Resolved] = config.resolve,
    *,
    timeout_s: float = TIMEOUT_S,
    stages: Sequence[Stage] | None = None,
    on_start: Callable[[Stage], None] = lambda _: None,
) -> Iterator[Outcome]:
    """Run the stages one after the other, up to the first that fails.

    Args:
        resolve: finds the settings to test.
        timeout_s: seconds for each stage.
        stages: by default :data:`STAGES`.
        on_start: told of each stage before it runs.

    Yields:
        The outcome of each stage, when it is over.
    """
    plan = Plan(resolve, timeout_s, {})
    for stage in STAGES if stages is None else stages:
        on_start(stage)
        started = time.monotonic()
        try:
            text, ok, details = stage.run(plan), True, ""
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
            text, ok, details = _told(error, timeout_s), False, _details(error)
        yield Outcome(stage, time.monotonic() - started, text, ok, details)
        if not ok:
            return


def on_workers(function: Callable[[], Any], say: Callable[[list[Any]], str]) -> Callable[[Plan], str]:
    """A stage's ``run``: ``function`` on fresh workers, and a line about what they returned.

    Args:
        function: run on each rank; its value must be picklable.
        say: makes the line of the values, one a rank of this machine.
    """

    def run(plan: Plan) -> str:
        return say(launch(function, plan))

    return run


def launch(function: Callable[[], Any], plan: Plan) -> list[Any]:
    """Run ``function`` on the workers that are configured; returns a value for each rank of this machine."""
    from nbaccel.launch import notices
    from nbaccel.launch.launcher import notebook_launcher

    spec, settings = plan.spec, plan.settings
    several: dict[str, Any] = {}
    if spec.num_nodes > 1:
        several = {"master_addr": settings["master_addr"], "use_port": plan.next_port()}
    with notices.unannounced():
        values = notebook_launcher(
            function,
            num_processes=spec.num_processes,
            mixed_precision=spec.mixed_precision,
            cpu=spec.device_type == "cpu",
            devices=spec.devices or None,
            num_nodes=spec.num_nodes,
            node_rank=spec.node_rank,
            start_method=settings["start_method"],
            output="main",
            returns="all",
            timeout=plan.timeout_s,
            **several,
        )
    assert isinstance(values, list)
    return values


# --- the stages -------------------------------------------------------------------------------------


def _settings(plan: Plan) -> str:
    settings = plan.found["settings"] = plan.resolve()
    said = [
        f"{name}={config.SETTINGS[name].shown(each.value)} ({each.place})"
        for name, each in settings.values.items()
        if each.origin is not config.Origin.DEFAULT
    ]
    return "; ".join(said) if said else "nothing is configured: the defaults hold"


def _devices(plan: Plan) -> str:
    from nbaccel.launch.request.resolve import describe, spec_of

    spec = plan.found["spec"] = spec_of(plan.settings)
    return f"{describe(spec)}, W={spec.world_size}"


def _hello(facts: list[Any]) -> str:
    expected = list(range(facts[0]["rank"], facts[0]["rank"] + len(facts)))
    if [each["rank"] for each in facts] != expected:
        raise AssertionError(
            f"the ranks that answered are {[each['rank'] for each in facts]}, not {expected}"
        )
    return f"{len(facts)} of {facts[0]['world_size']} ranks on {facts[0]['host']} have answered"


def _script(plan: Plan) -> str:
    """A script by ``nbaccel launch``, as a user would start it."""
    spec = plan.spec
    if spec.device_type in ("xla", "tpu"):
        return f"left out: on {spec.hardware} a script starts its own workers"
    command = [
        sys.executable,
        "-m",
        "nbaccel",
        "launch",
        "--quiet",
        "--nproc-per-node",
        str(spec.num_processes),
    ]
    command += ["--cpu"] if spec.device_type == "cpu" else ["--devices", ",".join(map(str, spec.devices))]
    command += ["--num-machines", str(spec.num_nodes), "--machine-rank", str(spec.node_rank)]
    if spec.num_nodes > 1:
        command += ["--main-process-ip", plan.settings["master_addr"]]
        command += ["--main-process-port", str(plan.next_port())]
    with tempfile.TemporaryDirectory(prefix="nbaccel-test-") as folder:
        script = Path(folder) / "hello.py"
        script.write_text("import os\nprint('rank', os.environ['RANK'], 'is here', flush=True)\n")
        done = _run_bounded([*command, str(script)], plan.timeout_s)
    answered = sum("is here" in line for line in done.stdout.splitlines())
    if done.returncode != 0 or answered != spec.num_processes:
        raise AssertionError(
            f"nbaccel launch ended with exit code {done.returncode}, and {answered} of {spec.num_processes} "
            f"ranks have answered; it said: {done.stderr.strip()[-2000:] or 'nothing'}"
        )
    return f"nbaccel launch: {answered} ranks have answered"


def _run_bounded(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command; it and its workers are gone when the time is over."""
    process = subprocess.Popen(  # noqa: S603  # made here, of checked settings
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_plain_environ(os.environ)
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()  # its workers end with it
        process.communicate()
        raise LaunchTimeout(f"nbaccel launch was not over after {timeout_s:g} s") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _plain_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the settings, which are on the command line already."""
    mine = {each.variable for each in config.SETTINGS.values()}
    return {name: value for name, value in environ.items() if name not in mine}


STAGES: tuple[Stage, ...] = (
    Stage("settings", "Correct the value where the message says, or see them all: nbaccel env", _settings),
    Stage(
        "devices",
        "Ask for what is there (see nbaccel env), or run on the CPU: --cpu",
        _devices,
    ),
    Stage(
        "start",
        "Workers don't come up. Another way of starting them may work: --start-method spawn. With several "
        "machines: is the test running on each, and do the first one's ports (the configured one and the "
        "next five) let them in?",
        on_workers(checks.say_hello, _hello),
    ),
    Stage(
        "group",
        "The ranks don't find each other, or a device can't be opened. On one machine, look for variables "
        "such as NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME (nbaccel env) and unset them; between machines a "
        "firewall or a wrong address is likely; for a GPU, see nvidia-smi",
        on_workers(
            checks.bring_up,
            lambda facts: f"on {', '.join(each['device'] for each in facts)}, {facts[0]['precision']}",
        ),
    ),
    Stage(
        "communication",
        "Collectives hang or go wrong. With GPUs try NCCL_P2P_DISABLE=1 (virtual machines), then "
        "NCCL_DEBUG=INFO to see what NCCL does",
        on_workers(
            checks.communicate, lambda facts: f"{facts[0]['gathered']} values gathered, sums are right"
        ),
    ),
    Stage(
        "data",
        "A sharded loader gives wrong samples. Please report it with the output of nbaccel env",
        on_workers(checks.load_data, lambda facts: f"each of {facts[0]['samples']} samples once"),
    ),
    Stage(
        "training",
        "Try --mixed-precision no; if that works, this device doesn't do the precision well",
        on_workers(
            checks.train,
            lambda facts: f"loss {facts[0]['first_loss']:.3f} -> {facts[0]['last_loss']:.3f}, ranks agree",
        ),
    ),
    Stage("script", "Notebooks work, scripts don't. Try nbaccel launch --debug on a small script", _script),
)


def _told(error: Exception, timeout_s: float) -> str:
    rank = getattr(error, "rank", None)
    who = "" if rank is None else f"rank {rank}: "
    if isinstance(error, LaunchTimeout):
        first, newline, stacks = str(error).partition("\n")
        if not first.startswith("not over after"):
            first = f"not over after {timeout_s:g} s: {first}"
        return first + _who_is_elsewhere(stacks) + newline + stacks
    kind = "" if isinstance(error, (AssertionError, WorkerError, ValueError)) else f"{type(error).__name__}: "
    return f"{who}{kind}{error}"


def _details(error: Exception) -> str:
    return str(getattr(error, "remote_traceback", "") or "")


def _who_is_elsewhere(stacks: str) -> str:
    """Of ranks that were still at work, those that don't wait in a collective: the others wait for them."""
    headed = re.split(r"^--- rank (\d+) ---$", stacks, flags=re.MULTILINE)[1:]
    waits = {
        int(rank): "torch/distributed/" in text for rank, text in zip(headed[::2], headed[1::2], strict=True)
    }
    elsewhere = [rank for rank, is_waiting in waits.items() if not is_waiting]
    if not elsewhere or len(elsewhere) == len(waits):
        return ""
    return f"; {describe_ranks(elsewhere)} did not come to where the others wait"
