"""Which modules are libraries that may be imported before the fork, and what an import does to a process.

A library is installed and stays as it is while the kernel lives. Everything else is local: a module
in the notebook's folder, an editable install, a folder put on ``sys.path``. Those are imported by
each worker, afresh from disk, so that an edit between two launches counts.

Runs in the kernel (to choose) and in a zygote (to import, and to look at what that has done).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import site
import sys
import sysconfig
import threading
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

_NEVER = frozenset(
    {
        # They start C threads or talk to a device when imported, and break when forked after that.
        "cupy",
        "grpc",
        "jax",
        "jaxlib",
        "ray",
        "tensorflow",
        "torch_xla",
        "triton",
    }
)
_INSTALLATION_FOLDERS = frozenset({"site-packages", "dist-packages"})
_OURS = frozenset({"nbaccel", "torch", "__main__"})

_LOAD_TIME_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED")
_LOAD_TIME_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "TORCH", "PYTORCH_")
# The launcher sets this one in each worker, through torch.
_NOT_LOAD_TIME = ("OMP_NUM_THREADS",)
_NEVER_READ = ("COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL", "_", "PYTEST_CURRENT_TEST")
"""Names that change by the way and that no library reads when it is loaded."""

_DEVICE_FILES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/accel", "/dev/vfio/")


def load_time_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What torch and its libraries read when they are loaded, which for workers is long past."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_LOAD_TIME and (name in _LOAD_TIME_NAMES or name.startswith(_LOAD_TIME_PREFIXES))
    }


def import_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What any other library might read when it is loaded: nearly everything."""
    return {name: value for name, value in environ.items() if name not in _NEVER_READ}


# --- choosing -------------------------------------------------------------------------------------


def preloadable(modules: Iterable[str]) -> frozenset[str]:
    """Those of ``modules`` that are libraries, and that may be imported before a fork."""
    return frozenset(name for name in modules if _may_be_preloaded(name))


def by_package(modules: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Modules of one package together."""
    packages: dict[str, list[str]] = {}
    for name in sorted(modules):
        packages.setdefault(name.partition(".")[0], []).append(name)
    return tuple(tuple(names) for names in packages.values())


def _may_be_preloaded(name: str) -> bool:
    top = name.partition(".")[0]
    if top in _OURS or top in _NEVER or top in sys.stdlib_module_names:
        return False  # the standard library is cheap enough to be left out
    origin = getattr(sys.modules.get(name), "__file__", None) or _origin(top)
    return origin is not None and _is_installed(origin)


def _origin(top: str) -> str | None:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec is not None else None


@cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    if not _INSTALLATION_FOLDERS.isdisjoint(path.parts):
        return True  # also where it was put on the path by hand
    return any(path.is_relative_to(root) for root in _installation_roots())


@cache
def _installation_roots() -> tuple[Path, ...]:
    names = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    if hasattr(site, "getsitepackages"):
        names += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        names.append(site.getusersitepackages())
    return tuple(Path(name).resolve() for name in names if name)


# --- importing ------------------------------------------------------------------------------------


def import_all(modules: Iterable[str]) -> dict[str, str]:
    """Import each module; what fails is returned with the reason and is not an error here."""
    failed = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001  # a module may even call sys.exit() when imported
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


class Cleanness:
    """Whether imports left a process fit to be forked; made before them."""

    def __init__(self) -> None:
        self._loaded = frozenset(sys.modules)
        self._handlers = _handlers()
        self._devices = _open_devices()

    def fault(self) -> str:
        """Why this process must not be forked any more, or an empty string."""
        return (
            uncleanness()
            or self._new_devices()
            or _running_children()
            or self._changed_handlers()
            or self._local_modules()
        )

    def _new_devices(self) -> str:
        new = _open_devices() - self._devices
        return f"devices were opened: {', '.join(sorted(new))}" if new else ""

    def _changed_handlers(self) -> str:
        changed = [
            number.name for number, handler in _handlers().items() if self._handlers[number] != handler
        ]
        return f"signal handlers were changed: {', '.join(changed)}" if changed else ""

    def _local_modules(self) -> str:
        """A library may import a local module (a plugin, an editable install), which must stay fresh."""
        local = []
        for name in frozenset(sys.modules) - self._loaded:
            file = getattr(sys.modules.get(name), "__file__", None)
            top = name.partition(".")[0]
            if isinstance(file, str) and top not in _OURS and not (_is_installed(file) or _is_standard(file)):
                local.append(name)
        return f"local modules were imported: {', '.join(sorted(local))}" if local else ""


def uncleanness() -> str:
    """Why this process must not be forked as it is, or an empty string."""
    extra = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if extra:
        return f"threads are running: {', '.join(extra)}"
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu"):
        # A private name, because the public one is also true after a fork of a live parent.
        if getattr(getattr(torch, kind, None), "_initialized", False):
            return f"{kind} is initialised"
    return ""


def _open_devices() -> frozenset[str]:
    folder = Path("/proc/self/fd")
    targets: set[str] = set()
    if not folder.is_dir():
        return frozenset()
    for entry in folder.iterdir():
        try:
            targets.add(str(entry.readlink()))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return frozenset(target for target in targets if target.startswith(_DEVICE_FILES))


def _running_children() -> str:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    return "a process was started"


def _handlers() -> dict[signal.Signals, object]:
    return {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)}


@cache
def _standard_root() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def _is_standard(file: str) -> bool:
    path = Path(file).resolve()
    return any(path.is_relative_to(root) for root in _standard_root())
