#!/usr/bin/env bash
# subdirectory.sh TREE WORK CMAKE GENERATOR COMPILER: elrun's tree in another project, by add_subdirectory and by FetchContent, without what only the tests
# need. Both are configured, the first one twice, and with device code where there is nvcc. One library is compiled there, and with ELRUN_FULL all, for a compiler's cache does not know these paths: then the
# project's program is linked and run.
set -euo pipefail
tree=$1 work=$2 cmake=$3 generator=$4 compiler=$5
unset CUDAARCHS
rm -rf "$work"
mkdir -p "$work"
for how in add_subdirectory add_subdirectory FetchContent; do
  cuda=AUTO
  [[ $how != FetchContent ]] || cuda=OFF  # something is compiled there
  "$cmake" -S "$tree/tests/packages/subdirectory" -B "$work/$how" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" -DHOW="$how" -DELRUN_TREE="$tree" \
    -DELRUN_WITH_CUDA="$cuda" -DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON -DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
done
# Device code is not compiled here: by nvcc's rule the last flag of a kind counts.
if grep -q '"command": .*--use_fast_math' "$work/add_subdirectory/compile_commands.json" &&
  ! grep -q -- '--use_fast_math.*--fmad=false --ftz=false --prec-div=true --prec-sqrt=true.*kernels/update[.]cu' "$work/add_subdirectory/compile_commands.json"; then
  echo "elrun's kernels are compiled with the --use_fast_math of the project around it" >&2
  exit 1
fi
# The project around it has no build type.
commands=$(grep '"command": .*kernels/fold[.]cpp' "$work/FetchContent/compile_commands.json") ||
  { echo "kernels/fold.cpp is not compiled in a project by FetchContent" >&2; exit 1; }
if grep -vq -- ' -O3 ' <<<"$commands"; then
  echo "elrun's loops are not optimised in a project without a build type" >&2
  exit 1
fi
target=elrun_kernels program=""
[[ -z ${ELRUN_FULL-} ]] || target=outer program=$work/FetchContent/outer
"$cmake" --build "$work/FetchContent" --target "$target" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
[[ -z $program ]] || "$program"
rm -rf "$work"
