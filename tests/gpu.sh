#!/usr/bin/env bash
# The device's suite: what only a GPU can show. Binaries are built anywhere where nvcc is, and carried: the machine with the GPU needs its driver and this script.
#
#   tests/gpu.sh build                   # build/gpu: programs with the static CUDA runtime, and the libraries that they need
#   tests/gpu.sh run                     # all parts, within ten minutes
#   tests/gpu.sh run kernels nccl        # some of them
#   tests/gpu.sh table                   # the results so far, as rows of tests/gpu/RESULTS.md
#
# Results are in build/gpu/results, a file for each part, written line by line: a call that is cut loses the rest of one part. Nothing here needs a network.
# Without a device `run` says that nothing was run and why, and ends with 77. A part whose library or tool is not on the machine says "not run", and what to install; what is there and
# does not work fails. Environment: GPU_FOLDER (instead of build/gpu), RESULTS (instead of its results), FAKEGPU=build (the fake devices of that build folder, to test this script),
# CUDA_HOME (instead of /usr/local/cuda, where compute-sanitizer is).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
folder=${GPU_FOLDER:-$root/build/gpu}
results=${RESULTS:-$folder/results}

# Each part: its limit in seconds (590 together), and what it is.
parts=(facts answers rates kernels nccl ranks ipc golden gpt bf16 torch sanitizer)
declare -A limit=([facts]=10 [answers]=20 [rates]=20 [kernels]=30 [nccl]=70 [ranks]=110 [ipc]=15 [golden]=60 [gpt]=40 [bf16]=55 [torch]=65 [sanitizer]=95)
declare -A what=(
  [facts]="device, driver, versions"
  [answers]="known answers: device and host give the same bits"
  [rates]="copy rate and matrix rate"
  [kernels]="kernels beside the copy rate of the same run"
  [nccl]="NCCL: a world of one made and ended 100 times"
  [ranks]="NCCL between two and three workers that share the device, each as a host of its own (NCCL_HOSTID): the host's state, also after SIGKILLs"
  [ipc]="memory shared by two processes of one device"
  [golden]="gpt comes to the host's state: zero 0 to 3, bf16 leaves, two workers of which one is killed (SIGKILL)"
  [gpt]="gpt with GPT-2's 124M shape, with the host's bits: tokens per second"
  [bf16]="gpt with GPT-2's 124M shape in bf16: tokens per second, and one state for zero 0 to 3"
  [torch]="PyTorch with the same shape in bf16: tokens per second"
  [sanitizer]="compute-sanitizer: memcheck, racecheck, initcheck, synccheck"
)

build() {
  local tree=$root/build
  [[ -f $tree/build.ninja ]] || cmake -C "$root/cmake/presets/release.cmake" -S "$root" -B "$tree" -G Ninja
  cmake --build "$tree" --target gpu_suite kernels_gpu_test gpt elrun_static
  mkdir -p "$folder/lib"
  cp "$tree/tests/gpu_suite" "$tree/tests/kernels_gpu_test" "$tree/bin/gpt" "$tree/bin/elrun_static" "$folder"
  # All but the C library's own, which belong to the machine, as the driver does.
  ldd "$folder/gpu_suite" "$folder/kernels_gpu_test" "$tree/bin/gpt" | sed -n 's/^.* => \(\/.*\) (0x[0-9a-f]*)$/\1/p' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv)\.so' | xargs -r -d '\n' cp -L -t "$folder/lib"
  echo "built: $folder ($(du -sh "$folder" | cut -f1))"
}

# A small model. On fake devices, where this script is tested and no device, it is half as long, and five slots are still shared unevenly by two or three workers.
small=(--layers 1 --channels 32 --heads 2 --context 32 --global-batch 8 --micro-batch 1 --seed 7)
[[ -z ${FAKEGPU:-} ]] || small+=(--context 16 --global-batch 5)

# gpt WHERE ARGUMENTS...: that model; what comes later wins.
small_gpt() {
  ELRUN_DEVICE=$1 "$gpt" --data "$scratch/text" "${small[@]}" --steps 3 "${@:2}" 2>"$scratch/log"
}
state_of() { sed -n 's/^done .* state=\([0-9a-f]*\).*/\1/p'; }

