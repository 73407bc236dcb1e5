"""What each worker of a launch takes on before user code runs: its place, its environment, its devices."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from nbaccel.config import LaunchSpec
from nbaccel.launch.devices import worker_environ
from nbaccel.launch.group import xla
from nbaccel.launch.request.rendezvous import Rendezvous
from nbaccel.launch.system import process
from nbaccel.launch.transport import messages
from nbaccel.runtime.environment import ProcessEnvironment

MEETING_TIMEOUT_S = 1800.0
"""How long machines wait for each other at most; a process group of torch's waits as long."""

MEETING_SHARE = 0.8
"""Of the time that the launch may take."""

_THREADS = "OMP_NUM_THREADS"


def setup_maker(
    spec: LaunchSpec,
    rendezvous: Rendezvous,
    further_environ: Mapping[str, str],
    marks_secret: bytes,
    *,
    stays: bool = False,
    timeout: float | None = None,
) -> Callable[[int], messages.Setup]:
    """A function from local rank to setup. This process's environment is read once, now.

    Args:
        spec: what the launch runs on.
        rendezvous: where the ranks meet.
        further_environ: variables that workers have besides this process's.
        marks_secret: what the workers' marks in their output start with.
        stays: they belong to a session.
        timeout: seconds that the launch may take.

    Raises:
        ValueError: the variable that hides devices can't be narrowed to the chosen ones.
        LaunchError: ports that the processes of a TPU need are taken.
    """
    inherited = {**os.environ, **further_environ}
    inherited.update(worker_environ(spec.device_type, spec.devices, inherited))
    # A worker sees the chosen devices and no others, so it counts them from 0.
    spec_of_worker = replace(spec, devices=tuple(range(len(spec.devices))))
    num_threads = _asked_threads(inherited)
    if num_threads is None:
        num_threads = max(1, process.usable_cores() // spec.num_processes)
        inherited[_THREADS] = str(num_threads)
    of_process = xla.environ_maker(spec, inherited)
    meeting = rendezvous.environ()
    interfaces = {name: value for name, value in meeting.items() if name.endswith("_IFNAME")}
    address = {name: value for name, value in meeting.items() if name not in interfaces}
    main_file = getattr(sys.modules["__main__"], "__file__", None)

    def setup(local_rank: int) -> messages.Setup:
        place = ProcessEnvironment(
            rank=spec.node_rank * spec.num_processes + local_rank,
            local_rank=local_rank,
            world_size=spec.world_size,
            local_world_size=spec.num_processes,
        )
        own, unwanted = of_process(local_rank // spec.threads_per_process)
        # Threads of one process share its environment, which can't tell them who they are.
        who = place.to_environ() if spec.threads_per_process == 1 else {}
        return messages.Setup(
            spec=spec_of_worker,
            place=place,
            # What the user set goes before our choices, and a worker's place before what the user set.
            environ={
                **interfaces,
                **{name: value for name, value in inherited.items() if name not in unwanted},
                **who,
                **address,
                **own,
            },
            cwd=process.working_folder(),
            path=process.import_path(),
            argv=tuple(sys.argv),
            main_file=main_file,
            num_threads=num_threads,
            marks_secret=marks_secret,
            stays=stays,
            meeting_timeout=_meeting_timeout(timeout) if spec.num_nodes > 1 else None,
        )

    return setup


def _meeting_timeout(timeout: float | None) -> float:
    """Less than the launch may take: that error could tell only where ranks are, not who has not come."""
    longest = MEETING_TIMEOUT_S
    return longest if timeout is None else min(longest, MEETING_SHARE * timeout)


def _asked_threads(environ: Mapping[str, str]) -> int | None:
    """What the user set, of a list for nested levels the first; None: nothing that means a number."""
    asked = re.match(r"\s*([1-9]\d*)\s*(,|$)", environ.get(_THREADS, ""), re.ASCII)
    return int(asked[1]) if asked else None
