#!/usr/bin/env bash
# Checks that every C++ and CUDA file is formatted as .clang-format says. Versions of clang-format differ in their output, so one
# version decides: 14, which Debian 12 and Ubuntu 24.04 have. `bash tests/tidy/format.sh --fix` formats the files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/support/packages.sh
mode=(--dry-run --Werror)
case ${1-} in
  '') ;;
  --fix) mode=(-i) ;;
  *) echo "usage: bash tests/tidy/format.sh [--fix]" >&2; exit 64 ;;
esac
ensure_packages clang-format-14
git ls-files -z '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' | xargs -0 -n 40 -P "$(nproc)" clang-format-14 "${mode[@]}" || {
  echo "Some files are not formatted. Please run: bash tests/tidy/format.sh --fix" >&2
  exit 1
}
