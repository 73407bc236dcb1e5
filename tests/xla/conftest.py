"""The tests that need a real torch_xla: ``make test-xla`` runs them in an environment of their own.

torch_xla is bound to one release of torch, so it isn't beside the torch that everything else is tested with.
Without it nothing in this folder is collected. The process of pytest never starts the XLA runtime.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

HAS_XLA = find_spec("torch_xla") is not None

collect_ignore_glob = [] if HAS_XLA else ["test_*.py"]

if HAS_XLA:
    # Before torch_xla is imported anywhere: its CPU client, with more threads than this machine may have
    # cores, since each replica keeps one waiting in a collective.
    os.environ.update(PJRT_DEVICE="CPU", XLA_THREAD_POOL_SIZE="16")


@pytest.fixture(scope="session", autouse=True)
def _replica_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The process that replicas are forked from, and that of the ranks they are compared with."""
    from tests.runtime import ranks
    from tests.xla import replicas

    ranks.start_server(tmp_path_factory.mktemp("ranks"), replicas.PRELOAD)
    yield
    ranks.stop_server()


@pytest.fixture(autouse=True)
def _runtime_stays_down() -> Iterator[None]:
    """Replicas are forked, and a fork of a process with a live runtime hangs."""
    yield
    from nbaccel.runtime.devices.xla import runtime_is_live

    assert not runtime_is_live(), "the test has started the XLA runtime in the process of pytest"
