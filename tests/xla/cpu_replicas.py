"""Makes several replicas of torch_xla's CPU client reliable enough to test with. Never part of the product.

XLA's CPU client brings replicas together by the identity of the compiled program, and torch_xla gives no
such guarantee where replicas are threads. Out of the box each collective ends the process after some ten
seconds. Five things are changed, in the process that :func:`install` is called in:

1. Two threads that miss the cache of programs together compile two programs. So one replica at a time is let
   through the part of a cut that looks up or compiles; the next follows once a counter tells that the first
   is past it, since the rest may wait for the other replicas.
2. A gather with a pinned layout, the default, has the rank in its graph. It is replaced by the plain one.
3. A cut frees graph nodes while it holds the interpreter lock. On the CPU, freeing waits for the running
   program, which waits for the peer, which waits for the lock. So a cut first waits for its own device with
   the lock released.
4. A cut with nothing to do waits for device 0, whoever makes it. It is always left something to do.
5. Waiting for devices takes the locks of the peers' too. It is limited to the own one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

_binding = torch_xla._XLAC
_once = threading.Lock()
_installed = False


class _Gate:
    """A lock that is handed on when its holder is past compiling, though not back yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._entered_at = (0, 0)

    @contextmanager
    def one_at_a_time(self):
        me = threading.get_ident()
        while not self._take(me):
            time.sleep(0.0005)
        try:
            yield
        finally:
            with self._lock:
                if self._holder == me:
                    self._holder = None

    def _take(self, me: int) -> bool:
        with self._lock:
            graphs, compiled = _progress()
            if self._holder is not None:
                if graphs <= self._entered_at[0]:
                    return False
                if compiled > self._entered_at[1]:
                    # The program enters the cache just after the counter has told of it.
                    time.sleep(0.05)
            self._holder, self._entered_at = me, _progress()
            return True


def _progress() -> tuple[int, int]:
    """Graphs that were looked up so far, and programs compiled; both grow while a holder goes through."""
    sizes = met.metric_data("TensorsGraphSize")
    return (sizes[0] if sizes else 0), (met.counter_value("UncachedCompile") or 0)


def _own_device() -> list[str]:
    return xm.xla_real_devices([_binding._xla_get_default_device()])


def install() -> None:
    """Change torch_xla in this process, once."""
    global _installed
    with _once:
        if _installed:
            return
        _installed = True
    cut_all, cut_some, wait_for = (
        _binding._xla_step_marker,
        _binding._xla_sync_multi,
        _binding._xla_wait_device_ops,
    )
    gate, left = _Gate(), threading.local()

    def leave_something() -> None:
        with torch.no_grad():
            if not hasattr(left, "one"):
                left.one = torch.ones(1).to(_binding._xla_get_default_device())
            left.pending = left.one + left.one

    def step_marker(
        device: str, devices: Iterable[str] = (), wait: bool = True, reset_scope: bool = True
    ) -> None:
        leave_something()
        wait_for(_own_device())
        with gate.one_at_a_time():
            cut_all(device, list(devices), wait=False, reset_scope=reset_scope)
        wait_for(_own_device())

    def sync_multi(
        tensors: Sequence[torch.Tensor], devices: Any, wait: bool = True, sync_xla_data: bool = True
    ) -> None:
        needed = _binding._check_tensor_need_materialization(list(tensors))
        pending = [tensor for tensor, is_needed in zip(tensors, needed, strict=True) if is_needed]
        wait_for(_own_device())
        if pending:
            with gate.one_at_a_time():
                cut_some(pending, devices, wait=False, sync_xla_data=sync_xla_data)
            wait_for(_own_device())

    _binding._xla_step_marker, _binding._xla_sync_multi = step_marker, sync_multi
    _binding._xla_wait_device_ops = lambda devices=(): wait_for(list(devices) or _own_device())
    xm._all_gather_using_all_reduce = lambda value, dim=0, groups=None, pin_layout=True: xm.all_gather(
        value, dim=dim, groups=groups, pin_layout=False
    )

    def through_the_gate(method: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.device.type == "xla":
                sync_multi([self], [], wait=True, sync_xla_data=True)
            return method(self, *args, **kwargs)

        return read

    for name in ("cpu", "item", "tolist", "__bool__", "__float__", "__int__", "__index__"):
        setattr(torch.Tensor, name, through_the_gate(getattr(torch.Tensor, name)))
