#!/usr/bin/env bash
# Other releases of CUDA than the one that is installed, from a package index of Python (wheels of headers and compilers). No part of CI: it needs the index.
#
#   tests/cuda_versions.sh               # both, in a folder that is removed
#   tests/cuda_versions.sh FOLDER        # wheels are kept there, and not fetched again
#
# 1. Host code of the device layer, the kernels and the NCCL adapter against the headers of CUDA 12.4 and NCCL 2.26 (there are no whole wheels of nvcc 12).
# 2. All .cu by the newest nvcc 13: for the architectures of tests/gpu/registers.sh, which fails where registers are spilled.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -gt 0 ]]; then
  folder=$(realpath -m "$1")
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
python=${PYTHON:-python3}

# fetch NAME PACKAGE...: their wheels, unpacked over each other
fetch() {
  local to=$folder/$1
  shift
  [[ -e $to/complete ]] && return
  rm -rf "$to"
  mkdir -p "$to"
  "$python" -m pip download --no-deps -q -d "$to/wheels" "$@"
  for wheel in "$to"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$to"; done
  touch "$to/complete"
}

fetch cuda-12.4 'nvidia-cuda-runtime-cu12==12.4.*' 'nvidia-cuda-nvcc-cu12==12.4.*' 'nvidia-nccl-cu12==2.26.*'
include=()
for part in cuda_runtime cuda_nvcc nccl; do include+=(-isystem "$folder/cuda-12.4/nvidia/$part/include"); done
defined=$(grep -h 'define CUDART_VERSION' "$folder"/cuda-12.4/nvidia/cuda_runtime/include/cuda_runtime_api.h | awk '{print $3}')
[[ $defined == 12040 ]] || { echo "FAILED: the headers are those of $defined, not of 12040"; exit 1; }
checked=0
for source in kernels/cuda/*.cpp lib/device/cuda/*.cpp lib/comm/nccl/*.cpp; do
  [[ $source == */absent.cpp ]] && continue  # of builds without NCCL
  "${CXX:-g++}" -std=c++20 -fsyntax-only -DELRUN_CUDA -DELRUN_NCCL -I. -Iinclude "${include[@]}" -Wall -Wextra -Werror "$source"
  checked=$((checked + 1))
done
echo "host code against the headers of CUDA 12.4 and NCCL 2.26: $checked files compile"

fetch cuda-13 'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-nvvm==13.*' 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-cccl==13.*'
nvcc=$(find "$folder/cuda-13" -path '*/bin/nvcc' -print -quit)
chmod +x "$(dirname "$nvcc")"/* "$folder"/cuda-13/nvidia/*/nvvm/bin/*
"$nvcc" --version | tail -2
NVCC=$nvcc tests/gpu/registers.sh
