"""Launches on XLA devices: how the ranks of a TPU host lie on processes, and what brings them up.

A TPU chip belongs to one process. Chips of most kinds are one core each: one process a rank, as
everywhere. Chips of v2 and v3 are two cores, which share a process: two ranks then are two threads of
one worker. torch_xla's CPU client with ``CPU_NUM_DEVICES=N`` is N threads of one process::

    WorkerGroup ──▶ Member (one a rank) ──▶ process 0 ──▶ main thread      local rank 0
                                                     └──▶ replica thread   local rank 1
                ──▶ ...                 ──▶ process 1 ──▶ main thread      local rank 2 ...

Each rank, thread or process, has its own channel, pipes and supervision, so that values, labels,
failures, stacks and time limits are those of any other launch. What the runtime in a worker may rely on:

* ``config.active_spec().device_type`` is ``"xla"``; ``.num_processes`` is the number of ranks,
  ``.threads_per_process`` how many of them share a process.
* The workers are forked from a process that never imported torch_xla. Their environment
  (``PJRT_DEVICE``, ``TPU_VISIBLE_CHIPS``, ``TPU_PROCESS_ADDRESSES``, ...) is complete before torch_xla is
  imported, see :func:`process_environ`.
* Before any user code the XLA runtime was started in the process's main thread, a backward pass ran
  there, and the rank's own device was made the default of the rank's thread: ``torch_xla.device()`` is it
  (:mod:`nbaccel.launch.xla_start`).
* ``ProcessEnvironment.detect()`` says the rank of the thread that asks: the global ordinal that XLA gave
  its device. Where ranks share a process ``RANK`` and ``LOCAL_RANK`` aren't set: they would be wrong for
  all threads but one.
* There is no process group: ``torch.distributed`` isn't used on XLA devices.
* ``PJRT_DEVICE=CPU`` together with ``CPU_NUM_DEVICES=N`` chooses torch_xla's CPU client: a rehearsal of the
  whole way without a TPU. Several ranks on it need a shim that only the tests have.

Must not import torch_xla in the kernel, nor call anything of it that starts its runtime.
"""

from __future__ import annotations
