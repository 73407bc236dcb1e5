"""Libraries of the notebook are ready before the first launch that needs them."""

from __future__ import annotations

import collections
import os
import time

import numpy as np

from nbaccel.launch.zygotes.prewarm import modules_in_use

CODE = """
import sys, time, json
import sklearn.linear_model
from nbaccel import notebook_launcher
from nbaccel.launch.zygotes import zygote_client
"""

LOADED = """
zygote_client.preload_in_background(frozenset())
print("ready" if any(child.is_fit() and "sklearn.linear_model" in child.ready.loaded
                     for child in zygote_client._family.children) else "not yet")
"""


def test_modules_are_found_by_what_is_in_a_namespace():
    values = [np, collections.OrderedDict, os.path.join, np.random.rand, 3, "text", object()]
    found = set(modules_in_use(values))
    assert {"numpy", "collections", "posixpath"} <= found


def test_what_a_cell_imported_is_imported_before_the_first_launch(fresh_kernel):
    fresh_kernel.run(CODE)
    deadline = time.monotonic() + 90
    # Each cell gives the kernel an occasion to look; a person takes longer to write one.
    while "not yet" in fresh_kernel.run(LOADED).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    result = fresh_kernel.run(
        "notebook_launcher(lambda: print('had it:', 'sklearn.linear_model' in sys.modules), cpu=True)"
    )
    assert "had it: True" in result.stdout


def test_it_can_be_turned_off(fresh_kernel):
    fresh_kernel.run("import os; os.environ['NBACCEL_PREWARM'] = '0'")
    fresh_kernel.run(CODE)
    assert "None" in fresh_kernel.run("print(zygote_client._family)").stdout
