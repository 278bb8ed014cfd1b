#!/usr/bin/env bash
# tests/gpu.sh on fake devices: each part leaves its result, a part that fails or is cut is told, and without a device the script ends with 77.
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
expect "$work/out" "SKIPPED: nothing is built"

export FAKEGPU=$build
code=0
FAKEGPU_FAULTS=no_device bash "$script" run facts >"$work/out" || code=$?
[[ $code == 77 ]] || wrong "without a device it ended with $code"
expect "$work/out" "SKIPPED: no device here"
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
expect "$RESULTS/torch.txt" "not run: PyTorch knows no fake devices"
expect "$RESULTS/gpt.txt" "^step=2 .* tokens_per_s="
expect "$RESULTS/ipc.txt" "see each other's writes"

code=0
FAKEGPU_FAULTS=launch:1 bash "$script" run kernels >"$work/out" || code=$?
[[ $code == 1 ]] || wrong "with a launch that fails it ended with $code"
expect "$work/out" "FAILED: kernels ended with"

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
sleep 0.5
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
