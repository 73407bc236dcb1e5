"""Each part of the runtime on one replica of the real torch_xla, with nothing of it changed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.xla import training
from tests.xla.replicas import run_replicas


def test_one_cut_a_batch_and_no_compilation_after_the_first_steps():
    def work():
        import torch
        import torch_xla.debug.metrics as met

        from nbaccel import Accelerator
        from nbaccel.runtime.devices.xla_graphs import compilations
        from tests.xla.training import make_data, make_model

        accelerator = Accelerator(gradient_accumulation_steps=2)
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        # 50 samples: the last of the 7 batches has 2.
        loader = torch.utils.data.DataLoader(make_data(50), batch_size=8, shuffle=True)
        evaluation = torch.utils.data.DataLoader(make_data(50), batch_size=8)
        model, optimizer, scheduler, loader, evaluation = accelerator.prepare(
            model, optimizer, scheduler, loader, evaluation
        )
        cuts, compiled, seen = [], [], []
        for _ in range(3):
            model.train()
            before = met.counter_value("MarkStep") or 0
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
            cuts.append(met.counter_value("MarkStep") - before)
            model.eval()
            before = met.counter_value("MarkStep")
            kept, shapes = [], set()
            for x, y in evaluation:
                with torch.no_grad():
                    hits = model(x).argmax(1) == y
                shapes.add(tuple(hits.shape))
                kept.append(accelerator.gather_for_metrics(hits))
            cuts.append(met.counter_value("MarkStep") - before)
            seen.append((len(torch.cat([k.cpu() for k in kept])), sorted(shapes), kept[-1].device.type))
            compiled.append(compilations()[0])
        return cuts, compiled, seen, accelerator.step

    ((cuts, compiled, seen, steps),) = run_replicas(work, 1)
    assert cuts == [7, 7] * 3
    assert seen == [(50, [(8,)], "xla")] * 3
    assert compiled == [compiled[0]] * 3, "an epoch like the one before was compiled for"
    assert steps == 12


def test_the_last_batch_is_left_short_where_that_is_wanted():
    def work():
        from torch.utils.data import DataLoader

        from nbaccel import Accelerator, DataLoaderConfiguration

        lengths = []
        for even in (True, False):
            accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=even))
            lengths.append([len(batch) for batch in accelerator.prepare(DataLoader(range(7), batch_size=3))])
        return lengths

    assert run_replicas(work, 1) == [[[3, 3, 3], [3, 3, 1]]]


def test_a_running_variance_is_that_of_the_batch():
    """What torch_xla does, and torch doesn't: the documentation says so."""

    def work():
        import torch

        from nbaccel import Accelerator

        accelerator = Accelerator()
        x = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
        norm = accelerator.prepare(torch.nn.BatchNorm1d(1, momentum=1.0))
        norm(x.to(accelerator.device))
        return norm.running_var.item(), x.var(correction=0).item(), x.var().item()

    ((running, of_batch, unbiased),) = run_replicas(work, 1)
    assert abs(running - of_batch) < 1e-5 < unbiased - of_batch


def test_batches_are_on_their_way_before_they_are_needed_and_keep_their_type():
    def work():
        from typing import Any, NamedTuple

        import torch
        import torch_xla.debug.metrics as met

        from nbaccel import Accelerator

        class Batch(NamedTuple):
            x: Any
            rest: Any

        accelerator = Accelerator()

        def collate(samples):
            return Batch(torch.tensor(samples), {"tuple": (torch.ones(len(samples)),), "ids": list(samples)})

        loader = accelerator.prepare(
            torch.utils.data.DataLoader(list(range(12)), batch_size=3, collate_fn=collate)
        )
        start = met.metric_data("OutboundData")
        start = start[0] if start else 0
        sent, kinds = [], []
        for batch in loader:
            sent.append(met.metric_data("OutboundData")[0] - start)
            kinds.append(
                (
                    type(batch).__name__,
                    batch.x.device.type,
                    type(batch.rest["tuple"]).__name__,
                    batch.rest["tuple"][0].device.type,
                    batch.rest["ids"],
                )
            )
        return sent, kinds

    ((sent, kinds),) = run_replicas(work, 1)
    assert kinds == [("Batch", "xla", "tuple", "xla", list(range(i, i + 3))) for i in range(0, 12, 3)]
    # One transfer a batch; while a batch is worked on, the next is there as well.
    assert sent == [2, 3, 4, 4]


