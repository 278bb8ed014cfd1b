#!/usr/bin/env bash
# From a fresh machine to a training that survives kill -9: installs what is missing, builds, trains a small language
# model on four workers, kills one of them half-way, trains again undisturbed, and compares the two results bit by bit.
set -euo pipefail

usage() {
  cat <<'USAGE'
bash samples/quickstart.sh [--data FILE] [--steps N] [--workers N] [--help]

  --data FILE    the text to learn; without it, the licence texts that come with the system
  --steps N      steps of training (160)
  --workers N    worker processes (4)

Everything is kept in build/; what the two trainings printed is in build/quickstart/*.log.
USAGE
}

fail() {
  echo "quickstart: $1" >&2
  exit "${2:-1}"
}

data="" steps=160 workers=4
while (($#)); do
  case "$1" in
    --data | --steps | --workers)
      (($# > 1)) || fail "$1 needs a value" 64
      declare "${1#--}=$2"
      shift
      ;;
    --data=* | --steps=* | --workers=*)
      option=${1%%=*}
      declare "${option#--}=${1#*=}"
      ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option $1" 64 ;;
  esac
  shift
done
whole_number() { [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] && (($2 >= $3)) || fail "$1 '$2' is not a whole number of at least $3" 64; }
whole_number --steps "$steps" 10
whole_number --workers "$workers" 1
[[ -z $data || -r $data ]] || fail "--data '$data' cannot be read: name a text file" 66
[[ -z $data ]] || data=$(realpath -- "$data")

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/support/packages.sh
began=$SECONDS

heading() { printf '\n== %s\n' "$1"; }

heading "1. Install what is missing, and build"
ensure_packages
mkdir -p build/quickstart
if [[ ! -f build/build.ninja ]]; then
  cmake -C cmake/presets/release.cmake -S . -B build -G Ninja >build/configure.log 2>&1 ||
    { cat build/configure.log >&2; fail "the build could not be configured"; }
fi
NINJA_STATUS='   [%f/%t, %es] ' cmake --build build --target bin/elrun bin/gpt bin/hello bin/all_reduce
echo "   build/bin/elrun is the launcher, build/bin/gpt the program that trains; ready after $((SECONDS - began)) s."

heading "2. Find a text"
if [[ -z $data ]]; then
  data=$PWD/build/quickstart/text.txt
  # Regular files only: some of them are links to others. Sorted by bytes, so that it is the same text each time.
  (cd /usr/share/common-licenses 2>/dev/null && LC_ALL=C && for f in *; do [[ -f $f && ! -L $f ]] && cat -- "$f"; done; true) >"$data"
  (($(stat -c %s -- "$data") >= 100000)) || fail "the system has no licence texts to learn from; name a text of 100 kB or more: --data FILE" 66
  echo "   The licence texts of this system, $(stat -c %s -- "$data") bytes. Your own: --data FILE"
else
  (($(stat -c %s -- "$data") >= 10000)) || fail "--data '$data' has $(stat -c %s -- "$data") bytes: name a text of 10 kB or more" 66
  echo "   $data, $(stat -c %s -- "$data") bytes."
fi

# The ids of elrun's worker processes: its children that run gpt. Read from /proc, for procps may not be installed.
workers_of() {
  local file line rest
  for file in /proc/[0-9]*/stat; do
    { read -r line <"$file"; } 2>/dev/null || continue
    rest=${line##*) }   # state, parent, ...
    rest=${rest#* }
    if [[ $line == *"(gpt)"* && ${rest%% *} == "$1" ]]; then
      file=${file#/proc/}
      echo "${file%/stat}"
    fi
  done
}

launcher="" pipe=build/quickstart/pipe
trap '[[ -z $launcher ]] || kill "$launcher" 2>/dev/null || true; rm -f "$pipe"' EXIT

# train NAME KILL_AT SHOW_EVERY [more options of gpt]: runs the training, shows a line per step, kills a worker when step
# KILL_AT is done (0: none), and leaves the final hash in `state`, the text in `sample`.
train() {
  local name=$1 kill_at=$2 show_every=$3 log=build/quickstart/$1.log line key value begin=0 first=0 killed=0 lost again=0 now left
  local -A field
  local -a numbers=()   # of each step, for when it comes again
  shift 3
  local command=(build/bin/elrun --standalone --nproc_per_node "$workers" --max_restarts 3 --no_python build/bin/gpt
    --data "$data" --steps "$steps" --global-batch 32 --micro-batch 4 --layers 3 --channels 128 --heads 4 --context 64
    --lr 0.004 --sample 400 "$@")
  echo "   ${command[*]}"
  rm -f "$pipe"
  mkfifo "$pipe"
  "${command[@]}" >"$pipe" &   # what elrun and the workers say about themselves goes to standard error, as it happens
  launcher=$!
  state="" sample=""
  : >"$log"
  while IFS= read -r line; do
    echo "$line" >>"$log"
    case "$line" in
      step=*)
        field=()
        for value in $line; do
          key=${value%%=*}
          field[$key]=${value#*=}
        done
        now=${EPOCHREALTIME/[.,]/}
        ((begin)) || { begin=$now first=${field[step]}; }
        left="?"
        if ((field[step] > first)); then
          left=$(((now - begin) * (steps - field[step]) / (field[step] - first) / 1000000))
        fi
        if ((killed && field[generation] != lost)); then
          printf '\n   >>> Training goes on: generation %s begins with step %s, %d.%d s after the kill.\n' "${field[generation]}" "${field[step]}" \
            $(((now - killed) / 1000000)) $(((now - killed) / 100000 % 10))
          [[ -z ${numbers[field[step]]-} ]] || again=${#numbers[@]}
          begin=$now first=${field[step]}
          ((again == 0)) || printf '   >>> Steps %d to %d are done again, from the newest checkpoint.\n\n' "${field[step]}" "$again"
          killed=0
        fi
        if ((field[step] == again + 1 && again)); then
          printf '\n   >>> All that was lost is made up for, with the same losses and norms as before.\n\n'
          again=0
        fi
        value="loss ${field[loss]}  norm ${field[norm]}"
        [[ ${numbers[field[step]]-$value} == "$value" ]] || fail "step ${field[step]} came again with other numbers: $value, not ${numbers[field[step]]}"
        numbers[field[step]]=$value
        if ((field[step] % show_every == 0 || field[step] == 1)); then
          printf '   step %*d/%d  %s  world %s  generation %s  %6s tokens/s  %3s s left\n' ${#steps} "${field[step]}" "$steps" "$value" \
            "${field[world]}" "${field[generation]}" "${field[tokens_per_s]}" "$left"
        fi
        if ((kill_at && field[step] >= kill_at)); then
          local victims
          mapfile -t victims < <(workers_of "$launcher")
          ((${#victims[@]})) || fail "no worker of elrun (process $launcher) was found to kill"
          local victim=${victims[RANDOM % ${#victims[@]}]}
          printf '\n   >>> kill -9 %s: one of the workers %s is gone, without a word. What elrun says about it:\n\n' "$victim" "${victims[*]}"
          kill -KILL "$victim"
          killed=${EPOCHREALTIME/[.,]/} kill_at=0 lost=${field[generation]}
        fi
        ;;
      done*) state=${line##*state=} ;;
      sample:*) sample+="   | ${line#sample: }"$'\n' ;;
      *) echo "   $line" ;;
    esac
  done <"$pipe"
  local code=0
  wait "$launcher" || code=$?
  launcher=""
  rm -f "$pipe"
  ((code == 0)) || fail "the training '$name' ended with exit code $code; its output is in $log"
  [[ $state =~ ^[0-9a-f]{16}$ ]] || fail "the training '$name' did not end with a state hash; its output is in $log"
  ((kill_at == 0)) || fail "the training '$name' ended before a worker could be killed"
  echo "   Done: all weights and optimizer states hash to $state."
}

heading "3. Train on $workers workers, and kill one half-way"
rm -rf build/quickstart/checkpoint
train disturbed $((steps / 2)) 1 --checkpoint build/quickstart/checkpoint --every $(((steps + 4) / 5))
disturbed=$state written=$sample

heading "4. The same training, undisturbed (every tenth step is shown)"
train undisturbed 0 10
undisturbed=$state

heading "5. Compare"
echo "   one worker killed: $disturbed"
echo "   undisturbed:       $undisturbed"
[[ $disturbed == "$undisturbed" ]] || fail "the two trainings ended in different states: this is a bug in elrun; please report it with build/quickstart/*.log"
echo "   The same bits: the death of a worker has left no trace in the model."

heading "6. What the model writes, after $steps steps"
printf '%s' "$written"
printf '\nAll of it took %d s. Next: samples/README.md, or bash tests/run.sh\n' $((SECONDS - began))
