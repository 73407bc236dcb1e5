"""The line of ``%%accelerate``: what it means, and what is said of a line that means nothing."""

from __future__ import annotations

import pytest

from nbaccel.magics.completion import candidates
from nbaccel.magics.help import cell_help, line_help
from nbaccel.magics.options import OPTIONS, CellOptions, OptionError, parse_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", CellOptions()),
        ("  # a comment", CellOptions()),
        ("--gpus 4", CellOptions(gpus=4)),
        ("--gpus=4", CellOptions(gpus=4)),
        ("--gpu-ids 0,2", CellOptions(gpu_ids=(0, 2))),
        ("--gpu_ids 0,2", CellOptions(gpu_ids=(0, 2))),
        ("--cpu -n 2", CellOptions(cpu=True, num_processes=2)),
        ("--cpu --num-processes 2", CellOptions(cpu=True, num_processes=2)),
        ("--fp16", CellOptions(mixed_precision="fp16")),
        ("--bf16 --mixed-precision BF16", CellOptions(mixed_precision="bf16")),
        ("--mixed-precision no", CellOptions(mixed_precision="no")),
        ("--ranks 0,2", CellOptions(ranks=(0, 2))),
        ("--output main", CellOptions(output="main")),
        ("--timeout 2.5", CellOptions(timeout=2.5)),
        ("-o loss,accuracy", CellOptions(out=("loss", "accuracy"))),
        ("--out 'loss, accuracy'", CellOptions(out=("loss", "accuracy"))),
        ("--fresh --gpus 2 -n 2", CellOptions(fresh=True, gpus=2, num_processes=2)),
        ("--gpus 2 --gpu-ids 1,3", CellOptions(gpus=2, gpu_ids=(1, 3))),
    ],
)
def test_lines(line: str, expected: CellOptions) -> None:
    assert parse_line(line) == expected


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--gpu 4", ["--gpu", "did you mean --gpus?"]),
        ("--num-proceses 2", ["did you mean --num-processes?"]),
        ("--zzz", ["--zzz", "choose among"]),
        ("model.fit()", ["'model.fit()'", "next line"]),
        ("--gpus", ["--gpus needs a value"]),
        ("--gpus --fp16", ["--gpus needs a value"]),
        ("--gpus two", ["--gpus two", "whole number"]),
        ("--gpus 0", ["--gpus 0", "at least 1"]),
        ("--gpu-ids 0;1", ["--gpu-ids 0;1", "list of numbers"]),
        ("--gpu-ids 1,1", ["1 is named twice"]),
        ("--cpu=1", ["--cpu takes no value"]),
        ("--mixed-precision fp32", ["fp32", "no, fp16, bf16, fp8"]),
        ("--output both", ["both", "all, main, none"]),
        ("--timeout soon", ["--timeout soon", "seconds"]),
        ("--timeout 0", ["--timeout 0", "above 0"]),
        ("--timeout nan", ["--timeout nan"]),
        ("-o", ["-o needs a value: -o NAMES, e.g. -o loss,accuracy"]),
        ("--ranks --cpu", ["e.g. --ranks 0,2"]),
        ("-o a b", ["'b' is no option", "write -o a,b"]),
        ("--out=a, b ,c --cpu", ["'b' is no option", "write --out a,b,c"]),
        ("--ranks 0 1 2 --cpu", ["'1' is no option", "write --ranks 0,1,2"]),
        ("--gpu-ids 0 1", ["write --gpu-ids 0,1"]),
        ("-o loss model.fit()", ["'model.fit()' is no option", "next line"]),
        ("--cpu b", ["'b' is no option", "next line"]),
        ("-o 1a", ["'1a'", "no name"]),
        ("--cpu --gpus 2", ["--cpu and --gpus 2", "contradict"]),
        ("--cpu --gpu-ids 0", ["--cpu and --gpu-ids 0", "contradict"]),
        ("--gpus 2 -n 3", ["--gpus 2 and -n 3", "contradict"]),
        ("--gpu-ids 0,1 -n 3", ["--gpu-ids 0,1 and -n 3", "contradict"]),
        ("--gpu-ids 0,1 --gpus 3", ["--gpu-ids 0,1 and --gpus 3"]),
        ("--fp16 --bf16", ["--fp16 and --bf16", "contradict"]),
        ("--mixed-precision no --bf16", ["--mixed-precision no and --bf16"]),
        ("-n 2 --num-processes 3", ["-n 2 and --num-processes 3"]),
        ("--out 'a", ["No closing quotation"]),
    ],
)
def test_lines_that_mean_nothing(line: str, parts: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse_line(line)
    for part in parts:
        assert part in str(caught.value)


def test_help_shows_every_option_and_examples() -> None:
    for option in OPTIONS:
        assert all(name in cell_help() for name in option.names)
        assert option.help in cell_help()
    assert "%%accelerate --gpus 4" in cell_help()
    assert "%accelerate pull NAME" in line_help()


@pytest.mark.parametrize(
    ("is_cell", "before", "expected"),
    [
        (True, [], "--gpus"),
        (True, ["--cpu"], "-n"),
        (True, ["--output"], "main"),
        (True, ["--mixed-precision"], "bf16"),
        (False, [], "status"),
        (False, ["push"], "model"),
    ],
)
def test_completion(is_cell: bool, before: list[str], expected: str) -> None:
    assert expected in candidates(is_cell, before, ["model", "_hidden"])


def test_completion_offers_no_options_where_a_value_is_due() -> None:
    assert candidates(True, ["--timeout"], []) == []
    assert "_hidden" not in candidates(False, ["push"], ["model", "_hidden"])
    assert candidates(False, ["status"], ["model"]) == []
