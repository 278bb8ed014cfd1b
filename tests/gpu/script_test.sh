#!/usr/bin/env bash
# tests/gpu.sh on fake devices: each part leaves its result, a part that fails or is cut is told, one whose library is absent was not run and says so, and without a device the script ends
# with 77.
set -euo pipefail
build=$1
script=$(cd "$(dirname "$0")/.." && pwd)/gpu.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RESULTS=$work/results GPU_FOLDER=$work/gpu
wrong() { echo "FAILED: $1"; exit 1; }
expect() { grep -q -- "$2" "$1" || { cat "$1"; wrong "$1 does not say: $2"; }; }

code=0
bash "$script" run >"$work/out" || code=$?
[[ $code == 77 ]] || wrong "without anything built it ended with $code"
expect "$work/out" "not run: nothing is built in $GPU_FOLDER: tests/gpu.sh build"

export FAKEGPU=$build
code=0
FAKEGPU_FAULTS=no_device bash "$script" run facts >"$work/out" || code=$?
[[ $code == 77 ]] || wrong "without a device it ended with $code"
expect "$work/out" "^not run: no device here: no CUDA-capable device is detected"
[[ ! -e $RESULTS ]] || wrong "without a device it left results"

bash "$script" table >"$work/table"
[[ $(grep -c 'not run' "$work/table") == 12 ]] || wrong "without results not all twelve parts are 'not run'"

bash "$script" run facts rates kernels nccl ranks ipc golden gpt bf16 torch sanitizer >"$work/out" || { cat "$work/out"; wrong "a part failed"; }
for part in facts rates kernels nccl ranks ipc golden gpt bf16 torch sanitizer; do expect "$RESULTS/$part.txt" "^ended: 0"; done
expect "$RESULTS/facts.txt" "fake device, compute capability 9.0"
expect "$RESULTS/rates.txt" "^copy rate"
for kernel in "adamw with bf16 copy: 30 bytes" "canonical reduce of 4 fp32, with squares: 20 bytes" "to bf16: 6 bytes"; do
  expect "$RESULTS/kernels.txt" "^$kernel per element, .* % of the copy rate"
done
expect "$RESULTS/nccl.txt" "a world of one made and ended 100 times"
expect "$RESULTS/nccl.txt" "0.0 MiB less is free"
for line in "zero(0): state" "zero(3): state" "bf16 leaves: state" "a worker killed, [0-9]* steps: state" \
  "of three workers with mirrored shards one killed, from no checkpoint, [0-9]* steps: state"; do
  expect "$RESULTS/golden.txt" "^$line [0-9a-f]\{16\}, as expected"
done
for line in "2 ranks, --zero 0: state" "3 ranks, --zero 3: state" "3 ranks, --zero mirrored1: state" "of two ranks one killed, [0-9]* steps: state" \
  "of three ranks one killed, 1 times, [0-9]* steps: state"; do
  expect "$RESULTS/ranks.txt" "^$line [0-9a-f]\{16\}, as expected"
done
expect "$RESULTS/bf16.txt" "^bf16, zero(0): state [0-9a-f]\{16\}, as expected"
expect "$RESULTS/bf16.txt" "^bf16, zero(3), by a recipe: state [0-9a-f]\{16\}, as expected"
expect "$RESULTS/bf16.txt" "^recipe of cuBLASLt [0-9.]*, chosen on fake device: 15 algorithms, hash=[0-9a-f]\{16\}"
expect "$RESULTS/torch.txt" "^not run: .*PyTorch"
expect "$RESULTS/gpt.txt" "^step=2 .* tokens_per_s="
expect "$RESULTS/ipc.txt" "see each other's writes"

code=0
FAKEGPU_FAULTS=launch:1 bash "$script" run kernels >"$work/out" || code=$?
[[ $code == 1 ]] || wrong "with a launch that fails it ended with $code"
expect "$work/out" "FAILED: kernels ended with"

# Libraries and tools that are not on the machine: these parts were not run, and the table says what to install. Nothing of them has failed.
mkdir -p "$work/bare/tests" "$work/bare/path" "$work/bare/python/torch/version"
ln -s "$build/bin" "$work/bare/bin"
ln -s "$build/tests/gpt_on_fake_devices" "$work/bare/tests"
cat >"$work/bare/tests/gpu_suite_devices" <<'END'
#!/bin/sh
[ "$1" != library ] || { echo "lib$2.so was not found: install $2"; exit "${PROBE:-76}"; }
exec "$SUITE" "$@"
END
chmod +x "$work/bare/tests/gpu_suite_devices"
for tool in bash sh env cat date dirname mktemp rm mkdir tee timeout grep sed tail; do ln -s "$(command -v $tool)" "$work/bare/path"; done
bare() { SUITE=${SUITE:-$build/tests/gpu_suite_devices} RESULTS=$work/results_bare FAKEGPU=$work/bare CUDA_HOME=$work/none "$@"; }
PATH=$work/bare/path bare bash "$script" run nccl ranks bf16 torch sanitizer >"$work/out" || { cat "$work/out"; wrong "an absent library is no failure"; }
for part in nccl:"libnccl.so was not found: install nccl" ranks:"libnccl.so was not found: install nccl" bf16:"libcublas_lt.so was not found: install cublas_lt" \
  torch:"no python3 here: install it, and PyTorch" sanitizer:"no compute-sanitizer here: install it"; do
  expect "$work/results_bare/${part%%:*}.txt" "^not run: ${part#*:}"
  expect "$work/results_bare/${part%%:*}.txt" "^ended: 0"
