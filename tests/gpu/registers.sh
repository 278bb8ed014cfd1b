#!/usr/bin/env bash
# What the compilers make of the product's kernels: registers by architecture, and a failure where one spills registers or keeps anything in local memory,
# which is as slow as the device's, or has fewer 16-byte accesses than its source. Needs nvcc and no device; without it ends with 77: skipped.
#
#   tests/gpu/registers.sh                       # sm_80, sm_90, sm_100
#   tests/gpu/registers.sh 90                    # these alone
#   NVCC=/some/nvcc tests/gpu/registers.sh       # another compiler
#   MARKDOWN=1 tests/gpu/registers.sh            # the table of kernels/MEASURED.md
#   SOURCES=a.cu WIDE="kernel 4 1" tests/gpu/registers.sh    # other kernels than those of kernels/ and samples/nn/, and what they must have
set -euo pipefail
cd "$(dirname "$0")/../.."
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[[ -x $nvcc ]] || { echo "SKIPPED: no nvcc here (NVCC=... names one)"; exit 77; }
architectures=("$@")
[[ $# -gt 0 ]] || architectures=(80 90 100)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# By kernel: the 16-byte loads and stores of its source. nvcc takes plain accesses to vectors apart where it likes (kernels/cuda/wide.cuh).
wide=${WIDE-"update_kernel<AdamWFunctor> 4 3
update_kernel<SgdFunctor> 3 2
update_kernel<LionFunctor> 3 2
wide_kernel<FoldFloats> 6 3
wide_kernel<FoldHalves> 9 6
wide_kernel<Round> 6 3
wide_kernel<Widen> 0 5
sums_of_squares_kernel 8 0
reduce_kernel<4u, 2u, 2u> 4 2
reduce_kernel<8u, 1u, 4u> 4 1
reduce_kernel<24u, 1u, 2u> 2 1"}

gencode=()
for a in "${architectures[@]}"; do gencode+=(-gencode "arch=compute_$a,code=sm_$a"); done
# The flags of cmake/Elrun.cmake. A call of a host function from a kernel is only warned of, and leaves a kernel that does nothing.
compile() {
  local flags=(-std=c++20 --fmad=false --expt-relaxed-constexpr -Werror cross-execution-space-call -I. -Iinclude) name=${1##*/} log=$work/${1##*/}.log
  mkdir "$work/$name.kept"  # the PTX of each architecture among other files; of a single one its name has no architecture
  "$nvcc" "${flags[@]}" --fatbin "${gencode[@]}" -Xptxas -v --keep --keep-dir "$work/$name.kept" -o "$work/$name.fatbin" "$1" >"$log" 2>&1 || { cat "$log"; return 1; }
  mv "$work/$name.kept"/*compute_90.ptx "$work/$name.ptx" 2>/dev/null || mv "$(find "$work/$name.kept" -name '*.ptx' | head -n 1)" "$work/$name.ptx"
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

named='gsub(/elrun::v0::|\(anonymous namespace\)::|^void /, "", kernel); sub(/\(.*/, "", kernel)'
cat "$work"/*.ptx | c++filt | awk -v wide="$wide" '
  /\.entry / { kernel = $0; sub(/.*\.entry /, "", kernel); '"$named"' }
  /ld\.global.*\.v4\.[fub]32/ { ++loads[kernel] }
  /st\.global.*\.v4\.[fub]32/ { ++stores[kernel] }
  END {
    n = split(wide, lines, "\n")
    for (i = 1; i <= n; ++i) {
      k = lines[i]; sub(/ [0-9]+ [0-9]+$/, "", k)
      split(substr(lines[i], length(k) + 2), least, " ")
      if (loads[k] + 0 >= least[1] && stores[k] + 0 >= least[2]) continue
      print "FAILED: " k " has " loads[k] + 0 " loads and " stores[k] + 0 " stores of 16 bytes; its source has " least[1] " and " least[2]
      wrong = 1
    }
    exit wrong
  }' || failed=1

cat "$work"/*.log | c++filt | awk -v architectures="${architectures[*]}" -v markdown="${MARKDOWN:-}" '
  /Compiling entry function/ {
    architecture = $0; sub(/.* for .sm_/, "", architecture); sub(/[^0-9].*/, "", architecture)
    kernel = $0; sub(/.*entry function ./, "", kernel); sub(/. for .sm_.*/, "", kernel)
    '"$named"'
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
  }' || failed=1
exit "$failed"
