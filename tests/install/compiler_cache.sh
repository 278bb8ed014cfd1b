#!/usr/bin/env bash
# compiler_cache.sh CMAKE: ccache is used where its folder can be written, and left out with a line where it cannot: each compilation would fail.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/ask.cmake" <<ASK
include(\${TREE}/cmake/CompilerCache.cmake)
elrun_cache_works(works)
message(STATUS "works: \${works}")
ASK
ask() { env -i PATH="$PATH" "$@" "$cmake" -DTREE="$PWD" -DELRUN_CCACHE="$folder/ccache" -P "$folder/ask.cmake" 2>&1; }

# What ccache 4 answers, by the same variables.
cat >"$folder/ccache" <<'CACHE'
#!/bin/bash
[[ "$*" == "--get-config cache_dir" ]] || exit 9
[[ -n "${CCACHE_DIR-}${HOME-}" ]] || { echo "ccache: error: Could not determine home directory" >&2; exit 1; }
echo "${CCACHE_DIR-$HOME/.cache/ccache}"
CACHE
chmod +x "$folder/ccache"
if real=$(command -v ccache); then ln -sf "$real" "$folder/ccache"; fi

problems=0
expect() { [[ $2 == *"$3"* ]] || { echo "$1: '$2' does not say '$3'" >&2; problems=1; }; }
expect "a home" "$(ask HOME="$folder/home")" "works: TRUE"
said=$(ask HOME=/proc/nowhere)  # not even root makes a folder there
expect "no home" "$said" "works: FALSE"
expect "no home" "$said" "ccache is left out"
expect "no home, and a folder for the cache" "$(ask HOME=/proc/nowhere CCACHE_DIR="$folder/cache")" "works: TRUE"
expect "no ccache" "$("$cmake" -DTREE="$PWD" -P "$folder/ask.cmake" 2>&1)" "works: FALSE"
[[ -z $(find "$folder" -name 'elrun-*') ]] || { echo "a probe was left" >&2; problems=1; }
exit "$problems"
