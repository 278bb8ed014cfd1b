#!/usr/bin/env bash
# One command on a fresh machine: installs what is missing, builds, runs every test that this machine can run, and ends
# with ctest's own summary and exit code.
set -euo pipefail

usage() {
  cat <<'USAGE'
bash tests/run.sh [--sanitize address|thread] [--torch] [--build] [--full] [--help] [-- CTEST-OPTIONS]

  (nothing)            release build in build/, all tests
  --sanitize address   address and undefined behaviour, in build/asan
  --sanitize thread    data races, in build/tsan; what has threads of its own, without gRPC's
  --torch              with Debian's PyTorch for the compatibility list, which is 220 MB to fetch; else what needs it is
                       skipped where it is not installed. Part of --full
  --build              builds what would be tested, and ends
  --full               the long campaigns too: more seeds and kills (ELRUN_FULL=1), everything once more with clang 16
                       (build/clang), the whole golden proof (elrun_golden), each fuzzer for a minute (build/fuzz), and
                       README's two commands in empty roots of other systems (tests/systems.sh)
  -- OPTIONS           go to ctest, such as:  -- -R kernels -V

A failing property prints ELRUN_SEED=N, which replays it:  ELRUN_SEED=N bash tests/run.sh -- -R NAME -V
USAGE
}

sanitize="" full="" torch="" only_build=""
while (($#)); do
  case "$1" in
    --sanitize)
      (($# > 1)) || { echo "tests/run.sh: --sanitize needs a value: address or thread" >&2; exit 64; }
      sanitize=$2
      shift
      ;;
    --sanitize=*) sanitize="${1#*=}" ;;
    --torch) torch=1 ;;
    --build) only_build=1 ;;
    --full) full=1 ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) echo "tests/run.sh: unknown option $1" >&2; usage >&2; exit 64 ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/support/packages.sh

jobs=$(nproc)
export NINJA_STATUS='[%f/%t, %es] '
export CTEST_OUTPUT_ON_FAILURE=1
prefix=()
case "$sanitize" in
  "") preset=release folder=build ;;
  address)
    preset=asan folder=build/asan
    export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0:${ASAN_OPTIONS-}"
    export LSAN_OPTIONS="suppressions=\"$PWD/tests/support/lsan.supp\":print_suppressions=0:${LSAN_OPTIONS-}"
    export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS-}"
    ;;
  thread)
    preset=tsan folder=build/tsan
    export TSAN_OPTIONS="suppressions=\"$PWD/tests/support/tsan.supp\":second_deadlock_stack=1:${TSAN_OPTIONS-}"
    set -- -LE grpc "$@"
    # g++ 12's runtime does not find its place under the address randomisation of newer kernels.
    if setarch -R true 2>/dev/null; then prefix=(setarch -R); fi
    ;;
  *) echo "tests/run.sh: --sanitize knows address and thread, not '$sanitize'" >&2; exit 64 ;;
esac

more=(python3 python3-yaml etcd-server etcd-client iproute2 dnsmasq-base busybox-static libzstd-dev  # the last: for elrun_static
  dpkg-dev file mmdebstrap  # packages, and the roots in which they are tested
  qemu-system-common e2fsprogs)  # the crash laboratory
[[ -n "$full" ]] && more+=(clang-16 libclang-rt-16-dev lintian man-db xfsprogs btrfs-progs)
ensure_packages "${more[@]}"
# Not every release has it, which is known once the lists were fetched.
if [[ -n "$torch$full" ]] && apt-cache show python3-torch >/dev/null 2>&1; then
  (ensure_packages python3-torch) || echo "Without python3-torch the PyTorch cases are skipped." >&2
fi

# build PRESET FOLDER [cmake options]: configures quietly, builds ${target:-all} with one line per step.
build() {
  local preset=$1 folder=$2 log
  shift 2
  mkdir -p "$folder"
  log=$folder/configure.log
  # Said each time: a folder that was configured before, for packages for example, would keep its own, and the tests in it would be none or old ones.
  if ! cmake -C "cmake/presets/$preset.cmake" -S . -B "$folder" -G Ninja "-DELRUN_WERROR=${ELRUN_WERROR:-OFF}" \
    -DELRUN_BUILD_TESTS=ON -DELRUN_BUILD_SAMPLES=ON "$@" >"$log" 2>&1; then
    cat "$log" >&2
    echo "tests/run.sh: the build could not be configured" >&2
    exit 1
  fi
  grep '^-- elrun:' "$log" || true
  cmake --build "$folder" --target "${target:-all}" -j "$jobs"
}

factor=1  # of the tests' time-outs
[[ -n "$sanitize" ]] && factor=5
all=OFF
[[ -n "$full" ]] && factor=$((factor * 10)) all=ON
patience=(-DELRUN_TEST_TIME_FACTOR=$factor "-DELRUN_SANITIZE_ALL=$all")
build "$preset" "$folder" "${patience[@]}"
[[ -n "$only_build" ]] && exit 0
if [[ -n "$full" ]]; then
  export ELRUN_FULL=1
  if [[ -z "$sanitize" ]]; then
    build no-cuda build/clang -DCMAKE_CXX_COMPILER=clang++-16 "${patience[@]}"
    ctest --test-dir build/clang --no-tests=error -j "$jobs" "$@"
    # Half an hour: every cell of the golden matrix, 200 histories of real kills.
    build/bin/elrun_sim --exhaustive
    if [[ -x build/bin/elrun_golden ]]; then build/bin/elrun_golden --logs build/golden-logs; fi
    target=fuzzers build asan build/fuzz -DCMAKE_CXX_COMPILER=clang++-16 -DELRUN_LIBFUZZER=ON
    find build/fuzz -name '*_fuzz' -type f -perm -u+x | sort | while read -r fuzzer; do
      echo "fuzzing for a minute: $fuzzer"
      "$fuzzer" -max_total_time=60 -max_len=65536 >"$fuzzer.log" 2>&1 || { tail -n 40 "$fuzzer.log" >&2; exit 1; }
    done
    env -u ELRUN_FULL bash tests/systems.sh
  fi
fi
# More tests than processors, for many wait most of their time: as many as compute for all processors and a half (in hundredths; tests/times.cmake).
printf '{"version": {"major": 1, "minor": 0}, "local": [{"processors": [{"id": "all", "slots": %d}]}]}\n' $((100 * jobs + 50)) >"$folder/processors.json"
code=0
"${prefix[@]}" ctest --test-dir "$folder" --no-tests=error -j $((3 * jobs)) --resource-spec-file "$PWD/$folder/processors.json" "$@" || code=$?
if ((code != 0)); then
  # Once more at the end: whoever has only the last lines of a long log has them.
  echo "What failed first in each case (all of it: $folder/Testing/Temporary/LastTest.log):" >&2
  grep -a -A 12 ': FAILED:' "$folder/Testing/Temporary/LastTest.log" | cut -c -300 | tail -n 150 >&2 || true
fi
exit "$code"
