"""``notebook_launcher``: run a function of the notebook on N fresh processes.

Checks and resolves what was asked for before anything starts, then hands on to the group and its
supervisor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbaccel.config import LaunchSpec, UnsaidInt, UnsaidText
from nbaccel.launch import notices
from nbaccel.launch.failures import hide_our_frames
from nbaccel.launch.group import spawners, xla
from nbaccel.launch.group.group import WorkerGroup
from nbaccel.launch.output.router import Router
from nbaccel.launch.payload import capture, payload
from nbaccel.launch.payload.payload import Payload
from nbaccel.launch.progress import progress as progress_watch
from nbaccel.launch.progress.progress import ProgressWatch
from nbaccel.launch.request import arguments
from nbaccel.launch.request.options import LaunchOptions, check_options
from nbaccel.launch.request.rendezvous import open_rendezvous
from nbaccel.launch.request.resolve import describe, settings_of, spec_of
from nbaccel.launch.request.setups import setup_maker
from nbaccel.launch.supervision.supervision import Interrupts, Supervisor, import_torch
from nbaccel.launch.zygotes import prewarm
from nbaccel.spelling import known_arguments

ELSEWHERE = {
    "nprocs": "write num_processes=...",
    "num_gpus": "write num_processes=...",
    "gpus": "write num_processes=..., or devices=[...] for certain ones",
    "gpu_ids": "write devices=[...]",
    "fp16": "write mixed_precision='fp16'",
    "bf16": "write mixed_precision='bf16'",
    "backend": "write Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend=...)]) in the function",
}
"""Arguments as other launchers call them, and what to write here."""

OF_THE_FUNCTION = "what the function itself takes goes into args=(...,) or kwargs={{'{name}': ...}}"
"""For any other name, which is most often one of the function's."""


@known_arguments(ELSEWHERE, OF_THE_FUNCTION)
def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str | None = None,
    use_port: int | str | None = None,
    master_addr: str = UnsaidText("127.0.0.1"),
    node_rank: int = UnsaidInt(0),
    num_nodes: int = UnsaidInt(1),
    rdzv_backend: str = UnsaidText("static"),
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = UnsaidInt(0),
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    devices: Sequence[int] | str | None = None,
    cpu: bool = False,
    start_method: str = UnsaidText("auto"),
    output: str = UnsaidText("all"),
    returns: str = "main",
    timeout: float | None = None,
    env: Mapping[str, Any] | None = None,
    progress: bool | str | None = None,
) -> Any:
    """Run ``function(*args, **kwargs)`` on ``num_processes`` fresh processes and return its value.

    The function, and whatever it uses of the notebook, is shipped by value; the kernel may have done
    anything before. Its standard streams appear in the cell, live, a label before each line. What the
    call doesn't say is taken from the configuration: the form, ``NBACCEL_*``, the config file.

    Args:
        function: what to run in each process. Pass the function, not the result of calling it.
        args: positional arguments, a tuple or list.
        num_processes: processes on this machine. None: all visible accelerators, else one.
        mixed_precision: ``no``, ``fp16``, ``bf16`` or ``fp8``, for each ``Accelerator()`` in the workers.
        use_port: port of the rendezvous; None takes a free one.
        master_addr: address of the first machine.
        node_rank: index of this machine, ``0 <= node_rank < num_nodes``.
        num_nodes: machines that take part; each runs this call with its own ``node_rank``.
        rdzv_backend: ``static``, or on one machine ``c10d``, which then means the same.
        rdzv_endpoint: ``host:port`` of the first machine, instead of ``master_addr`` and ``use_port``.
        rdzv_conf: checked and not used: there is nothing to configure.
        rdzv_id: checked and not used: each launch meets at a port of its own.
        max_restarts: how often to run the function anew after a failure.
        monitor_interval: checked and not used: events are awaited, not polled for.
        log_line_prefix_template: what stands before each line of a rank instead of the usual label;
            ``${role_name}``, ``${rank}`` and ``${local_rank}`` are filled in.
        kwargs: keyword arguments for the function.
        devices: numbers of the accelerators to use, one process each, e.g. ``[0, 2]``, as a fresh
            process counts them (so ``CUDA_VISIBLE_DEVICES`` is taken into account). ``"idle"``: the
            ``num_processes`` ones with the least memory in use; without ``num_processes``, all of which
            at most a tenth is in use. Workers see only the chosen ones, as ``cuda:0`` and on.
        cpu: run on the CPU even where there is an accelerator.
        start_method: ``auto``, ``zygote``, ``spawn`` or ``fork``.
        output: ``all`` ranks' lines, those of the ``main`` one, or ``none``. With ``NBACCEL_LOG_DIR``
            set, everything that rank N writes is also added to ``rank-N.log`` in that folder.
        returns: ``main``: what the first process returned; ``all``: a list, one value a rank of
            this machine.
        timeout: seconds after which the launch is stopped.
        env: further environment variables for the workers; values are texts, numbers or paths.
        progress: whether a live panel shows what each rank does, how far it is, and curves of what it
            logs. True, False, or None for the configured choice, by default ``auto``: when the function
            calls ``accelerator.log(...)``, or trains for some seconds.

    Returns:
        The function's value; tensors in it are on the CPU.

    Raises:
        TypeError: an argument of the wrong type, ``function`` can't be called with ``args`` and
            ``kwargs``, or something can't be sent to another process.
        ValueError: an argument's value is none of its choices or contradicts another's, or more
            processes than accelerators were asked for.
        OSError: ``use_port`` is in use.
        BaseException: what the worker raised that failed first, with ``.rank``.
        WorkerError: the worker's exception can't be rebuilt here.
        WorkerDied: a worker ended without a report.
        LaunchTimeout: not over after ``timeout`` seconds.
        KeyboardInterrupt: the cell was interrupted; the workers are gone.
    """
    __tracebackhide__ = True  # IPython leaves our frame out of the traceback
    try:
        arguments.check_call(function, args, kwargs)
        import_torch()
        further = arguments.check_env(env)
        settings = settings_of(
            num_processes=num_processes,
            mixed_precision=mixed_precision,
            devices=devices,
            cpu=cpu,
            num_nodes=num_nodes,
            node_rank=node_rank,
            env=further,
        )
        # Where to meet is configured for several machines; on one a free port is taken.
        meets = settings["num_nodes"] > 1
        options = check_options(
            use_port=settings["master_port"] if meets and use_port is None else use_port,
            master_addr=settings.prefer("master_addr", master_addr) if meets else master_addr,
            num_nodes=settings["num_nodes"],
            rdzv_backend=settings.prefer("rdzv_backend", rdzv_backend) if meets else rdzv_backend,
            rdzv_endpoint=rdzv_endpoint,
            rdzv_conf=rdzv_conf,
            rdzv_id=rdzv_id,
            max_restarts=settings.prefer("max_restarts", max_restarts),
            monitor_interval=monitor_interval,
            log_line_prefix_template=log_line_prefix_template,
            start_method=settings.prefer("start_method", start_method),
            output=settings.prefer("output", output),
            returns=returns,
            timeout=settings["timeout"] if timeout is None else timeout,
        )
        mode = progress_watch.mode_of(progress, settings)
        spec = spec_of(settings, further)
        xla.check_free(spec, {**os.environ, **further})
        parts = (function, tuple(args), dict(kwargs or {}))
        with payload.dump_call(parts) as call:
            capture.warn_if_large(parts, call, spec)
            attempts_left = options.max_restarts
            while True:
                try:
                    return _launch_once(spec, call, options, further, mode)
                except Exception as error:
                    if attempts_left <= 0:
                        raise
                    attempts_left -= 1
                    notices.warn(f"{type(error).__name__}: {error}; starting anew")
    except BaseException as error:
        # What a reader is shown: the cell, and the worker's frames if there are any.
        hide_our_frames(error)
        raise


