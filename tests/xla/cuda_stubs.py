"""Makes a CUDA build of torch importable where nvidia's libraries aren't installed: ``cuda_stubs.py [SITE]``.

The loader wants each library that torch names, with the version tags of the functions that torch refers to.
For each that is missing a small library is compiled which defines just those functions; one that is called
all the same says so and returns an error. ``torch.cuda.is_available()`` is False, as without a GPU anyway.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

LIBRARIES = (
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_python.so",
    "libtorch_nvshmem.so",
    "libc10_cuda.so",
)
"""Those of torch that need others."""

FUNCTIONS = {
    "libcublas": r"cublas(?!Lt)",
    "libcublasLt": r"cublasLt",
    "libcudnn": r"cudnn",
    "libcufft": r"cufft",
    "libcufile": r"cuFile",
    "libcupti": r"cupti",
    "libcurand": r"curand",
    "libcusparse": r"cusparse(?!Lt)",
    "libcusparseLt": r"cusparseLt",
    "libnccl": r"p?nccl",
    "libnvrtc": r"nvrtc",
    "libnvshmem_host": r"nvshmem",
}
"""By library, whichever release of CUDA it is from: how the names of its functions begin."""


def main(site: Path) -> None:
    """Compile what is missing below the site-packages folder ``site``."""
    target = site / "nvidia" / "cudnn" / "lib"  # every library of torch looks here
    target.mkdir(parents=True, exist_ok=True)
    present = {path.name for path in site.glob("nvidia/*/lib/*.so*")}
    needed, undefined = _references([site / "torch" / "lib" / name for name in LIBRARIES])
    missing = sorted(needed - present)
    unknown = [name for name in missing if _stem(name) not in FUNCTIONS]
    if unknown:
        sys.exit(f"cuda_stubs: torch needs {', '.join(unknown)}, of which nothing is known here; add it")
    for name in missing:
        functions = {}
        for symbol in undefined:
            function, _, version = symbol.partition("@")
            if re.match(FUNCTIONS[_stem(name)], function):
                functions[function] = version.lstrip("@")
        _compile(target / name, functions)
    sys.stdout.write(f"cuda_stubs: {' '.join(missing) or 'nothing missing'}\n")


def _references(libraries: list[Path]) -> tuple[set[str], set[str]]:
    """Libraries of nvidia's that these need, and symbols (with version) that none of them defines."""
    needed: set[str] = set()
    defined: set[str] = set()
    undefined: set[str] = set()
    for library in filter(Path.exists, libraries):
        dynamic = _run("readelf", "-d", str(library))
        needed |= set(re.findall(r"NEEDED.*\[(lib(?:cu|nccl|nv)[^\]]*)\]", dynamic))
        for line in _run("nm", "-D", "--with-symbol-versions", str(library)).splitlines():
            field = line.split()
            if len(field) >= 2 and field[-2] in "Uuvw":
                undefined.add(field[-1])
            elif len(field) == 3:
                defined.add(field[-1].partition("@")[0])
    return needed, {symbol for symbol in undefined if symbol.partition("@")[0] not in defined}


def _compile(path: Path, functions: dict[str, str]) -> None:
    body = "".join(
        f'long {name}(void) {{ fputs("{path.name} is a stub: {name} was called\\n", stderr); return 1; }}\n'
        for name in sorted(functions)
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "stub.c")
        source.write_text(f"#include <stdio.h>\n{body}")
        command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(path), str(source), f"-Wl,-soname,{path.name}"]
        version = next(filter(None, functions.values()), None)
        if version is not None:
            script = Path(folder, "stub.map")
            script.write_text(f"{version} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={script}")
        _run(*command)


def _stem(name: str) -> str:
    return name.partition(".so")[0]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_paths()["platlib"]))
