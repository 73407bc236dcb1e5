#!/usr/bin/env bash
# Makes an environment with other versions than those of constraints.txt: install.sh VENV oldest|newest.
# About three minutes, 1 GB of downloads.
#
#   oldest  the lower bounds of pyproject.toml, each as it stands there
#   newest  the newest release of everything, on the interpreter that PYTHON names
#
# The torch of the package index for x86-64 Linux is a CUDA build, whose libraries come to 3 GB more. None of
# those is ever called without a GPU, so they are left out, and cuda_stubs.py makes small ones that only
# satisfy the loader. Needs gcc and binutils.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
venv="$1"
which="$2"
python="${PYTHON:-python3}"

"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts)
requirements() { "$venv/bin/python" "$here/requirements.py" "$which" "$@"; }

# cudart's functions are called by static initialisers, cupti's by torch.profiler: these two are the real ones.
case "$which" in
    oldest) real=(nvidia-cuda-runtime-cu12==12.8.90 nvidia-cuda-cupti-cu12==12.8.90) ;;
    newest) real=("nvidia-cuda-runtime>=13,<14" "nvidia-cuda-cupti>=13,<14") ;;
    *) echo "$0: $which is neither oldest nor newest" >&2; exit 2 ;;
esac
# shellcheck disable=SC2046  # one requirement a line
"${pip[@]}" --no-deps "${real[@]}" $(requirements --needs-torch)
# What torch and torchdata import.
"${pip[@]}" filelock fsspec jinja2 networkx requests setuptools sympy typing_extensions urllib3
# shellcheck disable=SC2046
"${pip[@]}" $(requirements) hatchling editables
"${pip[@]}" --no-deps --no-build-isolation --editable "$here/../.."
"$venv/bin/python" "$here/../xla/cuda_stubs.py"
"$venv/bin/python" -c 'import torch; assert (torch.ones(2) + 1).tolist() == [2, 2]'