@known_arguments(ELSEWHERE, OF_THE_FUNCTION)
def debug_launcher(function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2) -> Any:
    """:func:`notebook_launcher` on the CPU, for trying things out.

    Args:
        function: what to run in each process.
        args: positional arguments, a tuple or list.
        num_processes: processes on this machine.

    Returns:
        The function's value in the first process.
    """
    return notebook_launcher(function, args, num_processes, cpu=True)


def _launch_once(
    spec: LaunchSpec,
    call: Payload,
    options: LaunchOptions,
    further_environ: Mapping[str, str],
    progress: str,
) -> Any:
    first_rank = spec.node_rank * spec.num_processes
    ranks = range(first_rank, first_rank + spec.num_processes)
    router = Router(
        options.output, ranks, main_rank=first_rank, labels=options.labels(ranks), log_dir=spec.log_dir
    )
    try:
        rendezvous = open_rendezvous(
            options.master_addr, options.port, num_nodes=spec.num_nodes, node_rank=spec.node_rank
        )
    except BaseException as error:
        router.close(error)
        raise
    wants_all = options.returns == "all"
    watch: ProgressWatch | None = None
    try:
        notices.announce(describe(spec))
        setup = setup_maker(spec, rendezvous, further_environ, router.secret, timeout=options.timeout)
        # It may wait for imports; there is nothing to be stopped yet, so an interrupt may just be raised.
        spawner = spawners.of(options.start_method, call.modules)
        with (
            Interrupts() as interrupts,
            WorkerGroup(router) as group,
            group.listening_to(interrupts.fileno(), interrupts.clear),
        ):
            group.start(spawner, setup, spec.num_processes, spec.threads_per_process)
            supervisor = Supervisor(group, router, interrupts, options.timeout)
            if xla.is_used_by(spec):
                xla.bring_up(group, supervisor.wait)
            watch = ProgressWatch(progress, group, router, spec, {**os.environ, **further_environ})
            with watch:
                group.submit(1, call, lambda rank: wants_all or rank == first_rank)
                supervisor.wait()
                supervisor.shut_down()
            values = [m.value.load() for m in group.members if m.value is not None]
            interrupts.raise_if_any()
        value = values if wants_all else values[0]
    except BaseException as error:
        router.close(error)
        if watch is not None:
            watch.finish()
        raise
    finally:
        rendezvous.close()
    router.close()
    watch.finish()
    return value


prewarm.in_kernel()
