"""Libraries are imported once before the fork; one that misbehaves there harms no launch."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nbaccel import notebook_launcher
from nbaccel.errors import LaunchError, WorkerDied, WorkerError
from nbaccel.launch.zygotes import libraries, zygote_client, zygote_handle

LIBRARY = '''
"""Notes who imports it, and does once what a file tells it to."""
import os, sys, threading, time
here = {folder!r}
with open(os.path.join(here, "imports"), "a") as log:
    log.write(f"{{os.getpid()}}\\n")
mode = ""
if os.path.exists(os.path.join(here, "mode")):
    with open(os.path.join(here, "mode")) as file:
        mode = file.read()
    os.remove(os.path.join(here, "mode"))
if mode == "fail":
    raise RuntimeError("not today")
if mode == "exit":
    sys.exit(3)
if mode == "die":
    os._exit(5)
if mode == "kill":
    os.kill(os.getpid(), 9)
if mode == "thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if mode == "child":
    import subprocess
    subprocess.Popen(["sleep", "60"])
if mode == "handler":
    import signal
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if mode == "hang":
    with open(os.path.join(here, "hanging"), "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(1)
flag = os.environ.get("NBT_FLAG", "")

def answer():
    return 42
'''

Make = Callable[[str], Path]


@pytest.fixture
def library(tmp_path, monkeypatch) -> Iterator[Make]:
    """Install a package of this name for the test, and import it here, as a notebook does."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    names = []

    def make(name: str) -> Path:
        folder = tmp_path / f"notes-{name}"
        folder.mkdir()
        (site / f"{name}.py").write_text(LIBRARY.format(folder=str(folder)))
        importlib.import_module(name)
        names.append(name)
        return folder

    yield make
    for name in names:
        del sys.modules[name]


@pytest.fixture
def own_zygote() -> Iterator[None]:
    """What a test does to the zygote ends with the test."""
    yield
    zygote_client.stop_zygote()


def importers(folder: Path) -> list[int]:
    """Pids that have imported it, this process left out."""
    pids = [int(line) for line in (folder / "imports").read_text().split()]
    return [pid for pid in pids if pid != os.getpid()]


def use(name):
    def uses_it():
        library = sys.modules.get(name)
        was_there = library is not None
        library = importlib.import_module(name)
        return os.getpid(), was_there, library.answer()

    # By reference, as a notebook function uses what a cell has imported.
    uses_it.library = sys.modules[name]
    return uses_it


def launch(function, count=2, **more):
    return notebook_launcher(function, (), count, cpu=True, returns="all", output="none", **more)


def test_a_library_is_imported_once_for_all_workers_and_launches(library):
    folder = library("nbt_once")
    for _ in range(2):
        told = launch(use("nbt_once"))
        assert all(was_there and answer == 42 for _, was_there, answer in told)
    assert len(importers(folder)) == 1
    assert importers(folder)[0] not in {pid for pid, _, _ in told}


def test_what_a_function_imports_when_it_runs_counts_too(library):
    folder = library("nbt_inside")

    def inside():
        import nbt_inside

        return nbt_inside.answer()

    assert launch(inside) == [42, 42]
    assert len(importers(folder)) == 1


def test_a_second_library_builds_on_the_first(library):
    first = library("nbt_first")
    launch(use("nbt_first"))
    second = library("nbt_second")
    launch(use("nbt_second"))
    launch(use("nbt_first"))
    assert len(importers(first)) == len(importers(second)) == 1


@pytest.mark.parametrize("mode", ["fail", "exit", "die", "kill", "thread", "child", "handler"])
def test_an_import_that_misbehaves_before_the_fork_is_left_to_the_workers(library, mode):
    name = f"nbt_odd_{mode}"
    folder = library(name)
    (folder / "mode").write_text(mode)
    for _ in range(2):
        told = launch(use(name))
        assert [answer for _, _, answer in told] == [42, 42]
        pids = {pid for pid, _, _ in told}
        assert pids <= set(importers(folder)), "each worker imports it by itself"
    assert not (folder / "mode").exists()
    assert len(importers(folder)) == 1 + 4  # it isn't tried before the fork again


def test_others_are_still_preloaded_next_to_one_that_misbehaves(library):
    good, odd = library("nbt_good"), library("nbt_odd")
    (odd / "mode").write_text("thread")

    def both():
        return nbt_good.answer(), nbt_odd.answer()

    nbt_good, nbt_odd = sys.modules["nbt_good"], sys.modules["nbt_odd"]
    launch(both)
    deadline = time.monotonic() + 20
    while True:
        before = len(importers(good))
        assert launch(both) == [(42, 42)] * 2
        if len(importers(good)) == before:
            break
        assert time.monotonic() < deadline


def wait_until_gone(pid):
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_import_that_hangs_costs_one_wait(library, monkeypatch, capfd):
    monkeypatch.setattr(zygote_client, "PRELOAD_TIMEOUT", 1.0)
    folder = library("nbt_hang")
    launch(lambda: 1)  # the zygote is up
    (folder / "mode").write_text("hang")
    start = time.monotonic()
    assert launch(use("nbt_hang"))[0][2] == 42
    assert time.monotonic() - start < 10
    wait_until_gone(int((folder / "hanging").read_text()))
    assert (
        "importing nbt_hang did not end within 1 s; each worker imports it by itself"
        in capfd.readouterr().err
    )
    start = time.monotonic()
    launch(use("nbt_hang"))
    assert time.monotonic() - start < 1.5


