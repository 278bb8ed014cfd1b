#!/usr/bin/env bash
# What tests/run.sh and the quickstart do first, on a machine to which a package's name is new: all that is missing is installed, and
# nothing else. The system's programs are played; what they were asked is their record. An option without its value is named before anything is done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for program in dpkg-query apt-get sudo env systemctl; do
  printf '#!/bin/bash\n. "%s/play" %s "$@"\n' "$folder" "$program" >"$folder/$program"
  chmod +x "$folder/$program"
done
cat >"$folder/play" <<PLAY
case "\$1" in
  dpkg-query) printf 'ii :cmake ii :python3 un :ccache '; exit 1 ;;  # as it does where one of the names is unknown
  sudo) shift; while [[ "\$1" == -n ]]; do shift; done; exec "\$@" ;;
  env) shift; while [[ "\$1" == *=* ]]; do shift; done; exec "\$@" ;;
  apt-get) shift; echo "\$*" >>"$folder/asked"; [[ "\$1" != update ]] ;;  # an index that is not signed is among its lists
  systemctl) shift; [[ -e "$folder/systemd" ]] || exit 1; echo "systemctl \$*" >>"$folder/asked"; [[ "\$1" != cat || -e "$folder/unit" ]] && [[ "\$1" != mask || ! -e "$folder/cannot" ]] ;;
esac
PLAY

PATH=$folder:$PATH bash -c 'set -euo pipefail
  . tests/support/packages.sh
  elrun_packages=(cmake ccache)
  ensure_packages python3 libgrpc++-dev
  echo "and went on"' >"$folder/said"

{ echo "Installing 2 packages: ccache libgrpc++-dev"; echo "and went on"; } | diff - "$folder/said"
{ echo "update -q"; echo "install -y -q --no-install-recommends ccache libgrpc++-dev"; } | diff - "$folder/asked"

# The etcd of a package is no service of this machine. One of its owner's is left alone.
touch "$folder/systemd"
asks="systemctl show-environment
systemctl cat etcd.service"
installs="update -q
install -y -q --no-install-recommends etcd-server"
etcd() {
  rm "$folder/asked"
  PATH=$folder:$PATH bash -c 'set -euo pipefail
    . tests/support/packages.sh
    elrun_packages=(cmake)
    ensure_packages etcd-server' >/dev/null
  diff - "$folder/asked"
}
etcd <<<"$asks
systemctl mask etcd.service
$installs
systemctl unmask etcd.service
systemctl disable etcd.service"
touch "$folder/cannot"
etcd <<<"$asks
systemctl mask etcd.service
$installs"
touch "$folder/unit"
etcd <<<"$asks
$installs"

for call in "run.sh --sanitize" "systems.sh --only" "systems.sh --cache"; do
  code=0
  said=$(bash tests/$call 2>&1) || code=$?
  [[ $code == 64 && $said == "tests/${call% *}: ${call#* } needs a value"* ]] || { echo "tests/$call ended with $code, and said '$said'" >&2; exit 1; }
done
