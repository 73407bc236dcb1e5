"""Runs at the start of every Python process of a test run (this folder is on their PYTHONPATH).

Makes SIGUSR1 write the stacks of all threads to the file that the run named. The handler is in C: it
answers also while the main thread waits in a collective. Forked workers inherit it. See tests/deadline.py.
"""

import faulthandler
import os
import signal

_path = os.environ.get("NBACCEL_TEST_STACKS")
if _path and os.path.exists(os.path.dirname(_path)):
    # Kept open for good, and unbuffered: the handler writes to the bare descriptor.
    _stacks = open(_path, "ab", buffering=0)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file=_stacks, all_threads=True, chain=False)
