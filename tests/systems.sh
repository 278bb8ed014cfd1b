#!/usr/bin/env bash
# README's two commands on systems where nothing is yet: an empty root per system, made of that system's own packages, a copy of
# this tree in it, and both commands to their end.
set -euo pipefail

usage() {
  cat <<'USAGE'
bash tests/systems.sh [--only quickstart|tests] [--cache FOLDER] [--keep] [--help] [SYSTEM...]

  SYSTEM           debian-12, debian-13, debian-sid, ubuntu-24.04; without one, all of them
  --only COMMAND   quickstart (samples/quickstart.sh) or tests (tests/run.sh); without it, both
  --cache FOLDER   the compiler's cache, kept from run to run: what was compiled before is not compiled again
  --keep           the roots stay in build/systems/, to look into: chroot build/systems/debian-13

Needs root, mmdebstrap (installed where it is missing) and the system's mirror. A system that cannot be had here is SKIPPED, with the
reason. All that is printed inside is in build/systems/SYSTEM.log. A root is a root directory, processes and mounts of its own, with the
machine's network; it takes about 6 GB, is removed when its commands have ended, and its processes end with this script.
USAGE
}

only="" cache="" keep="" systems=()
while (($#)); do
  case "$1" in
    --only | --cache)
      (($# > 1)) || { echo "tests/systems.sh: $1 needs a value" >&2; exit 64; }
      declare "${1#--}=$2"
      shift
      ;;
    --keep) keep=1 ;;
    --help | -h) usage; exit 0 ;;
    -*) echo "tests/systems.sh: unknown option $1" >&2; usage >&2; exit 64 ;;
    *) systems+=("$1") ;;
  esac
  shift
done
((${#systems[@]})) || systems=(debian-12 debian-13 debian-sid ubuntu-24.04)
. "$(dirname "${BASH_SOURCE[0]}")/support/roots.sh"
case "$only" in
  "") commands=(samples/quickstart.sh tests/run.sh) ;;
  quickstart) commands=(samples/quickstart.sh) ;;
  tests) commands=(tests/run.sh) ;;
  *) echo "tests/systems.sh: --only knows quickstart and tests, not '$only'" >&2; exit 64 ;;
esac
for system in "${systems[@]}"; do
  [[ -n ${suite_of[$system]-} ]] || { echo "tests/systems.sh: unknown system '$system'; there are: ${!suite_of[*]}" >&2; exit 64; }
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/support/packages.sh
place=$PWD/build/systems
results=() failed=0 root="" log=""

skip_all() {
  printf 'SKIPPED: %s\n' "$1"
  exit 0
}
why_no_roots || skip_all "$why"

cleanup() {
  if [[ -n $running ]]; then
    kill -KILL "$running" 2>/dev/null || true
    wait "$running" 2>/dev/null || true
  fi
  rm -rf --one-file-system "$place/tmp" "$place/keyring"
  if [[ -n $root && -z $keep ]]; then rm -rf --one-file-system "$root"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# The files of this tree as they are: of a checkout, what git knows or would add; else all but build/.
copy_tree() {
  mkdir -p "$1"
  if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard | { while IFS= read -r -d '' name; do [[ ! -e $name && ! -L $name ]] || printf '%s\0' "$name"; done; } |
      tar -c --null --no-recursion --files-from=- | tar -x -C "$1"
  else
    tar -c --exclude=./build . | tar -x -C "$1"
  fi
}

# Runs as process 1 of the root's own processes: mounts, goes in, runs the commands, and leaves a line for each in /root/results:
# the command, its exit code, its seconds, and what it left in /tmp or running.
inside=$(cat <<'INSIDE'
set -euo pipefail
root=$1 cache=$2 system=$3
shift 3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
if [[ -n $cache ]]; then
  mkdir -p "$cache" "$root/root/.cache/ccache"
  mount --bind "$cache" "$root/root/.cache/ccache"
fi
hostname "$system"
cp /etc/resolv.conf "$root/etc/resolv.conf"
printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n' "$system" >"$root/etc/hosts"
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
rmdir /old
exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bash -c '
  cd /root/elrun
  for command; do
    echo "### bash $command"
    began=$SECONDS code=0
    timeout --kill-after=60 4h bash "$command" </dev/null || code=$?
    left=$(ls -A /tmp | tr "\n" " ")
    for process in /proc/[0-9]*; do
      [[ $process != /proc/1 ]] || continue
      { read -r name <"$process/comm"; read -r state <"$process/stat"; } 2>/dev/null || continue
      [[ ${state##*) } == Z* ]] || left+="process:$name "
    done
    echo "$command $code $((SECONDS - began)) $left" >>/root/results
  done' inside "$@"
INSIDE
)

# try SYSTEM: appends its line to the results.
try() {
  local system=$1 why command code seconds left line compiler
  log=$place/$system.log
  root=$place/$system
  rm -rf --one-file-system "$root"
  : >"$log"
  echo "== $system: an empty root"
  if ! make_root "$system" >"$place/tmp/why"; then
    results+=("SKIPPED $system: $(cat "$place/tmp/why")")
    return 0
  fi
  copy_tree "$root/root/elrun"
  echo "== $system: ${commands[*]} (what they print goes to $log)"
  alone bash -c "$inside" inside "$root" "$cache" "$system" "${commands[@]}" >>"$log" 2>&1 || true
  compiler=$(chroot "$root" sh -c 'c++ --version | head -n 1' 2>/dev/null || true)
  for command in "${commands[@]}"; do
    read -r _ code seconds left < <(grep "^$command " "$root/root/results" 2>/dev/null || echo "$command - 0")
    line="$system (${compiler:-no compiler}): bash $command"
    case "$code" in
      0) line="passed  $line, $seconds s" ;;
      -) line="FAILED  $line never began or was killed; see $log" ;;
      *) line="FAILED  $line ended with $code after $seconds s; see $log" ;;
    esac
    [[ $code == 0 && -z $left ]] || failed=1
    [[ -z $left ]] || line="FAILED  ${line#*  }, and left: $left"
    results+=("$line")
  done
  [[ $only == quickstart ]] || results+=("        $(grep -E '^[0-9]+% tests passed' "$log" | tail -n 1)")
  if [[ -z $keep ]]; then rm -rf --one-file-system "$root"; fi
  root=""
}

mkdir -p "$place/tmp"
[[ -z $cache ]] || cache=$(realpath -m -- "$cache")
for system in "${systems[@]}"; do try "$system"; done
echo
printf '%s\n' "${results[@]}"
exit "$failed"
