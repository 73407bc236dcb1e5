"""The loader that a training loop gets back from ``prepare``: this rank's batches, on this rank's device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import DataLoader, IterableDataset

from nbaccel.left_out import explain_member
from nbaccel.runtime.data import loops
from nbaccel.runtime.data.filling import filled_up
from nbaccel.runtime.data.iterable_shard import Marked
from nbaccel.runtime.data.order import EpochOrder
from nbaccel.runtime.data.position import Position
from nbaccel.runtime.data.samplers import find_sampler
from nbaccel.runtime.data.stateful import fits, place_of
from nbaccel.runtime.gauges import gauges

if TYPE_CHECKING:
    from nbaccel.runtime.accumulation import GradientState

_END = object()


class PreparedLoader(DataLoader[Any]):
    """A DataLoader to the outside; inside, it drives another one (:attr:`base_dataloader`).

    Attributes that aren't found here are those of the loader inside. Preparing makes one by
    :meth:`around`; the constructors of the classes below are for scripts that make one by hand.
    """

    rng_types: list[Any] | None = None
    """Accepted for compatibility: the ranks agree on the order of each pass in any case."""
    synchronized_generator: torch.Generator | None = None
    """As :attr:`rng_types`."""

    @classmethod
    def around(cls, base: DataLoader[Any], **options: Any) -> Self:
        """One that drives ``base``; options as of :meth:`_drive`."""
        loader = cls.__new__(cls)
        loader._drive(base, **options)
        return loader

    def _drive(
        self,
        base: DataLoader[Any],
        *,
        device: torch.device | None = None,
        non_blocking: bool = False,
        order: EpochOrder | None = None,
        shard: Any = None,
        num_processes: int = 1,
        first: int = 0,
        skip: int = 0,
        iteration: int = 0,
    ) -> None:
        """Fill in what the constructor of DataLoader would, which would build a second set of samplers.

        Args:
            base: loads the batches.
            device: where batches go; None leaves them.
            non_blocking: copy without waiting.
            order: agrees with the other ranks on the order of each pass.
            shard: knows where batches hold filling.
            num_processes: number of ranks that share the data.
            first: position of the first batch of a pass, when the base leaves out earlier ones.
            skip: batches that the base yields and that are thrown away at the start of each pass.
            iteration: the epoch that the next pass is for.
        """
        self.base_dataloader = base
        self.device = device
        self.non_blocking = non_blocking
        self.fills = False
        """Whether short batches are filled up to the full length."""
        self.order = order
        self.shard = shard
        self.num_processes = num_processes
        self.first = first
        self.skip = skip
        self.iteration = iteration
        self.counts_from = (gauges().begun, 0)
        """A task, and the epoch that counts as its first where a run is shown: one that the task has set
        itself, by a checkpoint for instance, counts from 0, and one left by earlier tasks from there."""
        self.position = Position()
        """Where the running pass is, for checkpoints."""
        self.resumes = False
        """Whether a pass whose state was loaded starts after the batches that were done."""
        self.owner: PreparedLoader = self
        """The loader whose passes these are: another one, when this one leaves out its first batches."""
        self.source: Any = base
        """The loader that was prepared; what a later ``prepare`` starts from."""
        self.made_with: dict[str, Any] | None = None
        """The options that it was prepared with; None for one that was made in another way."""
        self._loop: loops.Loop | None = None
        self._place: Any = None
        """Where the base is put before the next pass, when it can keep its place."""

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A rank's part of the data is this world's. One that was prepared in a notebook and is used by a
        # launched function shares the data among the workers, as if it had been prepared there.
        if self.made_with is None:
            return super().__reduce_ex__(protocol)
        from nbaccel.runtime.data.prepare import prepared_here

        return prepared_here, (self.source, self.made_with, self.iteration)

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader" or name.startswith("__"):
            raise AttributeError(name)
        if hasattr(self.base_dataloader, name):
            return getattr(self.base_dataloader, name)
        raise explain_member(self, name)

    @property
    def gradient_state(self) -> GradientState:
        """That of the Accelerator that was made or used last."""
        from nbaccel.runtime.accumulation import GradientState

        return GradientState()

    @property
    def skip_batches(self) -> int:
        """Batches that each pass leaves out at its start."""
        return self.first + self.skip

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether a pass whose state was loaded starts after the batches that were done."""
        return self.resumes

    def __len__(self) -> int:
        return max(0, len(self.base_dataloader) - self.skip)

    @property
    def split_batches(self) -> bool:
        """Whether the batch size of the plain loader is that of all ranks together."""
        return bool(getattr(self.shard, "split_batches", False))

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Samples in a batch of this rank; None when that varies."""
        size = self.base_dataloader.batch_size
        if size is None:
            size = getattr(self.base_dataloader.batch_sampler, "batch_size", None)
            if size is not None and self.split_batches:
                size = int(size) // self.num_processes
        return size

    @property
    def total_batch_size(self) -> int:
        """Samples in a batch of all ranks together."""
        return (self.batch_size or 1) * self.num_processes

    @property
    def total_dataset_length(self) -> int:
        """Samples in the data set."""
        return len(self.base_dataloader.dataset)  # type: ignore[arg-type]

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch that came last is the last of its pass."""
        return self._loop is not None and self._loop.at_end

    @property
    def remainder(self) -> int:
        """Real samples, over all ranks, in the running batch when it holds filling; else -1."""
        counts = None if self._loop is None else self._loop.counts
        return -1 if counts is None else sum(counts)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of ``epoch``: the same seed and epoch always give the same order."""
        self.owner.iteration = self.iteration = epoch
        self.owner.counts_from = (gauges().begun, 0)
        if self.order is not None:
            self.order.choose_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: epoch, batches done in it, and what its order was drawn from."""
        state = self.position.state_dict(self.iteration, self.total_batch_size, self._loop)
        running = state["batches"] > 0
        return state | {
            "order": None if self.order is None else self.order.state_dict(running=running),
            "place": self._loop.place if running and self._loop is not None else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any], *, resume: bool | None = None) -> None:
        """Have the next pass take the order of the pass that ``state_dict`` was taken in.

        Args:
            state_dict: from :meth:`state_dict`, on this or another number of ranks.
            resume: start that pass after the batches that were done already; by default as
                :attr:`resumes` says. Otherwise it is for the caller to leave them out, see
                :func:`~nbaccel.runtime.data.prepare.skip_first_batches`.
        """
        if self.order is not None and state_dict["order"] is not None:
            self.order.load_state_dict(state_dict["order"])
        wanted = self.resumes if resume is None else resume
        self.iteration = self.position.load(state_dict, self.total_batch_size, resume=wanted)
        self.counts_from = (gauges().begun, 0)
        self._place = state_dict.get("place") if wanted else None

    def first_epoch_of(self, task: int) -> int:
        """The epoch that ``task`` counts as its first; asked when a pass begins."""
        if self.counts_from[0] != task:
            self.counts_from = (task, self.iteration)
        return self.counts_from[1]

    def get_sampler(self) -> Any:
        """The innermost sampler, which decides on the order."""
        return find_sampler(self.base_dataloader)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        resumed = self.position.take_resumed()
        first = self.first + self.skip
        if resumed and resumed > first and self._can_leave_out():
            from nbaccel.runtime.data.prepare import skip_first_batches

            shortened: Any = skip_first_batches(self, resumed - first)
            yield from shortened._pass(self.owner)
            return
        yield from self._pass(self.owner, leave_out=max(0, resumed - first))

    def _can_leave_out(self) -> bool:
        """Whether batches can be left out without reading them."""
        return loads_by_index(self.base_dataloader)

    def _pass(self, owner: PreparedLoader, leave_out: int = 0) -> Iterator[Any]:
        with self.position.replayed():
            self._begin_pass(owner.iteration)
            place, self._place = self._place, None
            there = bool(leave_out) and self._go_to(place)
            source = self._open()
        loop = loops.Loop(owner, self._pass_length())
        owner._loop = loop
        loop.index = self.first - 1
        if there:
            loop.index += self.skip + leave_out
        else:
            self._leave_out(source, loop, self.skip + leave_out)
        try:
            yield from self._batches(source, loop)
        finally:
            loops.leave(loop)
            # Also when the pass was broken off: the next one is a new epoch.
            self.position.end()
            owner.iteration += 1

    def _begin_pass(self, epoch: int) -> None:
        if self.order is not None:
            self.order.begin(epoch)
        base = self.base_dataloader
        # A batch sampler of the user's own, behind what preparing put around it. The sampler inside it is
        # the order's business.
        batches = getattr(base.batch_sampler, "batch_sampler", base.batch_sampler)
        parts: list[Any] = [base.dataset, getattr(batches, "inner", batches)]
        for part in parts:
            if hasattr(part, "set_epoch") and part is not getattr(self.order, "sampler", None):
                part.set_epoch(epoch)

    def _leave_out(self, source: Iterator[Any], loop: loops.Loop, batches: int) -> None:
        """Throw away the next ``batches`` batches."""
        for _ in range(batches):
            if next(source, _END) is _END:
                break
            loop.index += 1

    def _go_to(self, place: dict[str, Any] | None) -> bool:
        """Put the base to where it was; False when it has to be read up to there."""
        if not fits(self.base_dataloader, self.num_processes, place):
            return False
        base: Any = self.base_dataloader
        base.load_state_dict(place["state"])  # type: ignore[index]
        return True

    def _note_place(self, loop: loops.Loop) -> None:
        """Before reading ahead: where the base is after the batch that is handed out next."""
        loop.place = place_of(self.base_dataloader, self.num_processes)

    def _open(self) -> Iterator[Any]:
        return iter(self.base_dataloader)

    def _pass_length(self) -> int | None:
        try:
            return self.first + len(self.base_dataloader)
        except TypeError:
            return None

    def _batches(self, source: Iterator[Any], loop: loops.Loop) -> Iterator[Any]:
        raise NotImplementedError

    def _full(self, batch: Any, counts: list[int] | None) -> tuple[Any, list[int] | None]:
        """A batch at full length where that is wanted, and by rank its real samples; None: all are."""
        if type(batch) is Marked:
            batch, counts = batch.value, batch.counts
        if self.fills and (size := self.batch_size) is not None:
            batch, real = filled_up(batch, size)
            if real is not None and counts is None:
                counts = [real] * self.num_processes
        return batch, counts


def loads_by_index(loader: DataLoader[Any]) -> bool:
    """Whether batches are lists of indices, so that they can be left out unread."""
    # An iterable data set gets a batch sampler too, of meaningless indices.
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return False
    # What is built around the remaining indices would be a plain loader.
    return not iterates_its_own_way(loader)


def iterates_its_own_way(loader: DataLoader[Any]) -> bool:
    """Whether the loader is of a class whose passes aren't those of a DataLoader over its samplers."""
    if isinstance(loader, PreparedLoader):
        return False
    own = getattr(type(loader), "__iter__", None)
    # torchdata's loader overrides it to keep its state, which prepared loaders keep themselves.
    return own is not DataLoader.__iter__ and not getattr(own, "__module__", "").startswith("torchdata.")


def refuse_mesh(mesh: Any) -> None:
    """There is none to lay the loader out on.

    Raises:
        ValueError: ``mesh`` isn't None.
    """
    if mesh is not None:
        raise ValueError(
            f"torch_device_mesh={mesh!r}: processes aren't laid out in a mesh here, they all share the data; "
            "leave it out"
        )