# same WHAT EXPECTED DEVICE: one line
same() {
  [[ -n $2 && $2 == "$3" ]] && { echo "$1: state $3, as expected"; return; }
  echo "$1: WRONG: state '$3', expected '$2'"
  tail -3 "$scratch/log"
  wrong=1
}

# training WORKERS STEPS ARGUMENTS...: the small model with workers that share the device, in place of this shell. What is said is in $scratch/training.
training() {
  export ELRUN_DEVICE=cuda:0
  exec "$launcher" --standalone --nproc_per_node "$1" --no_python "${worker[@]}" "$gpt" --data "$scratch/text" "${small[@]}" --steps "$2" \
    "${@:3}" >"$scratch/training" 2>&1
}
deaths() { grep -c 'ended by signal 9 (SIGKILL) in generation' "$scratch/training" || true; }

# workers_of AGENT: the ids of its workers. The agent's guard is a child with the agent's command line, which names gpt as well; its own name tells it apart.
workers_of() {
  local pid name
  for pid in $(pgrep -P "$1" -f "$(basename "$gpt")"); do
    name=$(cat "/proc/$pid/comm" 2>/dev/null) || continue
    [[ $name == elrun* ]] || echo "$pid"
  done
}

# kill_workers KILLS WORKERS AGENT: a worker each time that all have taken a step together since the last death. Fails if the run ends first.
kill_workers() {
  local kills pid said=0
  for ((kills = 0; kills < $1; ++kills)); do
    until tail -n "+$((said + 1))" "$scratch/training" | grep "step=[0-9]* loss=.* world=$2 " >/dev/null; do kill -0 "$3" 2>/dev/null || return 1; sleep 0.1; done
    pid=''
    until (($(deaths) > kills)); do
      kill -0 "$3" 2>/dev/null || return 1
      if [[ -z $pid ]]; then  # a worker before its exec has its agent's name, and is none yet
        pid=$(workers_of "$3" | shuf -n 1)
        [[ -z $pid ]] || kill -KILL "$pid" || pid=''
      fi
      sleep 0.1
    done
    said=$(wc -l <"$scratch/training")
  done
}

# killed KILLS WORKERS STEPS WHAT ARGUMENTS...: a line, as `same` gives it. A run that ends before all could be killed is done again with twice the steps.
killed() {
  local agent steps=$3
  if ! command -v pgrep >/dev/null; then
    echo "$4: not run: no pgrep here, which finds the workers: install procps"
    : >"$scratch/training"
    return
  fi
  while true; do
    : >"$scratch/training"
    training "$2" "$steps" "${@:5}" &
    agent=$!
    kill_workers "$1" "$2" "$agent" || true
    wait "$agent" || { tail -5 "$scratch/training"; wrong=1; }
    if (($(deaths) >= $1)); then break; fi
    if ((wrong || steps >= 32 * $3)); then echo "not all were killed"; wrong=1; break; fi
    steps=$((2 * steps))
  done
  same "$4, $steps steps" "$(small_gpt cpu --steps "$steps" | state_of)" "$(state_of <"$scratch/training")"
}

golden() {
  local wrong=0 host zero steps=1000 worker=()
  [[ -z ${FAKEGPU:-} ]] || steps=12
  host=$(small_gpt cpu | state_of)
  for zero in 0 1 2 3; do same "zero($zero)" "$host" "$(small_gpt cuda --zero "$zero" | state_of)"; done
  same "bf16 leaves" "$(small_gpt cpu --leaves bf16 | state_of)" "$(small_gpt cuda --leaves bf16 | state_of)"
  killed 1 2 "$steps" "a worker killed"
  killed 1 3 "$steps" "of three workers with mirrored shards one killed, from no checkpoint" --zero mirrored3
  if grep -E 'was lost with|begins the job again' "$scratch/training"; then wrong=1; fi
  return "$wrong"
}

# by_nccl WHAT: the last training exchanged by NCCL.
by_nccl() {
  [[ -s $scratch/training ]] || return 0
  if grep -q 'what lies on devices is exchanged by NCCL' "$scratch/training"; then return; fi
  echo "$1: WRONG: not by NCCL"
  grep 'what lies on devices' "$scratch/training" || true
  wrong=1
}

