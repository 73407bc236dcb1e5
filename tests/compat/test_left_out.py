"""A name or module that is left out says so, in one line, however it is asked for."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType

import pytest

import nbaccel
from nbaccel import state, utils
from nbaccel.accelerator import Accelerator
from nbaccel.left_out import LEFT_OUT, LEFT_OUT_MODULES
from tests.compat import surface


def run(line: str) -> None:
    exec(line, {})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("from nbaccel.utils import DeepSpeedPlugin", "DeepSpeedPlugin is left out of nbaccel: DeepSpeed"),
        ("from nbaccel import ParallelismConfig", "ParallelismConfig is left out of nbaccel: other kinds"),
        ("from nbaccel.state import ThreadLocalSharedDict", "ThreadLocalSharedDict is left out"),
        (
            "from nbaccel.hooks import ModelHook",
            "nbaccel.hooks is left out of nbaccel: models that don't fit",
        ),
        ("import nbaccel.utils.deepspeed", "nbaccel.utils.deepspeed is left out"),
        ("from nbaccel import big_modeling", "big_modeling is left out of nbaccel: models that don't fit"),
        ("from nbaccel.utils import megatron_lm", "megatron_lm is left out of nbaccel: Megatron"),
        ("from nbaccel.utils.operations import gathr", "has no name 'gathr'; did you mean 'gather'?"),
    ],
)
def test_an_import_of_what_is_left_out_says_why(line: str, says: str) -> None:
    with pytest.raises(ImportError) as caught:
        run(line)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_looking_for_a_name_is_not_importing_it() -> None:
    for module in (nbaccel, utils, state):
        assert not hasattr(module, "ParallelismConfig")
        with pytest.raises(AttributeError, match=r"ParallelismConfig is left out of nbaccel: .*parallelism"):
            _ = module.ParallelismConfig


def test_members_that_are_left_out_say_why_and_misspelt_ones_what_was_meant() -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(AttributeError, match=r"Accelerator.lomo_backward is left out of nbaccel: LOMO"):
        accelerator.lomo_backward(1, 2)
    with pytest.raises(AttributeError, match=r"has no attribute 'gather_for_metric'; did you mean"):
        accelerator.gather_for_metric(1)
    assert not hasattr(accelerator.state, "get_deepspeed_plugin")
    loader = accelerator.prepare(surface.specimens("nbaccel")["DataLoaderShard"])
    with pytest.raises(AttributeError, match=r"DataLoaderShard.set_sampler is left out of nbaccel: prepare"):
        loader.set_sampler(None)


def test_what_is_not_in_use_is_answered_so() -> None:
    accelerator = Accelerator(cpu=True)
    for each in (accelerator, accelerator.state, state.PartialState()):
        assert each.deepspeed_plugin is each.parallelism_config is each.fsdp_plugin is None
        assert each.is_fsdp2 is False
    assert accelerator.has_lomo_optimizer is accelerator.fp8_enabled is accelerator.native_amp is False
    assert Accelerator(cpu=True, mixed_precision="bf16").native_amp is True


def test_every_module_of_the_incumbent_is_here_or_says_why() -> None:
    modules = json.loads(surface.SNAPSHOT.read_text())["modules"]
    assert len(modules) > 25
    for suffix in modules:
        if surface.below(suffix) in LEFT_OUT_MODULES:
            with pytest.raises(ModuleNotFoundError, match="is left out of nbaccel: "):
                importlib.import_module(f"nbaccel{suffix}")
        else:
            assert isinstance(importlib.import_module(f"nbaccel{suffix}"), ModuleType)
    # Only what was asked for is answered: another package's module of the same name isn't.
    assert sys.meta_path[-1].find_spec("other.hooks") is None


def test_a_submodule_and_a_function_of_one_name() -> None:
    import nbaccel.utils.tqdm

    assert callable(nbaccel.utils.tqdm)


def test_no_reason_is_given_twice() -> None:
    every = [name for names in LEFT_OUT.values() for name in names.split()]
    assert len(every) == len(set(every))
