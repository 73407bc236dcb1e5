"""The order of one epoch, the same on every rank.

Sharding takes every rank's word for the order of the samples, so the ranks must agree on it before
each pass. A random sampler without a generator is given one, seeded as it would seed itself; rank 0's
seed counts. With one process the order is therefore that of plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import RandomSampler

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.data.samplers import SeedableRandomSampler

_MISSING = object()


class EpochOrder:
    """Readies a sampler for each pass.

    Args:
        sampler: the innermost sampler of a loader.
        communicator: connects the ranks that share the loader; None when there is one.
    """

    def __init__(self, sampler: Any, communicator: Communicator | None = None) -> None:
        self.sampler = sampler
        self.communicator = communicator if communicator and communicator.world_size > 1 else None
        self.given = getattr(sampler, "generator", _MISSING)
        """The generator that the sampler came with."""
        self.chosen = False
        """Whether the user picks epochs by set_epoch."""
        self.seed: int | None = None
        """Seed of the epochs that the user picks; agreed on when first needed."""
        self._began: torch.Tensor | None = None
        """State of the sampler's own generator at the start of the running pass."""

    def choose_epoch(self) -> None:
        """From now on, the order is a function of seed and epoch."""
        self.chosen = True

    def state_dict(self, *, running: bool = False) -> dict[str, Any]:
        """What the order of a pass depends on besides the number of its epoch.

        Args:
            running: the state is of the pass that is running, rather than of the next one.
        """
        seed = self.seed
        if seed is None and isinstance(self.sampler, SeedableRandomSampler):
            seed = self.sampler.initial_seed
        generator = self._own_generator
        drawn_from = None if generator is None else self._began if running else generator.get_state()
        return {"seed": seed, "chosen": self.chosen, "generator": drawn_from}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned."""
        self.chosen, self.seed = state["chosen"], state["seed"]
        if self.seed is not None and isinstance(self.sampler, SeedableRandomSampler):
            self.sampler.initial_seed = self.seed
        generator, drawn_from = self._own_generator, state.get("generator")
        if generator is not None and drawn_from is not None:
            generator.set_state(drawn_from)

    @property
    def _own_generator(self) -> torch.Generator | None:
        """The generator that the sampler came with and draws from; None when it has none of its own."""
        if hasattr(self.sampler, "set_epoch") or not isinstance(self.given, torch.Generator):
            return None
        return self.given

    def begin(self, epoch: int) -> None:
        """Called by all ranks before a pass."""
        sampler = self.sampler
        if isinstance(sampler, SeedableRandomSampler) and self.seed is None:
            self.seed = sampler.initial_seed = self._agreed(sampler.initial_seed)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        elif self.given is None:
            self._lend_generator(epoch)
        elif isinstance(self.given, torch.Generator):
            self._align_generator(self.given, epoch)
            self._began = self.given.get_state()

    def _lend_generator(self, epoch: int) -> None:
        if self.chosen:
            seed = self._epoch_seed(torch.initial_seed(), epoch)
        elif self.communicator is not None or isinstance(self.sampler, RandomSampler):
            seed = self._agreed(_second_draw())
        else:
            return
        self.sampler.generator = torch.Generator().manual_seed(seed)

    def _align_generator(self, generator: torch.Generator, epoch: int) -> None:
        if self.chosen:
            generator.manual_seed(self._epoch_seed(generator.initial_seed(), epoch))
        elif self.communicator is not None:
            state = generator.get_state()
            self.communicator.broadcast(state, 0)
            generator.set_state(state)

    def _epoch_seed(self, fallback: int, epoch: int) -> int:
        if self.seed is None:
            self.seed = self._agreed(fallback)
        return (self.seed + epoch) % (1 << 63)

    def _agreed(self, seed: int) -> int:
        """Rank 0's ``seed``."""
        if self.communicator is None:
            return seed
        # Two halves, since a seed may use all 64 bits.
        halves = torch.tensor([seed >> 32, seed & 0xFFFFFFFF], dtype=torch.int64)
        self.communicator.broadcast(halves, 0)
        return (int(halves[0]) << 32) | int(halves[1])


def _second_draw() -> int:
    """The seed that a RandomSampler without generator would draw: after the loader's own, from torch's.

    One draw is used up; the loader makes the other.
    """
    first = torch.empty((), dtype=torch.int64).random_()
    after_one = torch.get_rng_state()
    second = int(first.random_().item())
    torch.set_rng_state(after_one)
    return second
