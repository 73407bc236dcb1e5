"""Install the files of a release as a user would, away from the checkout, and try them.

    python tests/release/check.py dist

Makes an environment of its own in a temporary folder, with the versions of ``constraints.txt``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

INSTALLED = """
import importlib.metadata, pathlib, nbaccel
place = pathlib.Path(nbaccel.__file__).parent
assert "site-packages" in place.parts, place
assert (place / "py.typed").exists(), "type information isn't shipped"
assert importlib.metadata.version("nbaccel") == nbaccel.__version__
missing = [name for name in nbaccel.__all__ if not hasattr(nbaccel, name)]
assert not missing, missing
print(nbaccel.__version__)
"""


def main(folder: Path) -> None:
    """Check the one wheel and the one sdist in ``folder``; whatever is wrong raises."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"nbaccel"}, tops
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "tests/conftest.py",
        "notebooks/quickstart.ipynb",
    } <= names

    with tempfile.TemporaryDirectory(prefix="nbaccel-release-") as place:
        venv.create(f"{place}/venv", with_pip=True)
        python = f"{place}/venv/bin/python"
        # What this checkout's own run was told mustn't reach the installed copy.
        environ = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "NBACCEL"))
        }

        def run(*command: str) -> str:
            print("+", *command, flush=True)
            done = subprocess.run(
                command, cwd=place, env=environ, text=True, stdout=subprocess.PIPE, check=False
            )
            print(done.stdout, end="", flush=True)
            done.check_returncode()
            return done.stdout

        install = (python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"))
        run(*install, str(wheel.resolve()))
        version = run(python, "-c", INSTALLED)
        run(f"{place}/venv/bin/nbaccel", "test", "--cpu", "--num-processes", "2")
        run(*install, "--no-deps", "--force-reinstall", str(sdist.resolve()))
        assert run(python, "-c", INSTALLED) == version
        run(python, "-m", "nbaccel", "env")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
