"""Training on XLA is the training that gloo ranks do: same steps, same numbers to float tolerance."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.ranks import run_ranks
from tests.xla.replicas import run_replicas
from tests.xla.training import train

TOLERANCE = 5e-6

WAYS = {
    "plain": {},
    "accumulated": {"accumulate": 3, "samples": 56},
    "clipped": {"clip": 0.5, "schedule": True},
    "batch norm": {"batch_norm": True, "samples": 48},
}


def _furthest(a, b):
    return max(float((x["weights"] - y["weights"]).abs().max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_numbers_are_those_of_gloo_ranks(n):
    # All ways in one process: starting the runtime is what takes time.
    def all_ways():
        return {name: train(**options) for name, options in WAYS.items()}

    on_xla = run_replicas(all_ways, n, timeout=100)
    on_gloo = run_ranks(all_ways, n)
    for name in WAYS:
        xla, gloo = [g[name] for g in on_xla], [g[name] for g in on_gloo]
        print(f"{name}, {n} ranks: max|w - gloo| = {_furthest(xla, gloo):.1e}")
        assert _furthest(xla, gloo) < TOLERANCE, name
        assert _furthest(xla, [xla[0]] * n) == 0, f"{name}: replicas differ"
        for x, g in zip(xla, gloo, strict=True):
            assert torch.allclose(torch.tensor(x["losses"]), torch.tensor(g["losses"]), atol=1e-5), name
            assert x["norms"] == pytest.approx(g["norms"], abs=1e-5)
            for key in ("rates", "predictions", "steps"):
                assert x[key] == g[key], (name, key)
            # torch_xla's running variance is that of the batch, torch's that of the population behind it.
            assert name == "batch norm" or x["accuracy"] == g["accuracy"], name
        for x in xla:
            for own, first in zip(x["buffers"], xla[0]["buffers"], strict=True):
                assert torch.equal(own, first), f"{name}: statistics differ between ranks"
        if name == "batch norm":
            # Rank 0's count, as with DistributedDataParallel.
            (mean, _, count), (same_mean, _, same_count) = xla[0]["buffers"], gloo[0]["buffers"]
            assert torch.allclose(mean, same_mean, atol=1e-5)
            assert count == same_count