# NCCL refuses two ranks of one device and host. Each worker is a host of its own here, so it takes them, and they talk by sockets. Their kernels take turns
# on the device, so an exchange takes milliseconds.
ranks() {
  local wrong=0 host how kills=5 steps=240 worker=(sh -c 'NCCL_HOSTID=host$RANK exec "$@"' worker)
  [[ -z ${FAKEGPU:-} ]] || kills=1 steps=12
  export NCCL_SOCKET_IFNAME=lo
  host=$(small_gpt cpu | state_of)
  for how in "2 --zero 0" "2 --zero 1" "2 --zero 2" "3 --zero 3" "2 --zero 3 --overlap on" "3 --zero mirrored1"; do
    # shellcheck disable=SC2086  # the words of $how are arguments
    set -- $how
    (training "$1" 3 "${@:2}") || { tail -5 "$scratch/training"; wrong=1; }
    same "$1 ranks, ${*:2}" "$host" "$(state_of <"$scratch/training")"
    by_nccl "$how"
  done
  # The rank that is left alone makes some 200 steps a second until the other one is back.
  killed 1 2 "$steps" "of two ranks one killed" --zero mirrored3
  by_nccl "two ranks"
  killed "$kills" 3 $((8 * kills)) "of three ranks one killed, $kills times" --zero mirrored3
  by_nccl "three ranks"
  if grep -E 'was lost with|begins the job again' "$scratch/training"; then wrong=1; fi
  return "$wrong"
}

# large_gpt ARGUMENTS...: GPT-2's 124M shape. Two bytes of a text are an id below 50257.
large_gpt() {
  local shape=(--layers 12 --channels 768 --heads 12 --context 1024 --ids 50257 "$@")
  [[ -z ${FAKEGPU:-} ]] || shape=("$@" --layers 1 --channels 32 --heads 2 --context 32 --micro-batch 1 --global-batch 2 --steps 2)
  ELRUN_DEVICE=cuda "$gpt" --data "$scratch/text" --seed 7 "${shape[@]}"
}

bf16() {
  local wrong=0 first='' zero recipe=()
  large_gpt --precision bf16 --micro-batch 16 --global-batch 64 --steps 12
  for zero in 0 1 2 3; do
    large_gpt --precision bf16 --micro-batch 16 --global-batch 32 --steps 3 --zero "$zero" "${recipe[@]}" >"$scratch/bf16" 2>"$scratch/log" || wrong=1
    [[ -n $first ]] || first=$(state_of <"$scratch/bf16")
    same "bf16, zero($zero)${recipe[*]:+, by a recipe}" "$first" "$(state_of <"$scratch/bf16")"
    # The second run writes it, the others read it: the first choices, made again of their numbers, so the state of the run without one.
    recipe=(--recipe "$scratch/recipe")
  done
  sed -n 's/^recipe=[^ ]* /recipe /p' "$scratch/bf16"
  return "$wrong"
}

# lacks LIBRARY: it is not on this machine, and that is said.
lacks() {
  local said code=0
  said=$("$suite" library "$1") || code=$?
  ((code == 76)) || return 1  # the part itself tells what else is wrong
  echo "not run: $said"
}

# What keeps PyTorch's part from running; nothing: it is there.
torch_is_absent() {
  command -v python3 >/dev/null || { echo "no python3 here: install it, and PyTorch"; return; }
  python3 -c '
import importlib.util as util
if util.find_spec("torch") is None:
    print("no PyTorch here: install torch (pip install torch)")
elif getattr(__import__("torch").version, "cuda", None) is None:
    print("the PyTorch here was built without CUDA: install one with it")
'
}

