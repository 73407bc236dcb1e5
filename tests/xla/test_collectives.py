"""Collectives on XLA: what each rank gets, and that no rank needs a graph of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from tests.xla.replicas import run_replicas


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_collective_gives_every_rank_what_it_should(n):
    def work():
        from nbaccel import Accelerator
        from nbaccel.utils import broadcast, broadcast_object_list, gather_object

        accelerator = Accelerator()
        rank, device = accelerator.process_index, accelerator.device
        got = {"world": (accelerator.num_processes, str(accelerator.distributed_type), device.type)}
        own = torch.tensor([rank, rank + 10]).to(device)
        got["gather"] = accelerator.gather(own).tolist()
        got["flags"] = accelerator.gather(torch.tensor([rank == 0]).to(device)).tolist()
        got["half"] = accelerator.gather(torch.tensor([rank + 0.5], dtype=torch.bfloat16).to(device)).tolist()
        got["scalar"] = accelerator.gather(torch.tensor(float(rank)).to(device)).tolist()
        host = accelerator.gather(torch.tensor([rank], dtype=torch.float64))
        got["host"] = (host.tolist(), host.device.type, str(host.dtype))
        pair = accelerator.gather(Pair(own, [own.float()]))
        got["nested"] = (type(pair).__name__, pair.a.tolist(), pair.b[0].tolist())
        got["sum"] = accelerator.reduce(own.float(), "sum").tolist()
        got["mean"] = accelerator.reduce(own.float(), "mean").tolist()
        got["padded"] = accelerator.pad_across_processes(torch.ones(rank + 1).to(device)).tolist()
        told = torch.tensor([float(rank), float("nan") if rank else 1.0]).to(device)
        broadcast(told, 0)
        got["broadcast"] = told.tolist()
        last = torch.tensor([rank]).to(device)
        broadcast(last, n - 1)
        got["from_last"] = last.tolist()
        got["objects"] = gather_object([{"rank": rank, "text": "x" * 300 * rank}])
        got["list"] = broadcast_object_list([rank, {"from": rank}], n - 1)
        with accelerator.split_between_processes(list(range(5))) as part:
            got["split"] = part
        accelerator.wait_for_everyone()
        if rank == n - 1:
            accelerator.set_trigger()
        got["trigger"] = accelerator.check_trigger(), accelerator.check_trigger()
        return got

    results = run_replicas(work, n)
    ranks = range(n)
    for rank, got in enumerate(results):
        assert got["world"] == (n, "DistributedType.XLA", "xla")
        assert got["gather"] == [x for r in ranks for x in (r, r + 10)]
        assert got["flags"] == [r == 0 for r in ranks]
        assert got["half"] == [r + 0.5 for r in ranks]
        # As everywhere: with one process a value comes back as it is.
        assert got["scalar"] == ([float(r) for r in ranks] if n > 1 else 0.0)
        assert got["host"] == ([float(r) for r in ranks], "cpu", "torch.float64")
        assert got["nested"] == ("Pair", got["gather"], [float(x) for x in got["gather"]])
        assert got["sum"] == [float(sum(ranks)), float(sum(r + 10 for r in ranks))]
        assert got["mean"] == pytest.approx([sum(ranks) / n, sum(ranks) / n + 10])
        assert got["padded"] == [1.0] * (rank + 1) + [0.0] * (n - 1 - rank)
        assert got["broadcast"] == [0.0, 1.0]
        assert got["from_last"] == [n - 1]
        assert got["objects"] == [{"rank": r, "text": "x" * 300 * r} for r in ranks]
        assert got["list"] == [n - 1, {"from": n - 1}]
        assert got["trigger"] == (True, False)
    assert [x for got in results for x in got["split"]] == list(range(5))
