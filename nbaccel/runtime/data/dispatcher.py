"""The loader for data that only rank 0 reads. See :mod:`nbaccel.runtime.data.dispatch` for the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.collectives.scatter import scatter_nested
from nbaccel.runtime.data import loops
from nbaccel.runtime.data.dispatch import Round, RoundReader
from nbaccel.runtime.data.loader import PreparedLoader, refuse_mesh
from nbaccel.runtime.data.movers import mover_for
from nbaccel.runtime.data.order import EpochOrder
from nbaccel.runtime.data.samplers import find_sampler
from nbaccel.runtime.data.stateful import fits, keeps_its_place


class DispatchError(RuntimeError):
    """Rank 0 failed to read the data; raised on the other ranks, in place of waiting for ever."""


class DataLoaderDispatcher(PreparedLoader):
    """Rank 0 reads the data and hands each rank its part.

    Args:
        dataset: as of :class:`torch.utils.data.DataLoader`; it is read on rank 0 only.
        split_batches: the loader's batches are those of all ranks together.
        skip_batches: batches to leave out at the start of each pass.
        use_stateful_dataloader: start a pass whose state was loaded after the batches that were done.
        slice_fn: cuts a part out of a joined batch, for batches that slicing can't cut.
        torch_device_mesh: must be None; processes aren't laid out in a mesh.
        iteration: the epoch that the next pass is for.
        kwargs: as of :class:`torch.utils.data.DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        slice_fn: Callable[..., Any] | None = None,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **kwargs: Any,
    ) -> None:
        from nbaccel.runtime import runtime

        refuse_mesh(torch_device_mesh)
        base: DataLoader[Any] = DataLoader(dataset, **kwargs)
        now = runtime.current()
        self._drive(
            base,
            communicator=now.communicator,
            split_batches=split_batches,
            slice_fn=slice_fn,
            device=now.device,
            non_blocking=_non_blocking,
            # Only rank 0 reads, so there is nothing to agree on.
            order=None if isinstance(dataset, IterableDataset) else EpochOrder(find_sampler(base)),
            skip=skip_batches,
            iteration=iteration,
        )
        self.resumes = use_stateful_dataloader

    def _drive(  # type: ignore[override]
        self,
        base: DataLoader[Any],
        *,
        communicator: Communicator,
        split_batches: bool = False,
        slice_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super()._drive(base, num_processes=communicator.world_size, **options)
        self.communicator = communicator
        self.splits = split_batches
        self.slice_fn = slice_fn

    @property
    def split_batches(self) -> bool:
        return self.splits

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        size = self._read_size()
        return size // self.num_processes if size is not None and self.splits else size

    def _read_size(self) -> int | None:
        """Samples in a batch that rank 0 reads."""
        size = self.base_dataloader.batch_size
        if size is None:
            size = getattr(self.base_dataloader.batch_sampler, "batch_size", None)
        return size

    @property
    def _drops_last(self) -> bool:
        base = self.base_dataloader
        return bool(base.drop_last or getattr(base.batch_sampler, "drop_last", False))

    def __len__(self) -> int:
        return max(0, self._rounds() - self.skip)

    def _rounds(self) -> int:
        batches, world = len(self.base_dataloader), self.num_processes
        if self.splits:
            return batches
        return batches // world if self._drops_last else (batches + world - 1) // world

    def _pass_length(self) -> int | None:
        try:
            return self.first + self._rounds()
        except TypeError:
            return None

    _reads_from: dict[str, Any] | None = None
    """Where rank 0 begins to read in the pass that is opened; None: at its start."""

    def _go_to(self, place: dict[str, Any] | None) -> bool:
        # Only rank 0 reads, and only when the first round is asked for.
        self._reads_from = None
        if self.communicator.rank == 0 and fits(self.base_dataloader, self.num_processes, place):
            self._reads_from = place
        return self._reads_from is not None

    def _open(self) -> Iterator[Any]:
        reader = RoundReader(
            iter(()),
            self.num_processes,
            size=self._read_size(),
            split=self.splits,
            drop_last=self._drops_last,
            slice_batch=self.slice_fn,
        )
        if self.communicator.rank == 0:
            reader.batches = self._read_base(reader)
        return iter(reader)

    def _read_base(self, reader: RoundReader) -> Iterator[Any]:
        # Opened when the first batch is asked for, where the other ranks hear of a failure.
        place, self._reads_from = self._reads_from, None
        if place is not None:
            reader.learn(next(iter(self.base_dataloader)))
            super()._go_to(place)
        yield from self.base_dataloader

    def _leave_out(self, source: Iterator[Any], loop: loops.Loop, batches: int) -> None:
        # Only rank 0 has something to throw away; where the data end shows in the first round after it.
        if self.communicator.rank == 0:
            for _ in range(batches):
                if next(source, None) is None:
                    break
        loop.index += batches

    def _batches(self, source: Iterator[Any], loop: loops.Loop) -> Iterator[Any]:
        loops.enter(loop)
        mover = mover_for(self.device, self.non_blocking) if self.communicator.scatters_on_host else None
        coming, problem = self._read(source)
        tells = self.communicator.rank == 0 and keeps_its_place(self.base_dataloader)
        while True:
            running = coming
            if running is not None:
                if tells:
                    self._note_place(loop)
                # Read ahead, to know of the last round that it is the last.
                coming, problem = self._read(source)
            batch, counts, last = self._exchange(running, coming is None, problem)
            if batch is _NOTHING:
                return
            if mover is not None:
                batch, counts = self._full(batch, counts)
                batch = mover.finish(mover.start(batch))
            loop.index += 1
            loop.counts = counts
            loop.at_end = last
            yield batch
            if mover is not None and mover.done is not None:
                mover.done()
            if last:
                return

    def _read(self, source: Iterator[Round]) -> tuple[Round | None, Exception | None]:
        try:
            return next(source, None), None
        except Exception as error:  # noqa: BLE001  # it is raised again once all ranks know
            return None, error

    def _exchange(
        self, running: Round | None, last: bool, problem: Exception | None
    ) -> tuple[Any, list[int] | None, bool]:
        """Rank 0 hands out ``running``. Returns the batch, the real samples, and whether it is the last."""
        head: Any = None
        if self.communicator.rank == 0:
            text = None if problem is None else f"{type(problem).__name__}: {problem}"
            head = (running is not None, None if running is None else running.counts, last, text)
        any_left, counts, last, text = self.communicator.broadcast_object(head, 0)
        if text is not None:
            if problem is not None:
                raise problem
            raise DispatchError(f"rank 0 failed to read the data: {text}")
        if not any_left:
            return _NOTHING, None, True
        parts = None if running is None else running.parts
        place = None if self.communicator.scatters_on_host else self.device
        return scatter_nested(self.communicator, parts, 0, place), counts, last


_NOTHING = object()
