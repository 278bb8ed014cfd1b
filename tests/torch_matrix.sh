#!/usr/bin/env bash
# The torch statements of the compatibility list against official wheels, each version in a virtual environment of its own,
# with accelerate and Lightning beside it. A wheel with its libraries is some gigabytes: one is there at a time.
set -euo pipefail

usage() {
  cat <<'USAGE'
bash tests/torch_matrix.sh [VERSION...]     (default: 2.7 2.8 2.9 newest)

Needs elrun and its tests in build/ (bash tests/run.sh), python3 with venv, and a Python package index; pip's own
variables (PIP_INDEX_URL, ...) say which. Without an index it says so and ends with 0. Work is done in $TMPDIR.
With an index of processor-only wheels (PIP_INDEX_URL=https://download.pytorch.org/whl/cpu) there is much less to fetch.
USAGE
}
case "${1-}" in --help | -h) usage; exit 0 ;; esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export ELRUN_BIN=$PWD/build/bin ELRUN_SOURCE=$PWD
for program in "$ELRUN_BIN/elrun" build/tests/compat_tests; do
  [[ -x "$program" ]] || { echo "$program is missing: run tests/run.sh first" >&2; exit 69; }
done
if ! timeout 60 python3 -m pip --retries 1 --timeout 10 index versions torch >/dev/null 2>&1; then
  echo "SKIPPED: no Python package index with torch is within reach"
  exit 0
fi

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
failed=()
(($# == 0)) && set -- 2.7 2.8 2.9 newest
for version in "$@"; do
  echo "== torch $version"
  rm -rf "$place/venv"
  python3 -m venv "$place/venv"
  torch="torch==$version.*"
  [[ "$version" == newest ]] && torch=torch
  if ! "$place/venv/bin/pip" install -q --no-cache-dir "$torch" numpy accelerate lightning >"$place/pip.log" 2>&1; then
    tail -n 5 "$place/pip.log" >&2
    failed+=("$version: pip")
    continue
  fi
  export ELRUN_TORCH_PYTHON=$place/venv/bin/python PYTHON_EXEC=$place/venv/bin/python
  "$ELRUN_TORCH_PYTHON" -c 'import accelerate, lightning, torch; print("torch", torch.__version__, "accelerate", accelerate.__version__, "lightning", lightning.__version__)'
  for test in environment failure rendezvous; do
    build/tests/compat_tests -# "[#${test}_test][torch]" || failed+=("$version: compat_${test}_test")
  done
  for program in accelerate_train lightning_train; do
    said=$("$ELRUN_BIN/elrun" --nproc_per_node 2 "samples/torch/$program.py" 2>&1) && [[ $(grep -o "of 2: fitted" <<<"$said" | wc -l) == 2 ]] ||
      { tail -n 20 <<<"$said" >&2; failed+=("$version: $program"); }
  done
done
if ((${#failed[@]} > 0)); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "all well: $*"