def test_an_import_that_hangs_can_be_interrupted(library, interrupt_when, tmp_path):
    folder = library("nbt_stuck")
    launch(lambda: 1)
    (folder / "mode").write_text("hang")
    interrupt_when("notes-nbt_stuck/hanging")
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch(use("nbt_stuck"))
    assert time.monotonic() - start < 5
    wait_until_gone(int((folder / "hanging").read_text()))
    assert launch(use("nbt_stuck"))[0][2] == 42


def test_a_library_sees_the_environment_of_the_launch(library, monkeypatch):
    library("nbt_env")

    def flag():
        return nbt_env.flag

    nbt_env = sys.modules["nbt_env"]
    for value in ("one", "two"):
        monkeypatch.setenv("NBT_FLAG", value)
        assert launch(flag) == [value, value]


# --- local modules --------------------------------------------------------------------------------


@pytest.fixture
def local_folder(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith("nbt_local")]:
        del sys.modules[name]


def test_B038_an_edit_of_a_local_module_counts(local_folder):
    module = local_folder / "nbt_local.py"
    module.write_text("def version():\n    return 1\n")
    function = importlib.import_module("nbt_local").version
    assert launch(function) == [1, 1]
    module.write_text("def version():\n    return 'the second one'\n")
    assert launch(function) == ["the second one"] * 2


def test_a_local_module_that_a_library_imports_stays_fresh(library, local_folder, tmp_path):
    module = local_folder / "nbt_local_plugin.py"
    module.write_text("VERSION = 1\n")
    (tmp_path / "site-packages" / "nbt_host.py").write_text("import nbt_local_plugin\n")
    host = importlib.import_module("nbt_host")

    def version():
        return host.nbt_local_plugin.VERSION

    assert launch(version) == [1, 1]
    module.write_text("VERSION = 'the second one'\n")
    assert launch(version) == ["the second one"] * 2
    del sys.modules["nbt_host"]


def test_an_editable_install_is_local(local_folder, tmp_path):
    """Its files lie elsewhere, whatever the installation folder says of it."""
    (local_folder / "nbt_local_edit.py").write_text("")
    link = tmp_path / "site-packages"
    link.mkdir()
    (link / "nbt_local_edit.py").symlink_to(local_folder / "nbt_local_edit.py")
    sys.path.insert(0, str(link))
    try:
        importlib.import_module("nbt_local_edit")
        assert libraries.preloadable(["nbt_local_edit"]) == frozenset()
    finally:
        sys.path.remove(str(link))


def test_what_is_preloaded():
    import numpy as np  # noqa: F401

    assert libraries.preloadable(
        ["numpy.linalg", "os", "json.decoder", "torch.nn", "__main__", "no_such"]
    ) == {"numpy.linalg"}
    assert libraries.preloadable(["torch_xla", "jax.numpy", "tensorflow"]) == frozenset()
    assert libraries.by_package(["b.x", "a", "b", "b.y"]) == (("a",), ("b", "b.x", "b.y"))


# --- randomness -----------------------------------------------------------------------------------


def test_forks_do_not_share_random_numbers():
    def draw():
        import random

        import numpy as np

        return random.random(), float(np.random.rand())

    drawn = launch(draw) + launch(draw)
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == len(column)


# --- zygotes that end -----------------------------------------------------------------------------


def parent_of_workers():
    return launch(os.getppid)[0]


def zygotes():
    mine = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            if "zygote" in " ".join(process.cmdline()):
                mine.append(process)
    return {p.pid: p for p in mine}


@pytest.mark.usefixtures("own_zygote")
@pytest.mark.parametrize("which", ["root", "child", "all"])
def test_a_zygote_that_was_killed_between_launches_is_replaced(which):
    launch(lambda: 1)
    wait_for_children(1)
    root = zygote_client._family.process.pid
    victims = {"root": [root], "child": [pid for pid in zygotes() if pid != root], "all": list(zygotes())}
    assert victims[which]
    for pid in victims[which]:
        os.kill(pid, signal.SIGKILL)
        psutil.Process(root).status() if pid == root else wait_until_ended(pid)
    if which != "child":
        zygote_client._family.process.wait(5)
    assert parent_of_workers() not in victims[which]


def wait_until_ended(pid):
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_children(count):
    deadline = time.monotonic() + 60
    while sum(child.is_fit() for child in zygote_client._family.children) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("own_zygote")
def test_a_zygote_that_is_killed_during_a_launch_is_an_error_and_no_hang():
    def kill_parent():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(WorkerDied, match="lost with the process that it was forked from"):
        launch(kill_parent)
    assert time.monotonic() - start < 20
    assert launch(lambda: 5) == [5, 5]


@pytest.mark.usefixtures("own_zygote")
def test_a_zygote_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(zygote_handle, "_FORK_TIMEOUT", 0.5)
    parent = parent_of_workers()
    os.kill(parent, signal.SIGSTOP)
    with pytest.raises(LaunchError, match=r"did not answer for 0\.5 s; launch again"):
        launch(lambda: 1)
    assert parent_of_workers() != parent
    wait_until_gone(parent)


@pytest.mark.usefixtures("own_zygote")
def test_another_load_time_environment_means_another_zygote(monkeypatch):
    first = parent_of_workers()
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    second = parent_of_workers()
    assert second != first
    wait_until_ended(first)


@pytest.mark.usefixtures("own_zygote")
def test_a_zygote_that_can_not_start_is_an_error(monkeypatch):
    zygote_client.stop_zygote()
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    with pytest.raises(LaunchError, match="did not start") as caught:
        launch(lambda: 1)
    assert isinstance(caught.value, WorkerError)
    assert "Error" in str(caught.value)  # what it said
