"""What only several replicas can show. Training itself is compared with gloo in ``test_training.py``."""

from __future__ import annotations

import json

import pytest

from tests.runtime.ranks import RankError
from tests.xla.replicas import run_replicas


def test_replicas_start_alike_and_checkpoints_are_written_once(tmp_path):
    def work(folder):
        import torch

        from nbaccel import Accelerator

        accelerator = Accelerator(project_dir=folder)
        rank, device = accelerator.process_index, accelerator.device
        model = torch.nn.Linear(3, 1)
        with torch.no_grad():
            # As when each replica draws its own.
            model.weight.fill_(rank + 1.0)
            model.bias.fill_(float("nan") if rank else 0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = accelerator.prepare(model, optimizer)
        start = [p.detach().cpu().flatten().tolist() for p in model.parameters()]

        def step():
            # Each replica has data of its own; the gradient is the mean.
            accelerator.backward(model(torch.full((2, 3), rank + 1.0).to(device)).mean())
            optimizer.step()
            optimizer.zero_grad()
            return model.weight.detach().cpu().flatten().tolist()

        step()
        accelerator.save_state(f"{folder}/state")
        further = step()
        accelerator.load_state(f"{folder}/state")
        again = step()
        return start, further, again

    results = run_replicas(work, 2, str(tmp_path))
    for start, further, again in results:
        assert start == [[1.0, 1.0, 1.0], [0.5]]
        # 1 - 0.1 * 1.5, then with momentum 1.9 * 0.15 less.
        assert further == pytest.approx([0.565] * 3)
        assert again == further
    kept = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert [name for name in kept if "random" in name] == ["random_states_0.pt", "random_states_1.pt"]
    assert [name for name in kept if name.startswith(("model", "optimizer"))] == [
        "model.safetensors",
        "optimizer.bin",
    ]
    manifest = next(json.loads(p.read_text()) for p in (tmp_path / "state").glob("*.json"))
    assert manifest["num_processes"] == 2


def test_data_that_only_rank_0_reads_and_iterable_data_reach_every_rank():
    def work():
        import torch
        from torch.utils.data import DataLoader, IterableDataset

        from nbaccel import Accelerator, DataLoaderConfiguration
        from nbaccel.utils import gather_object

        class Stream(IterableDataset):
            def __iter__(self):
                yield from ({"x": torch.tensor([float(i)]), "name": f"n{i}"} for i in range(11))

        seen = {}
        for dispatched in (False, True):
            accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatched))
            loader = accelerator.prepare(DataLoader(Stream(), batch_size=2))
            batches, shapes, kinds = [], set(), set()
            for batch in loader:
                shapes.add((tuple(batch["x"].shape), len(batch["name"])))
                kinds.add(batch["x"].device.type)
                batches += accelerator.gather_for_metrics(batch["x"]).flatten().tolist()
            seen[dispatched] = (batches, sorted(shapes), sorted(kinds))
        return seen, gather_object([accelerator.process_index])

    for seen, ranks in run_replicas(work, 2):
        # Each sample once, in order; no rank met a second shape.
        assert seen == {way: ([float(i) for i in range(11)], [((2, 1), 2)], ["xla"]) for way in (False, True)}
        assert ranks == [0, 1]


def test_gradients_stay_local_while_that_is_wanted():
    def work():
        import torch

        from nbaccel import Accelerator
        from nbaccel.local_sgd import LocalSGD

        accelerator = Accelerator()
        rank, device = accelerator.process_index, accelerator.device
        model = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model, optimizer = accelerator.prepare(model, optimizer)
        x = torch.tensor([[float(rank)]]).to(device)
        weights = []
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2) as local:
            for _ in range(2):
                accelerator.backward(model(x).sum())
                optimizer.step()
                optimizer.zero_grad()
                weights.append(model.weight.item())
                local.step()
        weights.append(model.weight.item())
        # Accumulated by hand: one backward apart, one together.
        with accelerator.no_sync(model):
            accelerator.backward(model(x).sum())
        accelerator.backward(model(x).sum())
        optimizer.step()
        return [*weights, model.weight.item()]

    first, second = run_replicas(work, 2)
    # Rank 0's gradient is 0, rank 1's is 1.
    assert first[:2] == [1.0, 1.0]
    assert second[:2] == [0.0, -1.0]
    assert first[2:] == second[2:] == [0.0, -1.0]


def test_ranks_that_train_different_parameters_are_told_before_they_wait_for_each_other():
    def work():
        import torch

        from nbaccel import Accelerator

        accelerator = Accelerator()
        model = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        branch = model[accelerator.process_index]
        accelerator.backward(branch(torch.ones(1, 2).to(accelerator.device)).sum())
        optimizer.step()

    with pytest.raises(
        RankError, match=r"ranks 0 and 1 have gradients for different parameters \(first at number 0"
    ):
        run_replicas(work, 2)


def test_collectives_that_do_not_fit_together_are_named():
    def work():
        import torch

        from nbaccel import Accelerator

        accelerator = Accelerator()
        accelerator.gather(torch.ones(2 + accelerator.process_index).to(accelerator.device))

    with pytest.raises(RankError, match="the ranks don't call the same collective"):
        run_replicas(work, 2)


def test_bf16_trains_alike_on_every_replica():
    def work():
        from tests.xla.training import train

        result = train(mixed_precision="bf16", epochs=4)
        return result["weights"], result["accuracy"]

    (first, accuracy), (second, _) = run_replicas(work, 2)
    assert first.equal(second)
    assert accuracy > 0.7


def test_replicas_that_stopped_at_different_places_are_made_equal():
    """As a session does after a cell that failed: to rest, then rank 0's state for all."""

    def work():
        import torch

        from nbaccel import Accelerator
        from nbaccel.launch.transport.messages import Regroup
        from nbaccel.launch.worker import standing

        accelerator = Accelerator()
        rank, device = accelerator.process_index, accelerator.device
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        data = torch.full((2, 3), rank + 1.0).to(device)
        for _ in range(rank + 1):
            with accelerator.no_sync(model):
                accelerator.backward(model(data).sum())
                optimizer.step()
                optimizer.zero_grad()
        before = model.weight.detach().cpu().clone()
        if rank == 1:  # on this rank only
            _late = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
        accelerator.backward(model(data).sum())
        troubles = [standing.regroup(Regroup(number, align)) for number, align in ((1, False), (2, True))]
        dropped = model.weight.grad is None

        def state():
            moments = [optimizer.state[p][name] for p in model.parameters() for name in ("exp_avg", "step")]
            return [t.detach().cpu().flatten().tolist() for t in (*model.parameters(), *moments)]

        alike = state()
        accelerator.backward(model(data).sum())
        optimizer.step()
        return before.flatten().tolist(), troubles, dropped, alike, state()

    results = run_replicas(work, 2)
    (before, troubles, dropped, alike, after), (before_1, *same) = results
    assert before != before_1
    assert (troubles, dropped) == (["", ""], True)
    assert alike[0] == before
    assert same == [troubles, dropped, alike, after]
    assert after != alike
