"""The report: each setting with its origin, what would run, versions, devices, variables.

It must come out even where things are broken: a part that fails says why in its place. Of the environment
only names that shape training are shown, never the rest, which may hold secrets.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import psutil

import nbaccel
from nbaccel import config
from nbaccel.config import Resolved

Row = tuple[str, ...]

_PACKAGES = (
    "torch",
    "torch_xla",
    "torch_tpu",
    "libtpu",
    "numpy",
    "cloudpickle",
    "ipython",
    "ipykernel",
    "jupyter-client",
    "jupyterlab",
    "notebook",
    "ipywidgets",
    "nvidia-ml-py",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "transformers",
    "datasets",
    "accelerate",
    "lightning",
)
_NEEDED = frozenset({"torch", "cloudpickle", "ipython"})

_VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CPU_NUM_DEVICES",
        "COLAB_TPU_ADDR",
        "ISTPUVM",
        "PYTHONPATH",
        "TMPDIR",
    }
)
_PREFIXES = (
    "NBACCEL_",
    "CUDA_",
    "HIP_",
    "ROCR_",
    "ZE_",
    "NCCL_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "PYTORCH_",
    "TORCHELASTIC_",
    "TORCH_",
    "ACCELERATE_",
    "PJRT_",
    "TPU_",
    "CLOUD_TPU_",
    "LIBTPU_",
    "XLA_",
)

_HOSTS = {
    "COLAB_RELEASE_TAG": "Google Colab",
    "KAGGLE_KERNEL_RUN_TYPE": "Kaggle",
    "SM_CURRENT_HOST": "SageMaker",
    "DATABRICKS_RUNTIME_VERSION": "Databricks",
    "SLURM_JOB_ID": "Slurm",
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
}


@dataclass(frozen=True)
class Section:
    """A title and rows of texts, all of one width."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Report:
    """All sections, and what is wrong."""

    sections: tuple[Section, ...]
    problems: tuple[str, ...] = ()
    """Why the settings can't be used; nothing would run."""

    warnings: tuple[str, ...] = ()

    def text(self) -> str:
        """Plain, in columns; what to paste into a bug report."""
        lines: list[str] = []
        for section in self.sections:
            widths = [max(len(row[i]) for row in section.rows) for i in range(len(section.rows[0]))]
            lines += ["", section.title]
            lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in section.rows]
        lines += ["", *(f"problem: {text}" for text in self.problems)] if self.problems else []
        lines += ["", *(f"note: {text}" for text in self.warnings)] if self.warnings else []
        return "\n".join(lines).strip() + "\n"

    def data(self) -> dict[str, Any]:
        """The same, for programs: a mapping of titles to rows."""
        return {
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            **{section.title: [list(row) for row in section.rows] for section in self.sections},
        }


def make_report(resolve: Callable[[], Resolved] = config.resolve) -> Report:
    """Look around.

    Args:
        resolve: finds the settings; the command line puts its flags in front.
    """
    problems: list[str] = []
    warnings: list[str] = []
    sections = [Section("Versions", tuple(_versions())), Section("Machine", tuple(_machine()))]
    sections.append(Section("Devices", tuple(_devices())))
    variables = tuple(_variables(os.environ))
    if variables:
        sections.append(Section("Environment", variables))
    try:
        settings = resolve()
    except ValueError as error:
        problems.append(str(error))
        return Report(tuple(sections), tuple(problems))
    warnings += [*settings.warnings, *settings.notes]
    file = "none" if settings.file is None else str(settings.file)
    sections.insert(0, Section("Settings", (("config file", file, ""), *_settings(settings))))
    try:
        from nbaccel.launch.request.resolve import describe, spec_of

        would = describe(spec_of(settings))
    except (ValueError, RuntimeError) as error:
        problems.append(str(error))
        would = "nothing, see the problem below"
    sections.insert(1, Section("Would run", ((would,),)))
    return Report(tuple(sections), tuple(problems), tuple(warnings))


def _settings(settings: Resolved) -> list[Row]:
    return [
        (name, config.SETTINGS[name].shown(each.value), each.place) for name, each in settings.values.items()
    ]


def _versions() -> list[Row]:
    rows: list[Row] = [
        ("nbaccel", nbaccel.__version__),
        ("Python", f"{platform.python_version()} ({platform.python_implementation()}) {sys.executable}"),
    ]
    for name in _PACKAGES:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            if name in _NEEDED:
                rows.append((name, "NOT INSTALLED"))
    return rows


def _machine() -> list[Row]:
    from nbaccel.launch.system import process

    memory = psutil.virtual_memory()
    rows: list[Row] = [
        ("system", platform.platform()),
        ("CPU", f"{process.usable_cores()} of {os.cpu_count()} cores usable, {platform.machine()}"),
        ("memory", f"{_gib(memory.available)} of {_gib(memory.total)} free"),
    ]
    if sys.platform.startswith("linux"):
        shared = psutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108
        rows.append(
            (
                "shared memory",
                "none" if shared is None else f"{_gib(shared.free)} of {_gib(shared.total)} free",
            )
        )
    hosts = [name for variable, name in _HOSTS.items() if variable in os.environ]
    if hosts:
        rows.append(("host", ", ".join(hosts)))
    return rows


def _devices() -> list[Row]:
    from nbaccel.launch import devices

    try:
        found = devices.visible_accelerators()
        usage = devices.usage() if found.count else ()
    except RuntimeError as error:
        return [("unknown", str(error))]
    if found.count == 0:
        return [("cpu", f"no accelerator: {found.reason}")]
    if found.type_name:
        processes, threads = found.count // found.units_per_process, found.units_per_process
        text = f"{found.count} core{'s' if found.count != 1 else ''}, {processes} process"
        text += f"{'es' if processes != 1 else ''}{f' of {threads} threads' if threads > 1 else ''}"
        driver = "torch_xla" if found.device_type == "xla" else "torch_tpu, with which nbaccel was never run"
        return [(f"{found.platform} {found.type_name}", f"{text}, by {driver}; not opened")]
    rows: list[Row] = []
    for unit, used in zip(found.units, usage, strict=True):
        text = unit.name
        if used is not None:
            text += f", {_gib(used.memory_used)} of {_gib(used.memory_total)} in use"
        rows.append((f"{found.platform}:{unit.index}", text))
    return rows


def _variables(environ: Mapping[str, str]) -> list[Row]:
    return [
        (name, value)
        for name, value in sorted(environ.items())
        if (name in _VARIABLES or name.startswith(_PREFIXES)) and not _is_secret(name)
    ]


def _is_secret(name: str) -> bool:
    return any(word in name for word in ("TOKEN", "SECRET", "PASS", "KEY"))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
