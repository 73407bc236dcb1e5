#!/usr/bin/env bash
# Makes the environment of the XLA tests: install.sh VENV 2.9|2.8 [CONSTRAINTS]. About a minute, 1 GB of downloads.
#
# torch_xla is built for one release of torch, and every torch of that release for x86-64 Linux on the package
# index is a CUDA build, whose libraries come to 3 GB more. None of those is ever called without a GPU, so
# they are left out, and cuda_stubs.py makes small ones that only satisfy the loader. Needs gcc and binutils.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
venv="$1"
case "$2" in
2.9) torch=2.9.1 torch_xla=2.9.0 ;;
2.8) torch=2.8.0 torch_xla=2.8.0 ;;
*)
    echo "XLA=$2: the tests run with torch_xla 2.9 or 2.8" >&2
    exit 2
    ;;
esac
constraints="${3:-}"
python="${PYTHON:-python3}"

"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts)

# cudart's functions are called by static initialisers, cupti's by torch.profiler: these two are the real ones.
"${pip[@]}" --no-deps \
    "torch==$torch" "torch_xla==$torch_xla" nvidia-cuda-runtime-cu12==12.8.90 nvidia-cuda-cupti-cu12==12.8.90
# What torch, torch_xla, nbaccel and the tests import. None of these depends on torch.
"${pip[@]}" ${constraints:+--constraint "$constraints"} \
    absl-py filelock fsspec jinja2 networkx numpy pyyaml requests sympy typing_extensions \
    click cloudpickle ipython ipywidgets nvidia-ml-py packaging platformdirs psutil rich safetensors \
    hypothesis ipykernel jupyter-client nbclient nbformat pytest pytest-timeout tqdm
"${pip[@]}" --no-deps --editable "$here/../.."
"$venv/bin/python" "$here/cuda_stubs.py"
PJRT_DEVICE=CPU "$venv/bin/python" -c 'import torch, torch_xla; assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]'
