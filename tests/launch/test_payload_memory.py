"""Memory of payloads: one copy for all workers, written over only when nobody reads, and no memfd needed."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from nbaccel import notebook_launcher
from nbaccel.launch.payload import memory, payload
from nbaccel.launch.system import process
from nbaccel.launch.zygotes import zygote_client

BIG = 8 << 20


@pytest.fixture(params=["memfd", "temporary file"])
def kind(request, monkeypatch):
    """Both kinds of file, the second as on systems without the first."""
    if request.param == "temporary file":
        monkeypatch.delattr(os, "memfd_create")
    yield request.param
    if request.param == "temporary file":
        zygote_client.stop_zygote()  # its log would be such a file too


def dump(value):
    return payload.dump_call((len, (value,), {}))


def load(packed):
    return packed.load()[1][0]


def inode(packed):
    return os.fstat(packed.fd).st_ino


# --- one copy -------------------------------------------------------------------------------------


def test_nothing_is_visible_in_a_file_system(kind):
    before = set(os.listdir(tempfile.gettempdir()))
    with dump(np.ones(BIG // 8)) as packed:
        assert set(os.listdir(tempfile.gettempdir())) == before
        target = os.readlink(f"/proc/self/fd/{packed.fd}")
        assert target.endswith("(deleted)")
        assert target.startswith("/memfd:") == (kind == "memfd")
        assert load(packed).sum() == BIG // 8


def _writes_in_turn(tensor, array):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 1:
        tensor.fill_(5)
        array[:] = 5
    dist.barrier()
    seen = tensor.sum().item(), float(array.sum())
    dist.destroy_process_group()
    return seen


def test_a_worker_writes_and_nobody_else_sees_it(kind):
    tensor, array = torch.ones(10_000), np.ones(10_000)
    seen = notebook_launcher(_writes_in_turn, (tensor, array), 2, cpu=True, returns="all")
    assert seen == [(10_000, 10_000), (50_000, 50_000)]
    assert tensor.sum().item() == 10_000
    assert array.sum() == 10_000


def _share_while_all_have_read(tensor):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = tensor.sum().item()
    dist.barrier()  # all have read it, none has ended
    share = psutil.Process().memory_full_info().pss
    dist.barrier()
    dist.destroy_process_group()
    return share, total


@pytest.mark.parametrize("count", [2, 4])
def test_B150_workers_share_what_they_only_read(count):
    def launch(tensor):
        told = notebook_launcher(_share_while_all_have_read, (tensor,), count, cpu=True, returns="all")
        assert {total for _, total in told} == {float(tensor.numel())}
        return sum(share for share, _ in told)

    # Against workers that were given next to nothing, so that copies made on arrival count.
    tensor = torch.ones(200 << 20 >> 2)
    assert launch(tensor) - launch(torch.ones(1)) < 1.5 * tensor.nbytes


def test_a_result_can_be_written_and_its_memory_goes_with_it():
    result = notebook_launcher(_make_large, (), 1, cpu=True)
    result.fill_(2)
    assert result[-1].item() == 2
    assert "nbaccel-payload" in Path("/proc/self/maps").read_text()
    del result
    assert "nbaccel-payload" not in Path("/proc/self/maps").read_text()


def _make_large():
    return torch.ones(BIG // 4)


def test_nothing_that_was_sent_is_kept_alive():
    array, tensor = np.ones(10), torch.ones(10)
    held = weakref.ref(array), weakref.ref(tensor)
    gc.disable()
    try:
        with dump([array, tensor]):
            pass
        del array, tensor
        assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()


# --- written over ---------------------------------------------------------------------------------


def test_the_next_payload_takes_over_the_memory(kind):
    with dump(np.ones(BIG // 8)) as packed:
        first = inode(packed)
    with dump(np.full(BIG // 8, 2.0)) as packed:
        assert inode(packed) == first
        assert load(packed).sum() == 2 * BIG // 8
    with dump({"small": np.arange(100)}) as packed:
        assert inode(packed) == first
        assert load(packed)["small"].sum() == 4950
    memory.free_warm()
    with dump(np.ones(BIG // 8)) as packed:
        assert inode(packed) != first or kind != "memfd"


def test_memory_that_is_still_mapped_is_left_alone(kind):
    with dump(np.ones(BIG // 8)) as packed:
        first, held = inode(packed), load(packed)
    with dump(np.zeros(BIG // 8)) as packed:
        assert inode(packed) != first
    assert held.sum() == BIG // 8


def test_a_reader_counts_until_its_last_mapping_is_gone(kind):
    """It has closed every descriptor, as a daemon does, and still reads."""
    with dump(np.ones(BIG // 8)) as packed:
        first = inode(packed)
        told_r, told_w = os.pipe()
        go_r, go_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            view = mmap.mmap(packed.fd, 0, flags=mmap.MAP_PRIVATE)
            keep = {told_w, go_r}
            for fd in range(3, 1024):
                if fd not in keep:
                    try:
                        os.close(fd)
                    except OSError:
                        continue
            os.write(told_w, b"!")
            os.read(go_r, 1)
            middle = view[BIG // 2 : BIG // 2 + 8]
            os.write(told_w, middle)
            os._exit(0)
        os.close(told_w)
        os.close(go_r)
        os.read(told_r, 1)
    with dump(np.zeros(BIG // 8)) as packed:
        assert inode(packed) != first
    os.write(go_w, b"!")
    assert os.read(told_r, 8) != bytes(8)
    os.waitpid(pid, 0)
    os.close(told_r)
    os.close(go_w)


def test_a_fork_of_the_kernel_does_not_write_over_its_memory():
    with dump(np.ones(BIG // 8)):
        pass
    pid = os.fork()
    if pid == 0:
        os._exit(0 if memory._take_kept() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_results_are_never_written_over():
    with payload.dump_result(np.ones(BIG // 8)) as packed:
        held = load_result = packed.load()
    with dump(np.zeros(BIG // 8)):
        pass
    assert held.sum() == load_result.sum() == BIG // 8


def test_the_limit_bounds_what_is_kept(monkeypatch):
    monkeypatch.setenv(memory.LIMIT_NAME, "6")
    with dump(np.ones(BIG // 8)):
        pass
    assert memory._take_kept() is None
    with dump(np.ones((5 << 20) // 8)):
        pass
    kept = memory._take_kept()
    assert kept is not None
    assert kept.size < 6 << 20
    kept.close()


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number(monkeypatch, text):
    monkeypatch.setenv(memory.LIMIT_NAME, text)
    with pytest.raises(ValueError, match=f"{memory.LIMIT_NAME}='{text}' must be a number"):
        memory.warm_limit()


def test_the_default_limit_is_a_share_of_the_memory(monkeypatch):
    monkeypatch.delenv(memory.LIMIT_NAME, raising=False)
    monkeypatch.setattr(process, "usable_memory", lambda: 1000)
    assert memory.warm_limit() == 100
    monkeypatch.setattr(process, "usable_memory", lambda: 1 << 50)
    assert memory.warm_limit() == 2 << 30


def test_small_payloads_are_not_kept_and_shrink_what_is():
    with dump(np.ones(1000)):
        pass
    assert memory._take_kept() is None
    with dump(np.ones(BIG // 8)):
        pass
    for _ in range(20):
        with dump(np.ones(1000)):
            pass
    assert memory._take_kept() is None  # too small by now to be worth keeping


def test_of_two_at_once_the_larger_one_is_kept():
    with dump(np.ones(2 * BIG // 8)) as large, dump(np.ones(BIG // 8)) as small:
        assert inode(large) != inode(small)
        first = inode(large)
    with dump(np.ones(BIG // 8)) as packed:
        assert inode(packed) == first


def test_without_a_way_to_open_a_file_twice_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(memory, "_open_again", lambda _: None)
    with dump(np.ones(BIG // 8)) as packed:
        assert load(packed).sum() == BIG // 8
    assert memory._take_kept() is None


# --- faults ---------------------------------------------------------------------------------------


def test_a_full_disk_is_reported_as_such(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    real = memory._unlinked_file

    def full():
        writer, reader = real()
        os.close(writer)
        return os.open("/dev/full", os.O_RDWR), reader

    monkeypatch.setattr(memory, "_unlinked_file", full)
    with pytest.raises(OSError) as caught:
        dump(np.ones(BIG // 8))
    assert caught.value.errno == errno.ENOSPC


def test_no_descriptor_is_left_when_packing_fails(kind):
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TypeError):
        dump([np.ones(BIG // 8), (i for i in range(3))])
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_that_is_no_payload(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"something else altogether, and long enough for a header")
    with (
        pytest.raises(ValueError, match="not a payload: it starts with b'something"),
        payload.Payload.from_fd(os.open(path, os.O_RDONLY)) as packed,
    ):
        packed.load()


def test_an_interrupt_while_writing_leaves_nothing(monkeypatch):
    before = len(os.listdir("/proc/self/fd"))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(payload, "_write_chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dump(np.ones(BIG // 8))
    assert len(os.listdir("/proc/self/fd")) == before
