# Sourced by tests/systems.sh and tests/packages/roots.sh, after packages.sh: root directories made of another system's own packages. Their caller
# sets `place` (a folder with tmp/ in it), `root` (the directory) and `log` (a file).

declare -A suite_of=([debian-12]=bookworm [debian-13]=trixie [debian-sid]=sid [ubuntu-24.04]=noble)

# why_no_roots: whether roots can be made here; if not, `why` says why.
why_no_roots() {
  why=""
  if ((EUID != 0)); then why="only root may make a root directory with processes and mounts of its own"
  elif ! unshare -m -p -f true 2>/dev/null; then why="this machine allows no namespaces (unshare -m -p)"
  elif ! (ensure_packages mmdebstrap) >/dev/null 2>&1; then why="mmdebstrap cannot be had here"
  fi
  [[ -z $why ]]
}

# Its own mounts and processes: they end when `setpriv` or `unshare` does, which is when this script does, however it ends.
alone() { setpriv --pdeathsig KILL unshare --mount --pid --ipc --uts --fork --kill-child --mount-proc --propagation private "$@" & wait_for $!; }
running=""
wait_for() {
  running=$1
  local code=0
  wait "$running" || code=$?
  running=""
  return "$code"
}

# make_root SYSTEM: what Debian and Ubuntu put into their smallest containers. Says why when it cannot be had.
make_root() {
  local system=$1 options=(--variant=minbase --mode=root) line keyring=""
  # As this machine's own apt is set: behind a proxy, or beside a mirror whose lists are old.
  while read -r line; do options+=("--aptopt=$line"); done < <(apt-config dump | grep -E '^Acquire::(http::Proxy|https::Proxy|Check-Valid-Until|Check-Date) "[^"]')
  case "$system" in
    debian-*)
      [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || (ensure_packages debian-archive-keyring) >>"$log" 2>&1 ||
        { echo "there is no keyring of Debian's archive here"; return 1; }
      ;;
    ubuntu-*)
      options+=(--components=main,universe --include=apt)  # which is not among the least packages there
      if [[ ! -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]]; then  # Debian has it since 13, as a package like any other
        rm -rf "$place/keyring"
        TMPDIR=$place/tmp alone timeout 600 mmdebstrap "${options[@]}" --components=main --variant=extract --include=ubuntu-keyring trixie "$place/keyring" >>"$log" 2>&1 || true
        keyring=$place/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg
        [[ -e $keyring ]] || { echo "there is no keyring of Ubuntu's archive here, and Debian 13's package of it could not be fetched"; return 1; }
        options+=("--keyring=$keyring")
      fi
      ;;
  esac
  # Its temporary files beside the root: /tmp may be small.
  TMPDIR=$place/tmp alone timeout 1800 mmdebstrap "${options[@]}" "${suite_of[$system]}" "$root" >>"$log" 2>&1 ||
    { echo "no root could be made of its packages: $(grep -m 1 '^E: ' "$log" || echo "see $log")"; return 1; }
}
