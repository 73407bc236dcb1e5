"""The Accelerator as a training loop sees it: alone, and on several ranks."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbaccel
from nbaccel.accelerator import Accelerator
from nbaccel.launchers import debug_launcher, notebook_launcher
from nbaccel.magics.options import OptionError, parse_line
from nbaccel.runtime import plugins
from nbaccel.runtime.plugins import (
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)
from tests.runtime.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("rank_server")


def _data(n: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator)
    return TensorDataset(x, x @ torch.arange(6.0) + 1)


def _train(batch: int, epochs: int = 2, **options: object) -> torch.Tensor:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, **options)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(_data(), batch_size=batch)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x).squeeze(1), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in accelerator.unwrap_model(model).parameters()])


def test_training_on_ranks_equals_one_process_with_the_whole_batch() -> None:
    reference = _train(batch=8)
    for n in (2, 4):
        for weights in run_ranks(_train, n, batch=8 // n):
            torch.testing.assert_close(weights, reference)


def test_accumulation_equals_the_whole_batch() -> None:
    reference = _train(batch=8)
    torch.testing.assert_close(_train(batch=2, gradient_accumulation_steps=4), reference)
    for weights in run_ranks(_train, 2, batch=2, gradient_accumulation_steps=2):
        torch.testing.assert_close(weights, reference)


def test_fp16_and_bf16_train_on_ranks() -> None:
    reference = _train(batch=8)
    # The first losses are large: at the default scale their gradients overflow, and steps are skipped.
    small = [GradScalerKwargs(init_scale=16.0)]
    for options in ({"fp16": True, "kwargs_handlers": small}, {"mixed_precision": "bf16"}):
        for weights in run_ranks(_train, 2, batch=4, **options):
            assert not torch.equal(weights, reference)
            torch.testing.assert_close(weights, reference, atol=0.05, rtol=0.1)


def test_B031_alone_it_is_a_runtime_of_one_process() -> None:
    accelerator = Accelerator(cpu=True)
    tensor = torch.tensor([1.0])
    assert accelerator.gather(tensor).tolist() == [1.0]
    assert accelerator.reduce(tensor, "mean").tolist() == [1.0]
    accelerator.wait_for_everyone()
    assert not torch.distributed.is_initialized()
    assert (accelerator.num_processes, accelerator.process_index, accelerator.is_main_process) == (1, 0, True)


def test_B030_after_end_training_collectives_are_refused() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.end_training()
    accelerator.end_training()
    with pytest.raises(RuntimeError, match="end_training"):
        accelerator.gather(torch.ones(1))

    def on_ranks() -> str:
        ended = Accelerator(cpu=True)
        ended.end_training()
        ended.end_training()
        with pytest.raises(RuntimeError, match="end_training") as caught:
            ended.wait_for_everyone()
        return str(caught.value)

    assert len(run_ranks(on_ranks, 2)) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"fp16": True}, "fp16"), ({"bf16": True}, "bf16"), ({"mixed_precision": "BF16"}, "bf16"), ({}, "no")],
)
def test_precision_spellings(arguments: dict[str, object], expected: str) -> None:
    assert Accelerator(cpu=True, **arguments).mixed_precision == expected


def test_B113_an_unknown_or_contradictory_precision_is_an_error() -> None:
    with pytest.raises(ValueError, match="no, fp16, bf16, fp8"):
        Accelerator(cpu=True, mixed_precision="fp32")
    with pytest.raises(ValueError, match="fp16 and bf16"):
        Accelerator(cpu=True, fp16=True, mixed_precision="bf16")


def test_precision_comes_from_the_launch_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from nbaccel import config

    config.set_active_spec(config.LaunchSpec(mixed_precision="bf16"))
    try:
        assert Accelerator().mixed_precision == "bf16"
        with pytest.warns(UserWarning, match="'no'\\) is used, though the launch said 'bf16'"):
            assert Accelerator(mixed_precision="no").mixed_precision == "no"
    finally:
        config.set_active_spec(None)
    monkeypatch.setenv("NBACCEL_MIXED_PRECISION", "fp16")
    assert Accelerator(cpu=True).mixed_precision == "fp16"


def test_prepared_models_can_be_copied_and_pickled() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.prepare(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    expected = model(x)
    assert expected.dtype is torch.float32
    twin = copy.deepcopy(model)
    assert twin.forward.module is twin
    loaded = pickle.loads(pickle.dumps(model))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (twin, loaded, torch.load(buffer, weights_only=False)):
        torch.testing.assert_close(other(x), expected)
    plain = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    assert plain is model
    assert "forward" not in plain.__dict__


def test_prepare_keeps_the_order_of_its_arguments_and_passes_others_through() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(range(4), 2)
    got = accelerator.prepare(scheduler, "text", loader, optimizer, model)
    assert [type(x).__name__ for x in got] == [
        "AcceleratedScheduler",
        "str",
        "DataLoaderShard",
        "AcceleratedOptimizer",
        "Linear",
    ]
    assert accelerator.prepare(got[3]) is got[3]
    with pytest.raises(ValueError, match="2 entries for 1"):
        accelerator.prepare(model, device_placement=[True, False])


def test_B115_accumulation_is_configured_only_where_the_script_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NBACCEL_GRADIENT_ACCUMULATION_STEPS", "4")
    assert Accelerator(cpu=True).gradient_accumulation_steps == 4
    assert Accelerator(cpu=True, gradient_accumulation_steps=1).gradient_accumulation_steps == 1
    assert Accelerator(cpu=True, gradient_accumulation_steps=2).gradient_accumulation_steps == 2


@pytest.mark.parametrize(
    ("make", "argument", "remedy"),
    [
        (Accelerator, "even_batches", r"write dataloader_config=DataLoaderConfiguration(even_batches=...)"),
        (Accelerator, "dispatch_batches", "DataLoaderConfiguration(dispatch_batches=...)"),
        (Accelerator, "use_seedable_sampler", "DataLoaderConfiguration(use_seedable_sampler=...)"),
        (Accelerator, "logging_dir", "write project_config=ProjectConfiguration(logging_dir=...)"),
        (Accelerator, "find_unused_parameters", "=[DistributedDataParallelKwargs(find_unused_parameters="),
        (Accelerator, "mixed_precison", "did you mean 'mixed_precision'?"),
        (Accelerator, "gradient_accumulation_step", "did you mean 'gradient_accumulation_steps'?"),
        (notebook_launcher, "num_process", "did you mean 'num_processes'?"),
        (notebook_launcher, "nprocs", "write num_processes=..."),
        (notebook_launcher, "epochs", "kwargs={'epochs': ...}"),
        (nbaccel.session, "num_procs", "did you mean 'num_processes'?"),
        (debug_launcher, "num_proceses", "did you mean 'num_processes'?"),
        (DataLoaderConfiguration, "even_batch", "did you mean 'even_batches'?"),
        (GradientAccumulationPlugin, "n_steps", "did you mean 'num_steps'?"),
        (TorchDynamoPlugin, "use_regional_compilation", "torch.compile before prepare"),
        (ProjectConfiguration, "projectdir", "did you mean 'project_dir'?"),
    ],
)
def test_an_argument_that_is_not_there_is_answered_with_what_to_write(
    make: Any, argument: str, remedy: str
) -> None:
    with pytest.raises(TypeError) as caught:
        make(**{argument: 1})
    assert str(caught.value).startswith(f"{make.__name__}() has no argument {argument!r}; ")
    assert remedy in str(caught.value)


def test_every_option_object_knows_its_misspelt_fields_and_keeps_its_signature() -> None:
    kinds = [kind for kind in vars(plugins).values() if dataclasses.is_dataclass(kind)]
    assert len(kinds) >= 9
    for kind in kinds:
        first = dataclasses.fields(kind)[0].name  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"did you mean '{first}'"):
            kind(**{f"{first}x": 1})
        assert list(inspect.signature(kind).parameters) == [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    assert "mixed_precision" in inspect.signature(Accelerator).parameters


@pytest.mark.parametrize(
    ("word", "meant"), [("float16", "fp16"), ("half", "fp16"), ("bfloat16", "bf16"), ("fp32", "no")]
)
def test_a_precision_by_another_name_is_answered_with_ours(word: str, meant: str) -> None:
    wanted = f"is called '{meant}' here; choose one of no, fp16, bf16, fp8"
    with pytest.raises(ValueError, match=f"mixed_precision='{word}' {wanted}"):
        Accelerator(cpu=True, mixed_precision=word)
    with pytest.raises(ValueError, match=wanted):
        notebook_launcher(print, num_processes=1, mixed_precision=word)
    with pytest.raises(OptionError, match=f"--mixed-precision {word}: called '{meant}' here"):
        parse_line(f"--cpu --mixed-precision {word}")


def test_checking_the_names_of_arguments_leaves_no_frame_behind() -> None:
    with pytest.raises(ValueError, match="pass dynamo_backend or dynamo_plugin") as caught:
        Accelerator(cpu=True, dynamo_backend="EAGER", dynamo_plugin=TorchDynamoPlugin())
    assert [entry.name for entry in caught.traceback][1:] == ["__init__", "_compiler"]