# The program of a part. What it prints is its result.
run_part() {
  local suite=$folder/gpu_suite answers=$folder/kernels_gpu_test sizes=()
  gpt=$folder/gpt launcher=$folder/elrun_static
  if [[ -n ${FAKEGPU:-} ]]; then
    suite=$FAKEGPU/tests/gpu_suite_devices answers=$FAKEGPU/tests/kernels_devices_test sizes=(--small)
    gpt=$FAKEGPU/tests/gpt_on_fake_devices launcher=$FAKEGPU/bin/elrun
  else
    export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  for _ in {1..40}; do cat "$here/gpu.sh"; done >"$scratch/text"
  case $1 in
    golden) golden ;;
    nccl) lacks nccl || "$suite" nccl "${sizes[@]}" ;;
    ranks) lacks nccl || ranks ;;
    gpt) large_gpt --micro-batch 1 --global-batch 8 --steps 6 ;;
    bf16) lacks cublas_lt || bf16 ;;
    torch)
      local absent
      absent=$(torch_is_absent)
      [[ -z $absent ]] || { echo "not run: $absent"; return 0; }
      [[ -z ${FAKEGPU:-} ]] || { echo "not run: PyTorch knows no fake devices"; return 0; }
      python3 "$here/gpu/torch_gpt.py" 16 4 12
      ;;
    answers) "$answers" ;;
    sanitizer)
      local tool
      tool=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
      [[ -x $tool ]] || { echo "not run: no compute-sanitizer here: install it (cuda-sanitizer, of the CUDA toolkit), or set CUDA_HOME"; return 0; }
      [[ -z ${FAKEGPU:-} ]] || { echo "not run: compute-sanitizer looks at devices, and these are fake"; return 0; }
      for check in memcheck racecheck initcheck synccheck; do
        echo "$check:"
        timeout $((limit[sanitizer] / 4)) "$tool" --tool "$check" --error-exitcode 9 "$answers" "device kernels give the known answers*" | tail -3
      done
      ;;
    facts)
      command -v nvidia-smi >/dev/null && { nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true; }
      "$suite" facts
      ;;
    *) "$suite" "$1" "${sizes[@]}" ;;
  esac
}

run() {
  local part code said failed=0 factor=1
  [[ -z ${FAKEGPU:-} ]] || factor=10
  for part in "$@"; do [[ -n ${what[$part]:-} ]] || { echo "no such part: $part (${parts[*]})"; exit 64; }; done
  if [[ -z ${FAKEGPU:-} && ! -x $folder/gpu_suite ]]; then
    echo "not run: nothing is built in $folder: tests/gpu.sh build, where nvcc is"
    exit 77
  fi
  code=0
  said=$(run_part facts 2>&1) || code=$?
  ((code != 77)) || { echo "not run: ${said##*$'\n'}"; exit 77; }
  mkdir -p "$results"
  for part in "$@"; do
    echo "== $part: ${what[$part]}"
    printf 'part: %s\ndate: %s\n' "$part" "$(date -u +%Y-%m-%d)" >"$results/$part.txt"
    code=0
    # Bash reads this file anew for the part, so that its time can be limited.
    timeout --kill-after=10 "$((limit[$part] * factor))" bash "$here/gpu.sh" part "$part" 2>&1 | tee -a "$results/$part.txt" || code=$?
    echo "ended: $code" >>"$results/$part.txt"
    ((code == 0)) || { echo "FAILED: $part ended with $code"; failed=1; }
  done
  exit "$failed"
}

table() {
  local part file
  echo "| part | date | result |"
  echo "|---|---|---|"
  for part in "${parts[@]}"; do
    file=$results/$part.txt
    if [[ ! -f $file ]]; then
      echo "| ${what[$part]} | $(date -u +%Y-%m-%d) | not run |"
      continue
    fi
    awk -v what="${what[$part]}" '
      /^part: / { next }
      /^date: / { date = substr($0, 7); next }
      /^ended: / { ended = $2; next }
      /^=+$/ || /^$/ { next }
      { gsub(/\|/, "/"); lines = lines (lines ? "<br>" : "") $0 }
      END {
        if (ended == "") lines = lines "<br>**cut: the rest is lost**"
        else if (ended != 0) lines = lines "<br>**failed with " ended "**"
        printf "| %s | %s | %s |\n", what, date, lines
      }' "$file"
  done
}

command=${1:-}
[[ $# -eq 0 ]] || shift
case $command in
  build) build ;;
  run)
    [[ $# -gt 0 ]] || set -- "${parts[@]}"
    run "$@"
    ;;
  part) run_part "$1" ;;
  table) table ;;
  *)
    sed -n '2,12s/^# \{0,1\}//p' "$0"
    exit 64
    ;;
esac