def test_bf16_runs_under_autocast_and_fp16_says_bf16():
    def work():
        import pytest
        import torch

        from nbaccel import Accelerator
        from tests.xla.training import train

        accelerator = Accelerator(mixed_precision="bf16")
        inside = []

        class Model(torch.nn.Linear):
            def forward(self, x):
                y = super().forward(x)
                inside.append(y.dtype)
                return y

        model = accelerator.prepare(Model(4, 2))
        outside = model(torch.ones(3, 4).to(accelerator.device)).dtype
        with pytest.raises(ValueError, match="use bf16"):
            Accelerator(mixed_precision="fp16")
        full, half = train(epochs=4), train(epochs=4, mixed_precision="bf16")
        apart = float((full["weights"] - half["weights"]).abs().max())
        return str(inside[0]), str(outside), str(model.weight.dtype), half["accuracy"], apart

    ((inside, outside, weights, accuracy, apart),) = run_replicas(work, 1)
    assert (inside, outside, weights) == ("torch.bfloat16", "torch.float32", "torch.float32")
    assert accuracy > 0.7
    assert 0 < apart < 0.2


def test_files_are_written_for_readers_without_xla(tmp_path):
    def work(folder):
        import torch
        from torch import nn

        from nbaccel import Accelerator
        from nbaccel.utils import set_seed

        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
                self.b.weight = self.a.weight

            def forward(self, x):
                return self.b(torch.nn.functional.dropout(self.a(x), 0.5))

        accelerator = Accelerator()
        set_seed(11)
        model = Tied()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        assert accelerator.unwrap_model(model) is model
        assert model.a.weight is model.b.weight

        def steps(count):
            for _ in range(count):
                accelerator.backward(model(torch.ones(2, 4).to(accelerator.device)).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            return model.a.weight.detach().cpu().clone()

        steps(3)
        accelerator.save_state(f"{folder}/state")
        accelerator.save_model(model, f"{folder}/model")
        accelerator.save(accelerator.get_state_dict(model), f"{folder}/plain.pt")
        accelerator.save({"w": model.a.weight}, f"{folder}/raw.pt")
        # Dropout draws from the device's generator, whose state is part of the checkpoint.
        first = steps(3)
        accelerator.load_state(f"{folder}/state")
        again = steps(3)
        return first, again, model.a.weight is model.b.weight, accelerator.step

    ((first, again, still_tied, step),) = run_replicas(work, 1, str(tmp_path))
    assert first.equal(again)
    assert still_tied
    assert step == 6
    read = textwrap.dedent(
        """
        import sys, pathlib, torch
        from safetensors.torch import load_file
        assert "torch_xla" not in sys.modules
        folder = pathlib.Path(sys.argv[1])
        for file in folder.rglob("*.pt"), folder.rglob("*.bin"):
            for path in file:
                torch.load(path, weights_only=True)
        kept = [load_file(path) for path in folder.rglob("*.safetensors")]
        assert kept and all(list(one) == ["a.weight"] for one in kept), [list(one) for one in kept]
        state = torch.load(folder / "state/optimizer.bin", weights_only=True)["state"][0]
        print({tensor.device.type for tensor in state.values()}, torch.load(folder / "raw.pt")["w"].device)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", read, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["{'cpu'}", "cpu"]


def test_random_numbers_follow_seed_and_state():
    def work():
        import torch

        from nbaccel import Accelerator
        from nbaccel.runtime import rng
        from nbaccel.utils import set_seed, synchronize_rng_states

        unit = Accelerator().device

        def draw():
            return torch.rand(3, device=unit).tolist()

        set_seed(4)
        first = draw()
        state = rng.full_state(unit)
        second = draw()
        rng.set_full_state(state, unit)
        again = draw()
        set_seed(4)
        synchronize_rng_states(["xla"])
        return first, second, again, draw()

    ((first, second, again, from_the_start),) = run_replicas(work, 1)
    assert first != second
    assert second == again
    assert from_the_start == first


def test_compiling_that_goes_on_is_told_once_with_its_place():
    def work():
        import warnings

        from nbaccel import Accelerator

        accelerator = Accelerator()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            training.sums_of(accelerator, [4] * 30)
            quiet = len(caught)
            training.sums_of(accelerator, range(3, 33))
        return quiet, [(w.filename, w.lineno, str(w.message)) for w in caught]

    ((quiet, told),) = run_replicas(work, 1)
    assert quiet == 0
    assert len(told) == 1
    name, line, text = told[0]
    assert name == training.__file__
    assert Path(name).read_text().splitlines()[line - 1].strip() == "for x in loader:"
    assert text.startswith("XLA still compiles: 8 of the last")
    assert "different shapes ((" in text
    assert "pad them to one length" in text


def test_checks_that_scripts_make_say_where_they_are():
    def work():
        from nbaccel import Accelerator, PartialState
        from nbaccel.utils import is_torch_xla_available

        accelerator = Accelerator()
        state = PartialState()
        return is_torch_xla_available(), str(accelerator.distributed_type), str(state.device), state.backend

    assert run_replicas(work, 1) == [(True, "DistributedType.XLA", "xla:0", None)]
