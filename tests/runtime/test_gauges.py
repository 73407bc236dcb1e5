"""Counters of a training loop: curves of bounded size, what is fetched when, where the loop is."""

from __future__ import annotations

import math
import pickle
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbaccel.runtime import gauges as gauges_module
from nbaccel.runtime.curves import CAPACITY, FIELDS, Curve
from nbaccel.runtime.gauges import MAX_CURVES, Gauges


def points(curve):
    numbers = curve.data().points
    return [tuple(numbers[at : at + FIELDS]) for at in range(0, len(numbers), FIELDS)]


def noting(**values):
    gauges = Gauges()
    gauges.begin()
    gauges.note(values, 3)
    return {curve.name: curve.last for curve in gauges.look().curves}


# --- curves -----------------------------------------------------------------------------------------


def test_a_short_curve_is_kept_as_it_is():
    curve = Curve("loss")
    for step, value in ((0, 2.0), (10, 1.0), (20, 1.5)):
        curve.add(step, value)
    assert points(curve) == [(0, 2, 2, 2), (10, 1, 1, 1), (20, 1.5, 1.5, 1.5)]


def test_a_million_values_stay_small_and_a_spike_stays_visible():
    curve = Curve("loss")
    for step in range(1_000_000):
        curve.add(step, 1000.0 if step == 123_456 else step / 1e6)
    told = curve.data()
    assert len(told.points) <= FIELDS * CAPACITY
    assert len(pickle.dumps(told)) < 10_000
    assert max(greatest for _, _, _, greatest in points(curve)) == 1000.0
    assert (told.last, told.last_step, told.count) == (0.999999, 999_999, 1_000_000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_merging_keeps_range_order_and_mean(values):
    curve = Curve("x", capacity=8)
    for step, value in enumerate(values):
        curve.add(step, value)
    told = points(curve)
    assert len(told) <= 8
    assert [point[0] for point in told] == sorted(point[0] for point in told)
    assert min(point[2] for point in told) == min(values)
    assert max(point[3] for point in told) == max(values)
    assert all(least - 1e-6 <= mean <= greatest + 1e-6 for _, mean, least, greatest in told)


def test_values_that_are_no_finite_numbers_are_counted_and_not_drawn():
    curve = Curve("loss")
    for value in (1.0, math.nan, math.inf, -math.inf, 2.0):
        curve.add(None, value)
    assert [point[1] for point in points(curve)] == [1.0, 2.0]
    assert curve.data().strange == 3
    assert points(curve)[-1][0] == 5  # without a step, values are counted


# --- what is noted ----------------------------------------------------------------------------------


def test_numbers_of_all_kinds_have_a_curve_and_nothing_else_has():
    class Odd:
        def item(self):
            raise RuntimeError("lost")

    numpy = pytest.importorskip("numpy")
    told = noting(
        a=1,
        b=0.5,
        c=True,
        d=torch.tensor(2.0, requires_grad=True),
        e=torch.tensor([3.0]),
        f=numpy.float32(4.0),
        text="no",
        many=torch.zeros(2),
        none=None,
        nested={"x": 1},
        odd=Odd(),
        meta=torch.zeros((), device="meta"),
    )
    assert told == {"a": 1, "b": 0.5, "c": 1, "d": 2, "e": 3, "f": 4}


def test_a_noted_tensor_keeps_no_graph_alive():
    gauges = Gauges()
    gauges.begin()
    weight = torch.ones(3, requires_grad=True)
    loss = weight.sum()
    gauges.note({"loss": loss}, 1)
    import weakref

    graph = weakref.ref(loss)
    del loss
    assert graph() is None


def test_names_are_bounded():
    gauges = Gauges()
    gauges.begin()
    gauges.note({f"n{number}": 1.0 for number in range(MAX_CURVES + 5)}, 1)
    standing = gauges.look()
    assert (len(standing.curves), standing.further_names) == (MAX_CURVES, 5)


def test_only_what_has_changed_is_told_again():
    gauges = Gauges()
    gauges.begin()
    gauges.note({"a": 1.0, "b": 1.0}, 1)
    gauges.look()
    gauges.note({"b": 2.0}, 2)
    assert [curve.name for curve in gauges.look().curves] == ["b"]
    assert gauges.look().curves == ()


class OnDevice:
    """A value on an accelerator: fetching it waits."""

    device = torch.device("cuda")

    def __init__(self, value, fetched):
        self.value, self.fetched = value, fetched

    def detach(self):
        return self

    def item(self):
        self.fetched.append(self.value)
        return self.value


def test_values_on_a_device_are_fetched_now_and_then_and_at_the_end(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(gauges_module.time, "monotonic", lambda: now[0])
    gauges, fetched = Gauges(), []
    gauges.begin()
    for step in range(100):
        now[0] += 0.01
        gauges.note({"loss": OnDevice(step, fetched)}, step)
        gauges.note({"other": OnDevice(-step, fetched)}, step)
    # Each name by itself, twice a second: one that is logged second isn't left out for ever.
    assert [value for value in fetched if value > 0] == [50]
    assert [value for value in fetched if value < 0] == [-50]
    gauges.settle()
    assert {curve.name: curve.last for curve in gauges.look().curves} == {"loss": 99, "other": -99}


def test_a_new_task_begins_with_nothing():
    gauges = Gauges()
    gauges.begin()
    gauges.note({"a": 1.0}, 1)
    gauges.expect(3, None)
    gauges.end()
    gauges.begin()
    assert not gauges.has_news()
    standing = gauges.look()
    assert (standing.curves, standing.epochs, standing.steps) == ((), None, 0)


def test_ranks_that_are_threads_of_one_process_count_for_themselves():
    from torch.utils.data import DataLoader

    from nbaccel import Accelerator
    from nbaccel.runtime.environment import ProcessEnvironment, take_place

    seen = {}
    process = gauges_module.gauges()

    def rank(number):
        take_place(ProcessEnvironment())
        gauges = gauges_module.gauges()
        gauges.begin()
        model = torch.nn.Linear(1, 1)
        accelerator = Accelerator(cpu=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(torch.ones(2 + number, 1))
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        looks = []
        for batch in loader:
            accelerator.backward(model(batch).sum())
            optimizer.step()
            accelerator.log({f"loss {number}": number}, step=1)
            looks.append(gauges.look())
        seen[number] = looks

    # One after the other: what is asked is whose the counters are.
    for number in range(2):
        thread = threading.Thread(target=rank, args=(number,))
        thread.start()
        thread.join()
    for number in range(2):
        looks = seen[number]
        assert [look.steps for look in looks] == list(range(1, 3 + number))
        assert [(look.passes[0].done, look.passes[0].length) for look in looks] == [
            (done, 2 + number) for done in range(1, 3 + number)
        ]
        assert [curve.name for curve in looks[-1].curves] == [f"loss {number}"]
    assert not process.watching


# --- where the loop is ------------------------------------------------------------------------------


def test_passes_are_told_while_they_run_and_when_they_are_over():
    from torch.utils.data import DataLoader

    from nbaccel import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train, test = (DataLoader(torch.ones(size, 1), batch_size=2) for size in (8, 4))
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    accelerator.expect(epochs=2)
    gauges = gauges_module.gauges()
    gauges.begin()
    accelerator.expect(epochs=2)
    seen = []
    try:
        for _ in range(2):
            for batch in train:
                accelerator.backward(model(batch).sum())
                optimizer.step()
                seen.append(gauges.look())
            seen.extend(gauges.look() for _ in test)
    finally:
        gauges.end()
    in_training = [(look.passes[0].epoch, look.passes[0].done, look.passes[0].total) for look in seen[:4]]
    assert in_training == [(0, 1, 1), (0, 2, 2), (0, 3, 3), (0, 4, 4)]
    assert [look.passes[0].steps for look in seen[:4]] == [1, 2, 3, 4]
    evaluation = seen[4]
    assert (evaluation.passes[0].length, evaluation.passes[0].steps) == (2, 0)
    assert evaluation.last is not None
    assert (evaluation.last.epoch, evaluation.last.done, evaluation.first_epoch) == (0, 4, 0)
    second = seen[6].passes[0]
    assert (second.epoch, second.done, second.total, second.loader) == (1, 1, 5, seen[0].passes[0].loader)
    assert seen[-1].epochs == 2
    assert gauges.look().passes == ()


def test_epochs_count_from_the_start_of_the_task_or_from_what_it_has_set():
    from torch.utils.data import DataLoader

    from nbaccel import Accelerator

    def epochs_of_a_task(passes, before=None):
        gauges.begin()
        try:
            if before is not None:
                before()
            return [gauges.look().passes[0].epoch for _ in range(passes) for _ in loader]
        finally:
            gauges.end()

    def prepare():
        nonlocal loader
        loader = Accelerator(cpu=True).prepare(DataLoader(torch.ones(2, 1), batch_size=2))

    loader = None
    gauges = gauges_module.gauges()
    assert epochs_of_a_task(2, prepare) == [0, 1]
    assert epochs_of_a_task(3) == [0, 1, 2]
    list(loader)  # in a task that nobody watches
    assert epochs_of_a_task(1) == [0]
    assert loader.iteration == 7
    assert epochs_of_a_task(2, lambda: loader.set_epoch(3)) == [3, 4]
    saved = loader.state_dict()
    assert epochs_of_a_task(2, lambda: loader.load_state_dict(saved)) == [5, 6]
    assert epochs_of_a_task(1) == [0]


@pytest.mark.parametrize("given", [{"epochs": 0}, {"steps": -1}])
def test_a_run_of_no_length_is_refused(given):
    from nbaccel import Accelerator

    with pytest.raises(ValueError, match="at least 1"):
        Accelerator(cpu=True).expect(**given)