done
bare bash "$script" table >"$work/table"
expect "$work/table" "^| NCCL: a world of one .* | not run: libnccl.so was not found: install nccl |"
expect "$work/table" "^| compute-sanitizer: .* | not run: no compute-sanitizer here: install it"
[[ $(grep -c 'not run' "$work/table") == 12 ]] || wrong "not all of the bare machine's parts are 'not run'"

# What is there and does not work fails: a library with something wrong, a probe that is killed, a PyTorch that cannot be imported.
for probe in 0 139; do
  code=0
  PROBE=$probe SUITE=false bare bash "$script" run nccl >"$work/out" || code=$?
  [[ $code == 1 ]] || { cat "$work/out"; wrong "with a broken library (probe $probe) it ended with $code"; }
done
if command -v python3 >/dev/null; then
  echo 'raise OSError("libtorch is broken")' >"$work/bare/python/torch/__init__.py"
  code=0
  PYTHONPATH=$work/bare/python bare bash "$script" run torch >"$work/out" 2>&1 || code=$?
  [[ $code == 1 ]] || { cat "$work/out"; wrong "with a broken PyTorch it ended with $code"; }
  expect "$work/out" "libtorch is broken"
  echo 'from types import SimpleNamespace; version = SimpleNamespace(cuda=None)' >"$work/bare/python/torch/__init__.py"
  PYTHONPATH=$work/bare/python bare bash "$script" run torch >"$work/out" || wrong "a PyTorch without CUDA is no failure"
  expect "$work/out" "^not run: the PyTorch here was built without CUDA"
fi

# What the suite itself says of a library: absent is one thing, and there but of no use another.
probe() { code=0; "$build/tests/gpu_suite_devices" library "$@" >"$work/out" || code=$?; }
probe nccl libabsent.so.2
[[ $code == 76 ]] || wrong "an absent NCCL is $code"
expect "$work/out" "^libabsent.so.2 was not found: install NCCL 2"
probe nccl libc.so.6
[[ $code == 0 ]] || wrong "a library that is no NCCL counts as absent"
probe nccl
[[ $code == 0 ]] || wrong "the fake NCCL counts as absent"
probe cublas_lt
[[ $code == 0 ]] || wrong "the fake cuBLASLt counts as absent"

# A gpt that comes to another state on a device, and an agent of which no worker was killed.
mkdir -p "$work/wrong/tests" "$work/wrong/bin"
ln -s "$build/tests/gpu_suite_devices" "$work/wrong/tests"
printf '#!/bin/sh\n[ "$ELRUN_DEVICE" = cpu ] && state=aaaaaaaaaaaaaaaa || state=bbbbbbbbbbbbbbbb\necho "done step=3 state=$state"\n' >"$work/wrong/tests/gpt_on_fake_devices"
printf '#!/bin/sh\necho "step=1 "\n' >"$work/wrong/bin/elrun"
chmod +x "$work/wrong/tests/gpt_on_fake_devices" "$work/wrong/bin/elrun"
code=0
FAKEGPU=$work/wrong bash "$script" run golden >"$work/out" || code=$?
[[ $code == 1 ]] || wrong "with wrong states it ended with $code"
expect "$work/out" "^zero(3): WRONG: state 'bbbbbbbbbbbbbbbb', expected 'aaaaaaaaaaaaaaaa'"
expect "$work/out" "^not all were killed"

# An agent with thirty guards, which have its command line, and with workers: it is a worker that is killed.
mkdir -p "$work/guarded/tests" "$work/guarded/bin"
mkfifo "$work/never"
ln -s "$build/tests/gpu_suite_devices" "$work/guarded/tests"
cat >"$work/guarded/tests/gpt_on_fake_devices" <<'END'
#!/bin/bash
[[ $1 != worker ]] || read -r -t 60 _ <>"$NEVER"
echo "done step=3 state=aaaaaaaaaaaaaaaa"
END
cat >"$work/guarded/bin/elrun" <<'END'
#!/bin/bash
[[ $2 == --nproc_per_node && $5 == */gpt_on_fake_devices ]] || exit 64
guards=() workers=() code=0
for _ in {1..30}; do (echo elrun-guard >"/proc/$BASHPID/comm"; read -r -t 60 _ <>"$NEVER") & guards+=($!); done
for ((i = 0; i < $3; ++i)); do "$5" worker & workers+=($!); done
for worker in "${workers[@]}"; do until [[ $(<"/proc/$worker/comm") == gpt_on_fake_dev ]]; do sleep 0.1; done; done  # before its exec it has this script's name
echo "step=1 loss=1 world=$3 "
wait -n -p ended "${guards[@]}" "${workers[@]}" || code=$?
[[ " ${workers[*]} " == *" $ended "* ]] && echo "worker $ended was ended by signal $((code - 128)) (SIGKILL) in generation 1" || echo "$ended" >>"$GUARDS"
kill -KILL "${guards[@]}" "${workers[@]}" 2>/dev/null
echo "done step=3 state=aaaaaaaaaaaaaaaa"
END
chmod +x "$work/guarded/tests/gpt_on_fake_devices" "$work/guarded/bin/elrun"
NEVER=$work/never GUARDS=$work/guards FAKEGPU=$work/guarded bash "$script" run golden >"$work/out" || { cat "$work/out"; wrong "with guards golden failed"; }
[[ ! -s $work/guards ]] || wrong "a guard was killed in place of a worker"

sed -i '/^ended/d' "$RESULTS/ipc.txt"  # as a call leaves it that is cut
bash "$script" table >"$work/table"
expect "$work/table" "kernels beside the copy rate.*\*\*failed with 1\*\*"
expect "$work/table" "memory shared.*\*\*cut: the rest is lost\*\*"
echo "passed"
