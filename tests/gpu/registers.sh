#!/usr/bin/env bash
# What ptxas says of the product's kernels: registers by architecture, and a failure where one spills registers or keeps anything in local memory,
# which is as slow as the device's. Needs nvcc and no device; without it ends with 77: skipped.
#
#   tests/gpu/registers.sh                       # sm_80, sm_90, sm_100
#   tests/gpu/registers.sh 90                    # these alone
#   NVCC=/some/nvcc tests/gpu/registers.sh       # another compiler
#   MARKDOWN=1 tests/gpu/registers.sh            # the table of kernels/README.md
#   SOURCES=a.cu tests/gpu/registers.sh          # other kernels than those of kernels/ and samples/nn/
set -euo pipefail
cd "$(dirname "$0")/../.."
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[[ -x $nvcc ]] || { echo "SKIPPED: no nvcc here (NVCC=... names one)"; exit 77; }
architectures=("$@")
[[ $# -gt 0 ]] || architectures=(80 90 100)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

gencode=()
for a in "${architectures[@]}"; do gencode+=(-gencode "arch=compute_$a,code=sm_$a"); done
# The flags of cmake/Elrun.cmake. A call of a host function from a kernel is only warned of, and leaves a kernel that does nothing.
compile() {
  "$nvcc" -std=c++20 --fatbin --fmad=false --expt-relaxed-constexpr -Werror cross-execution-space-call -I. -Iinclude "${gencode[@]}" \
    -Xptxas -v -o "$work/${1##*/}.fatbin" "$1" >"$work/${1##*/}.log" 2>&1 || { cat "$work/${1##*/}.log"; return 1; }
}
export -f compile
read -ra sources <<<"${SOURCES:-$(echo kernels/*.cu samples/nn/*.cu)}"
for source in "${sources[@]}"; do
  while (($(jobs -r | wc -l) >= $(nproc))); do wait -n; done
  compile "$source" &
done
wait
failed=0
for source in "${sources[@]}"; do [[ -e $work/${source##*/}.fatbin ]] || failed=1; done
((failed == 0)) || { echo "FAILED: a kernel does not compile"; exit 1; }

cat "$work"/*.log | c++filt | awk -v architectures="${architectures[*]}" -v markdown="${MARKDOWN:-}" '
  /Compiling entry function/ {
    architecture = $0; sub(/.* for .sm_/, "", architecture); sub(/[^0-9].*/, "", architecture)
    kernel = $0; sub(/.*entry function ./, "", kernel); sub(/. for .sm_.*/, "", kernel)
    gsub(/elrun::v0::|\(anonymous namespace\)::|^void /, "", kernel); sub(/\(.*/, "", kernel)
  }
  /bytes stack frame/ {
    if (!match($0, /^ *0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/)) bad[kernel " on sm_" architecture ":" $0] = 1
  }
  /Used [0-9]+ registers/ { used = $0; sub(/.*Used /, "", used); sub(/ .*/, "", used); registers[kernel, architecture] = used; kernels[kernel] = 1 }
  END {
    n = split(architectures, a, " ")
    line = markdown ? "| kernel |" : sprintf("%-44s", "registers per thread")
    for (i = 1; i <= n; ++i) line = line (markdown ? " sm_" a[i] " |" : sprintf("%8s", "sm_" a[i]))
    print line
    if (markdown) { line = "|---|"; for (i = 1; i <= n; ++i) line = line "---|"; print line }
    for (k in kernels) {
      line = markdown ? "| `" k "` |" : sprintf("%-44s", k)
      for (i = 1; i <= n; ++i) {
        if (!((k, a[i]) in registers)) bad[k " has no code for sm_" a[i]] = 1
        line = line (markdown ? " " registers[k, a[i]] " |" : sprintf("%8s", registers[k, a[i]]))
      }
      rows = rows line "\n"; ++count
    }
    printf "%s", rows | "sort"; close("sort")
    for (b in bad) { print "FAILED: " b; wrong = 1 }
    if (!count) { print "FAILED: ptxas named no kernel"; wrong = 1 }
    exit wrong
  }'
