"""Runs a function on the replicas of torch_xla's CPU client: threads of one process, with real collectives.

``run_replicas(fn, n, *args)`` forks a process from a clean server, starts the runtime there with ``n``
devices, calls ``fn(*args)`` in one thread for each, and returns what they returned by ordinal. With one
replica nothing of torch_xla is changed; with several :mod:`tests.xla.cpu_replicas` is in use.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from tests.runtime.ranks import RankError, process_context, stacks_of

PRELOAD = [
    "torch_xla",
    "torch_xla.debug.metrics",
    "torch_xla.distributed.xla_multiprocessing",
    "tests.xla.replicas",
]


def run_replicas(fn: Callable[..., Any], n: int, *args: Any, timeout: float = 60, **env: str) -> list[Any]:
    """Call ``fn(*args)`` on ``n`` replicas and return their values by ordinal.

    ``fn`` may be a closure. ``env`` are further environment variables.
    """
    payload = cloudpickle.dumps((fn, args))
    ours, theirs = process_context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="nbaccel-replicas-") as folder:
        stacks = Path(folder, "0")
        process = process_context.Process(target=_main, args=(n, payload, env, str(stacks), theirs))
        process.start()
        theirs.close()
        try:
            if not ours.poll(timeout):
                raise TimeoutError(
                    f"replicas not done after {timeout} s\n{stacks_of([process], Path(folder))}"
                )
            try:
                ok, value = pickle.loads(ours.recv_bytes())
            except EOFError:
                process.join()
                raise RankError(f"the replicas' process died with exit code {process.exitcode}") from None
            if not ok:
                raise RankError(value)
            process.join(timeout)
            if process.exitcode != 0:
                raise RankError(f"the replicas returned, then ended with exit code {process.exitcode}")
            return value
        finally:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
            ours.close()


def _main(n: int, payload: bytes, env: dict[str, str], stacks: str, pipe: Connection) -> None:
    multiprocessing.set_start_method("fork", force=True)
    os.environ.update(env, CPU_NUM_DEVICES=str(n))
    lock = threading.Lock()

    def answer(ok: bool, value: Any) -> None:
        with lock:
            pipe.send_bytes(cloudpickle.dumps((ok, value)))

    with open(stacks, "w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        try:
            values = _on_each_device(n, payload, answer)
        except BaseException:
            answer(False, traceback.format_exc())
            os._exit(1)
        answer(True, values)
        # Not the interpreter's end: the runtime's threads may be anywhere.
        os._exit(0)


def _on_each_device(n: int, payload: bytes, answer: Callable[[bool, Any], None]) -> list[Any]:
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla._internal import pjrt

    pjrt.initialize_multiprocess(0, 1)
    devices = xm.get_xla_supported_devices()
    assert len(devices) == n
    # Autograd starts its threads with the first backward, which must be in the main thread.
    torch.ones((), device=devices[-1], requires_grad=True).backward()
    if n > 1:
        from tests.xla import cpu_replicas

        cpu_replicas.install()
    values: dict[int, Any] = {}

    def replica(device: str) -> None:
        torch_xla._XLAC._xla_set_default_device(device)
        try:
            # Each loads its own copy, as a process would.
            fn, args = pickle.loads(payload)
            values[torch_xla._XLAC._xla_get_device_ordinal(device)] = fn(*args)
        except BaseException:
            # At once: the others may be waiting in a collective for good.
            answer(False, f"replica on {device}\n{traceback.format_exc()}")
            os._exit(1)

    if n == 1:
        replica(devices[0])
    else:
        threads = [threading.Thread(target=replica, args=(device,)) for device in devices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [values[ordinal] for ordinal in range(n)]
