"""backward() tells of parameters that each process trains for itself, and only of those."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import nbaccel
from nbaccel.accelerator import Accelerator
from nbaccel.runtime import replicas
from nbaccel.runtime.local_sgd import LocalSGD
from tests.runtime.ranks import run_ranks

X = torch.ones(2, 3)
PACKAGE = str(Path(nbaccel.__file__).parent)


class Told:
    """What was warned of since it was last asked."""

    def __init__(self, caught: list[warnings.WarningMessage]) -> None:
        self._caught = caught

    def lines(self) -> list[str]:
        ours = [w for w in self._caught if "prepared model" in str(w.message)]
        assert not any(w.filename.startswith(PACKAGE) for w in ours), (
            "a warning points at who called backward"
        )
        self._caught.clear()
        return [str(w.message) for w in ours]


@contextmanager
def listening() -> Iterator[Told]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield Told(caught)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))


def test_a_model_that_is_made_anew_after_prepare_is_told_of_once() -> None:
    def on_rank() -> dict[str, list[str]]:
        with listening() as told:
            accelerator = Accelerator(cpu=True)
            model = accelerator.prepare(net())
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(2):
                accelerator.backward(model(X).sum())
            found = {"prepared": told.lines()}
            model = net()  # the cell is run again
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(3):
                optimizer.zero_grad()
                accelerator.backward(model(X).sum())
                optimizer.step()
            found["anew"] = told.lines()
            model = net()  # and once more
            accelerator.backward(model(X).sum())
            found["again"] = told.lines()
            model = accelerator.prepare(model)
            accelerator.backward(model(X).sum())
            found["prepared again"] = told.lines()
            # What an Accelerator that was made anew hasn't prepared itself is kept in step all the same.
            Accelerator(cpu=True).backward(model(X).sum())
            return found | {"another": told.lines()}

    for found in run_ranks(on_rank, 2):
        assert found["prepared"] == found["prepared again"] == found["another"] == []
        for key in ("anew", "again"):
            [line] = found[key]
            assert "no prepared model on 2 processes" in line
            assert "4 parameters, the first of shape (2,)" in line
            assert "in the launched function or in the cell" in line


def test_a_part_that_was_not_prepared_is_told_of_when_an_optimizer_trains_it() -> None:
    def on_rank() -> dict[str, list[str]]:
        with listening() as told:
            accelerator = Accelerator(cpu=True)
            body, head, fixed = net(), nn.Linear(2, 1), nn.Linear(2, 5)
            optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
            body, optimizer = accelerator.prepare(body, optimizer)
            # A network that only measures: its gradients are nobody's.
            for _ in range(3):
                accelerator.backward(fixed(body(X)).sum())
            found = {"fixed": told.lines()}
            for _ in range(3):
                accelerator.backward(head(body(X)).sum())
            found["head"] = told.lines()
            accelerator.prepare(head)
            accelerator.backward(head(body(X)).sum())
            # Behind the network that was set aside, a model that is new is seen still.
            accelerator.backward(fixed(net()(X)).sum())
            return found | {"behind": told.lines()}

    for found in run_ranks(on_rank, 2):
        assert found["fixed"] == []
        [line] = found["head"]
        assert "(2 parameters, the first of shape (1,))" in line
        assert "the optimizer trains them on each process by itself" in line
        assert "no prepared model" in found["behind"][0]


def test_what_is_kept_in_step_is_not_told_of_and_is_not_searched_for_at_each_step() -> None:
    def on_rank() -> tuple[list[str], list[str], int]:
        searched = []
        search = replicas._ids_kept_by_hand

        def counted() -> set[int] | None:
            searched.append(1)
            return search()

        replicas._ids_kept_by_hand = counted
        with listening() as told:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            generator, critic = accelerator.prepare(nn.Linear(3, 3), nn.Linear(3, 1))
            for _ in range(2):
                accelerator.backward(critic(generator(X).detach()).sum() + critic(X).sum())
                accelerator.backward(critic(generator(X)).sum())
                with accelerator.accumulate(generator, critic):
                    loss = critic(generator(X)).sum()
                    accelerator.backward(loss, retain_graph=True)
                    accelerator.backward(loss)
                with LocalSGD(accelerator, critic, 2) as local:
                    accelerator.backward(critic(X).sum())
                    local.step()
                # Past the wrapper, a leaf that isn't a parameter, and a loss that is a leaf itself.
                accelerator.backward(accelerator.unwrap_model(critic)(X).sum())
                accelerator.backward((torch.ones(3, requires_grad=True) * 2).sum())
                accelerator.backward(torch.ones((), requires_grad=True))
                with torch.no_grad():
                    critic(X)
            compiling = Accelerator(cpu=True, dynamo_backend="eager")
            compiled = compiling.prepare(nn.Linear(3, 3))
            for _ in range(2):
                compiling.backward(compiled(X).sum())
            fine = told.lines()
            bare = torch.compile(nn.Linear(3, 3), backend="eager")
            compiling.backward(bare(X).sum())
            bare_told = told.lines()
            assert len(searched) == 1
            by_hand = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
            for _ in range(3):
                accelerator.backward(by_hand(X).sum())
            return fine + told.lines(), bare_told, len(searched)

    for fine, bare, searched in run_ranks(on_rank, 2):
        assert fine == []
        assert len(bare) == 1
        assert searched == 2


def at_a_distance(operations: int) -> torch.Tensor:
    loss: torch.Tensor = nn.Linear(3, 1)(X).sum()
    for _ in range(operations):
        loss = loss + 1
    return loss


def test_the_search_is_bounded() -> None:
    def on_rank() -> tuple[int, int, int]:
        replicas._SEARCHES = 3
        accelerator = Accelerator(cpu=True)
        with listening() as told:
            for _ in range(5):  # new parameters at each step
                accelerator.backward(nn.Linear(3, 1)(X).sum())
            lines = len(told.lines())
        with listening() as told:
            Accelerator(cpu=True).backward(at_a_distance(replicas._GLANCE))
            far = len(told.lines())
            Accelerator(cpu=True).backward(at_a_distance(replicas._GLANCE - 20))
            return lines, far, len(told.lines())

    assert run_ranks(on_rank, 2) == [(3, 0, 1)] * 2


def test_a_sharded_model_of_the_user_ends_the_watch() -> None:
    class FSDPModule(nn.Linear):
        """Stands for torch's: it is known by its name, and computes with parameters that it doesn't list."""

    def on_rank() -> list[str]:
        sharded, inside = FSDPModule(3, 1), nn.Linear(3, 1)
        accelerator = Accelerator(cpu=True)
        with listening() as told:
            for _ in range(2):
                accelerator.backward(inside(X).sum())
            del sharded
            return told.lines()

    assert run_ranks(on_rank, 2) == [[], []]


def test_one_process_has_no_replicas_and_models_are_not_kept_alive() -> None:
    with listening() as told:
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(net())
        accelerator.backward(net()(X).sum())
    assert told.lines() == []
    assert replicas.is_prepared(model)
    assert not replicas.is_prepared(net())
    count: Callable[[], int] = lambda: sum(ref() is not None for ref in replicas._prepared.get())  # noqa: E731
    gc.collect()  # models of other tests
    before = count()
    del model
    accelerator.free_memory()
    gc.collect()
    assert count() == before - 1
