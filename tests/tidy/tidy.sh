#!/usr/bin/env bash
# Installs clang-tidy 14, whose checks .clang-tidy names, and runs tidy.py with the folders that it is given, or with all. It needs a whole build in build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/support/packages.sh
ensure_packages clang-14 clang-tidy-14 python3
exec python3 -B tests/tidy/tidy.py "$@"
