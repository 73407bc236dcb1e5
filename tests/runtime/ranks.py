"""Runs a function on several real ranks: processes on gloo over loopback, forked from a clean server.

``run_ranks(fn, n, *args)`` returns what each rank returned. The first error of a rank is raised here,
and after the deadline the stacks of all ranks are.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

# Imported once by the server, so that a rank starts in some 50 ms. torch._dynamo is what the first
# optimizer would import, and takes as long as torch itself.
PRELOAD = ["torch", "torch._dynamo", "torch.distributed.nn", "tests.runtime.ranks", "nbaccel.accelerator"]

process_context = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="session")
def rank_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Starts the server before the first test that uses ranks, since it outlives single tests."""
    start_server(tmp_path_factory.mktemp("ranks"))
    yield
    stop_server()


def start_server(folder: Path, preload: Sequence[str] = ()) -> None:
    """Start the server that ranks are forked from, with its socket in ``folder``, and wait until it can.

    Args:
        folder: lives as long as the server.
        preload: further modules that it imports once for all.
    """
    process_context.set_forkserver_preload([*PRELOAD, *preload])
    # Else the standard library makes a folder that only its exit handler removes.
    current_process()._config["tempdir"] = str(folder)
    # The first store of a process opens a pipe of libuv's for good.
    _store()
    process = process_context.Process(target=int)
    process.start()
    process.join()
    process.close()


def stop_server() -> None:
    """End the server and the tracker that the standard library started with it."""
    from multiprocessing import forkserver, resource_tracker

    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()
    current_process()._config.pop("tempdir")


class RankError(AssertionError):
    """A rank raised; carries its traceback as text."""


def run_ranks(fn: Callable[..., Any], n: int, *args: Any, timeout: float = 60, **kwargs: Any) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on ``n`` ranks and return their values by rank.

    ``fn`` may be a closure. ``env`` in ``kwargs`` is a dict of further environment variables.
    """
    env = kwargs.pop("env", {})
    payload = cloudpickle.dumps((fn, args, kwargs))
    store, port = _store()
    with tempfile.TemporaryDirectory(prefix="nbaccel-ranks-") as folder:
        processes, pipes = [], []
        for rank in range(n):
            ours, theirs = process_context.Pipe(duplex=False)
            process = process_context.Process(
                target=_rank_main, args=(rank, n, port, payload, env, str(Path(folder, str(rank))), theirs)
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            return _collect(processes, pipes, Path(folder), timeout)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
            for pipe in pipes:
                pipe.close()
            # By name: the traceback of an error would keep it, and its descriptors would count as a leak.
            del store


def _store() -> tuple[Any, int]:
    import socket

    from torch.distributed import TCPStore

    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listener.getsockname()[1]
    fd = listener.detach()
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd), port


def _collect(processes: list[Any], pipes: list[Connection], folder: Path, timeout: float) -> list[Any]:
    deadline = time.monotonic() + timeout
    values: dict[int, Any] = {}
    pending = dict(enumerate(pipes))
    while pending:
        ready = wait(list(pending.values()), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(
                f"ranks {sorted(pending)} not done after {timeout} s\n{stacks_of(processes, folder)}"
            )
        for rank, pipe in list(pending.items()):
            if pipe not in ready:
                continue
            del pending[rank]
            try:
                ok, value = pickle.loads(pipe.recv_bytes())
            except EOFError:
                processes[rank].join()
                raise RankError(f"rank {rank} died with exit code {processes[rank].exitcode}") from None
            if not ok:
                error, text = value
                raise RankError(f"rank {rank} raised {error}\n{text}")
            values[rank] = value
    for rank, process in enumerate(processes):
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode != 0:
            raise RankError(f"rank {rank} returned, then ended with exit code {process.exitcode}")
    return [values[rank] for rank in range(len(pipes))]


def stacks_of(processes: list[Any], folder: Path) -> str:
    texts = []
    for rank, process in enumerate(processes):
        if not process.is_alive():
            texts.append(f"rank {rank} has ended with exit code {process.exitcode}")
            continue
        os.kill(process.pid, signal.SIGUSR1)
        path, until = folder / str(rank), time.monotonic() + 5
        while not path.stat().st_size and time.monotonic() < until:
            time.sleep(0.01)
        texts.append(f"rank {rank} is at\n{path.read_text()}")
    return "\n".join(texts)


def _rank_main(
    rank: int, world: int, port: int, payload: bytes, env: dict[str, str], stacks: str, pipe: Connection
) -> None:
    import torch

    from nbaccel.runtime.process_group import shutdown_process_group

    # A rank inherits the server's method, and would start a server of its own for its loader workers.
    multiprocessing.set_start_method("fork", force=True)
    with open(stacks, "w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
            **env,
        )
        torch.set_num_threads(1)
        torch.manual_seed(1234)
        try:
            fn, args, kwargs = pickle.loads(payload)
            answer = (True, fn(*args, **kwargs))
            data = cloudpickle.dumps(answer)
        except BaseException as error:
            text = traceback.format_exc()
            data = pickle.dumps((False, (f"{type(error).__name__}: {error}", text)))
        pipe.send_bytes(data)
        pipe.close()
        shutdown_process_group()
        faulthandler.unregister(signal.SIGUSR1)
