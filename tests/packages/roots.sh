#!/usr/bin/env bash
# roots.sh PACKAGES PLACE [SYSTEM...]: installs the packages in PACKAGES in an empty root of each system, uses them, and purges them: nothing may be left.
# The tarball is unpacked where there is nothing at all, and used there. Roots are kept below PLACE, for they take a minute to make.
# Without a SYSTEM: debian-12, and with ELRUN_FULL the others.
set -euo pipefail
packages=$(realpath "$1") place=$(realpath -m "$2")
shift 2
(($#)) || set -- debian-12 ${ELRUN_FULL:+debian-13 ubuntu-24.04}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/support/packages.sh
. tests/support/roots.sh

why_no_roots || { echo "SKIPPED: $why"; exit 77; }
compgen -G "$packages/*.deb" >/dev/null || { echo "SKIPPED: there are no packages in $packages"; exit 77; }
log=$place/log root=""
needed=$(dpkg-deb -f "$packages"/libelrun0_*.deb Depends | sed -n 's/.*libc6 (>= \([0-9.]*\)).*/\1/p')
cleanup() {
  if [[ -n $running ]]; then
    kill -KILL "$running" 2>/dev/null || true
    wait "$running" 2>/dev/null || true
  fi
  rm -rf --one-file-system "$place/tmp" "$place/work" "$place/keyring"
  if [[ $root == *.making ]]; then rm -rf --one-file-system "$root"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$place/tmp"
: >"$log"

# --- the tarball: no shell, no C library, no /etc, no /tmp
empty=$place/work/empty
rm -rf "$place/work"
mkdir -p "$empty"
tar -xzf "$packages"/elrun-*.tar.gz -C "$empty" --strip-components=1
version=$(chroot "$empty" /bin/elrun --version)
said=$(env -i PATH="$PATH" timeout 120 chroot "$empty" /bin/elrun --nproc_per_node 2 --no_python /bin/elrun --version 2>&1) ||
  { echo "the tarball's elrun ran no job of two workers in an empty root:"$'\n'"$said" >&2; exit 1; }
(($(grep -c "^$version\$" <<<"$said") == 2)) || { echo "the tarball's elrun did not run both workers:"$'\n'"$said" >&2; exit 1; }
echo "passed  the tarball, in an empty root"

# Runs as process 1 of the root's own processes.
inside=$(cat <<'INSIDE'
set -euo pipefail
root=$1 packages=$2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mkdir -p "$root/packages"
mount --bind -o ro "$packages" "$root/packages"
cp /etc/resolv.conf "$root/etc/resolv.conf"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
hostname localhost
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
rmdir /old
exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash /root/steps
INSIDE
)

# What a user does. Its last line says how far it came.
steps=$(cat <<'STEPS'
set -euo pipefail
ours() { find / -xdev \( -path /proc -o -path /dev -o -path /packages -o -path /root \) -prune -o -iname '*elrun*' -print; }
fail() { echo "failed: $*"; exit 1; }
[[ -z $(ours) ]] || fail "there before it was installed: $(ours)"
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/quick

dpkg -i /packages/elrun_*.deb
elrun --version
elrun --nproc_per_node 2 --no_python sh -c 'echo "worker $RANK of $WORLD_SIZE"' | tee /root/said
[[ $(sort /root/said | tr '\n' ,) == "worker 0 of 2,worker 1 of 2," ]] || fail "a job of two workers"

if ! apt-get update -q; then echo "no index"; exit 0; fi
apt-get install -y -q --no-install-recommends /packages/libelrun0_*.deb
[[ $(ldconfig -p) == *'libelrun.so.0 '* ]] || fail "ldconfig does not know libelrun.so.0"

apt-get install -y -q --no-install-recommends /packages/libelrun-dev_*.deb g++ cmake make
cd /root/program
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(line LANGUAGES CXX)
find_package(elrun 0.1 REQUIRED)
add_executable(line line.cpp)
target_link_libraries(line PRIVATE elrun::elrun)
find_package(elrun QUIET COMPONENTS store)
if(elrun_FOUND)
  message(FATAL_ERROR "the component store, which no package has, was found")
endif()
CMAKE
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release
cmake --build build
build/line 2>&1 | tee alone
elrun --nproc_per_node 2 --no_python build/line 2>&1 | tee two
grep -q '^w = 0\.49' alone || fail "README's first program, alone"
[[ $(grep '^w = ' alone) == "$(grep '^w = ' two)" ]] || fail "README's first program, with two workers"

apt-get purge -y -q libelrun-dev libelrun0 elrun
[[ -z $(ours) ]] || fail "left after the purge: $(ours)"
ldconfig -p | grep elrun && fail "ldconfig still knows libelrun"
[[ -z $(ls -A /tmp) ]] || fail "left in /tmp: $(ls -A /tmp)"
echo "all done"
STEPS
)

failed=0 skipped=0
for system in "$@"; do
  root=$place/$system.making
  if [[ ! -d $place/$system ]]; then
    rm -rf --one-file-system "$root"
    if ! make_root "$system" >"$place/tmp/why"; then
      echo "SKIPPED $system: $(cat "$place/tmp/why")"
      skipped=1
      continue
    fi
    mv "$root" "$place/$system"
  fi
  has=$(chroot "$place/$system" dpkg-query -W -f '${Version}' libc6)
  if dpkg --compare-versions "$has" lt "$needed"; then
    echo "SKIPPED $system: the packages were built where the C library is newer: they need $needed, it has $has"
    skipped=1
    continue
  fi
  root=$place/work/root
  rm -rf --one-file-system "$root"
  mkdir -p "$place/work"
  cp -a --reflink=auto "$place/$system" "$root"
  mkdir -p "$root/root/program"
  awk '/^```/ { inside = 0 } inside { print } /^```cpp file=line\.cpp/ { inside = 1 }' README.md >"$root/root/program/line.cpp"
  printf '%s\n' "$steps" >"$root/root/steps"
  began=$SECONDS
  alone timeout 1200 bash -c "$inside" inside "$root" "$packages" >"$place/$system.log" 2>&1 || true
  case $(tail -n 1 "$place/$system.log") in
    "all done") echo "passed  $system: three packages installed, used and purged ($((SECONDS - began)) s)" ;;
    "no index") echo "SKIPPED $system: elrun is installed and used; what libelrun0 and libelrun-dev need cannot be had, for the package index cannot be reached"; skipped=1 ;;
    *) echo "FAILED  $system:"; tail -n 30 "$place/$system.log"; failed=1 ;;
  esac
done
((failed == 0)) || exit 1
((skipped == 0)) || exit 77
