"""One line for a capture that is larger than the limit, with the variables that make it so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nbaccel.config import LaunchSpec
from nbaccel.launch.payload import capture, payload

MB = 1 << 20


def told(call, capsys, limit_mb=1.0):
    with payload.dump_call(call) as packed:
        capture.warn_if_large(call, packed, LaunchSpec(capture_warn_mb=limit_mb))
    return capsys.readouterr().err


def make():
    weights = torch.zeros(3 * MB // 4)
    table = np.zeros(2 * MB // 8)

    def inner():
        return table

    def train(data, factor=1):
        return weights, inner(), data, factor

    return train


def test_the_largest_come_first_also_those_of_called_functions(capsys):
    line = told((make(), (b"x" * (6 * MB),), {"factor": 2}), capsys)
    assert line == (
        "nbaccel: 11 MB go to the workers with the function; largest: argument 'data' 6 MB, 'weights' 3 MB, "
        "'table' 2 MB. They share one copy; set NBACCEL_CAPTURE_WARN_MB to be told later or never (0)\n"
    )


def test_small_ones_are_not_mentioned(capsys):
    assert told((make(), ([],), {}), capsys, limit_mb=100) == ""


def test_attributes_of_a_bound_methods_owner_count(capsys):
    class Trainer:
        def __init__(self):
            self.data = torch.zeros(2 * MB // 4)

        def fit(self):
            return self.data

    assert "largest: self 2 MB" in told((Trainer().fit, (), {}), capsys)


def test_of_a_view_only_what_is_sent_counts():
    table = torch.zeros(64 * MB // 4)
    assert capture.variable_sizes((len, (table[:10],), {}))["argument 'obj'"] < 10_000


def test_the_environment_sets_the_limit(capsys, monkeypatch):
    call = (make(), ([],), {})
    monkeypatch.setenv(capture.LIMIT_NAME, "0")
    assert told(call, capsys) == ""
    monkeypatch.setenv(capture.LIMIT_NAME, "0.5")
    assert "go to the workers" in told(call, capsys, limit_mb=100)
    monkeypatch.setenv(capture.LIMIT_NAME, "lots")
    with pytest.raises(ValueError, match="NBACCEL_CAPTURE_WARN_MB='lots' must be a number of MiB"):
        told(call, capsys)


def test_the_default_is_a_gigabyte():
    assert capture.limit_bytes(LaunchSpec()) == 1 << 30


def test_what_can_not_be_measured_alone_counts_nothing():
    assert capture.variable_sizes((len, ((i for i in range(2)),), {})) == {"argument 'obj'": 0}
