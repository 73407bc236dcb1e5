"""Running a script on several processes, by torch's elastic agent.

::

    nbaccel launch ──▶ job ──▶ ScriptAgent (torch's LocalElasticAgent)
                                 │  starts, counts restarts, meets other machines
                                 ▼
                       guard ──exec──▶ python train.py      one a rank, each its own session
                                 │ pipes
                                 ▼
                       streams ──▶ labels, tail of stderr, log files

The agent runs in the main thread, the streams are read in one thread beside it.
"""

from __future__ import annotations
