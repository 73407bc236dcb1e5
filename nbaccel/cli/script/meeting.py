"""Where the agents of a job meet: on one machine over loopback only, else as torch does it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

from nbaccel.config import LaunchSpec
from nbaccel.errors import LaunchTimeout
from nbaccel.launch.request.rendezvous import DEFAULT_MULTI_NODE_PORT, Rendezvous, open_rendezvous


@dataclass(frozen=True)
class MeetingPoint:
    """How agents find each other."""

    backend: str = "static"
    """``static``: the first machine is known; ``c10d``: whoever comes, up to the number of machines."""

    address: str = "127.0.0.1"
    port: int | None = None
    run_id: str = "none"
    """Of the job: agents of different jobs may use the same store."""

    options: Mapping[str, str] = field(default_factory=dict)
    """For torch's rendezvous backend."""

    @property
    def endpoint(self) -> str:
        """Address and port where several machines meet."""
        return f"{self.address}:{self.port or DEFAULT_MULTI_NODE_PORT}"


def open_handler(point: MeetingPoint, spec: LaunchSpec) -> RendezvousHandler:
    """The rendezvous for an agent.

    Raises:
        OSError: the port is in use.
    """
    if spec.num_nodes == 1:
        return OneMachine(open_rendezvous(point.address, point.port, num_nodes=1, node_rank=0), point.run_id)
    options: dict[str, Any] = dict(point.options)
    if point.backend == "static":
        options["rank"] = spec.node_rank
        options.setdefault("timeout", 900)
    parameters = RendezvousParameters(
        backend=point.backend,
        endpoint=point.endpoint,
        run_id=point.run_id,
        min_nodes=spec.num_nodes,
        max_nodes=spec.num_nodes,
        **options,
    )
    return rendezvous_registry.get_rendezvous_handler(parameters)


@contextlib.contextmanager
def told_in_full(point: MeetingPoint, spec: LaunchSpec) -> Iterator[None]:
    """When machines don't meet, say where they were to and how many: torch's errors tell one or the other.

    Raises:
        LaunchTimeout: they did not.
    """
    try:
        yield
    except (RendezvousError, DistError) as error:
        if spec.num_nodes == 1:
            raise
        reason = str(error).partition("\n")[0].rstrip(". ") or type(error).__name__
        raise LaunchTimeout(
            f"{spec.num_nodes} machines were to meet at {point.endpoint}, and did not: {reason}. Start the "
            "same command on each, with its own --machine-rank, and check that all reach this address"
        ) from error


class OneMachine(RendezvousHandler):
    """A rendezvous of one agent with itself, over a store that listens on loopback."""

    def __init__(self, rendezvous: Rendezvous, run_id: str) -> None:
        self.rendezvous = rendezvous
        self._run_id = run_id
        self._rounds = 0

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of the agent's store, so that no second port is needed."""
        return True

    def get_backend(self) -> str:
        return "static"

    def next_rendezvous(self) -> RendezvousInfo:
        # A store for each round: torch's workers use it without a prefix, and must not meet the keys of
        # those that failed. The agent may still hold the last one, and with it its port.
        self._rounds += 1
        if self._rounds > 1:
            self.rendezvous.close()
            self.rendezvous = open_rendezvous(self.rendezvous.address, None, num_nodes=1, node_rank=0)
        store = PrefixStore(f"{self._run_id}/{self._rounds}", self.rendezvous.store)
        address = RendezvousStoreInfo(self.rendezvous.address, self.rendezvous.port)
        return RendezvousInfo(store, 0, 1, address)

    def is_closed(self) -> bool:
        return self.rendezvous.store is None

    def set_closed(self) -> None:
        self.shutdown()

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self.rendezvous.close()
        return True
