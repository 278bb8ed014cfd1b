# Sourced by tests/run.sh and samples/quickstart.sh: ensure_packages installs what is missing of the system's packages,
# on Debian 12, Debian 13 and Ubuntu 24.04 (the names are the same). Where all is there it takes milliseconds and needs no rights.
# CUDA and NCCL are optional and stay the machine's own business: the build takes them when they are there.

# The compiler's cache is asked with paths relative to the build folder: a clone in another place finds what this one compiled.
export CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=1

elrun_packages=(g++ cmake ninja-build ccache pkg-config libboost-dev libfmt-dev libssl-dev zlib1g-dev nlohmann-json3-dev
  libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libgrpc++-dev catch2)

# ensure_packages [more names...]: returns when all are installed, or ends the script with 69 (EX_UNAVAILABLE).
ensure_packages() {
  local wanted=("${elrun_packages[@]}" "$@") missing=() name
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    elrun_check_tools "${wanted[@]}"
    return
  fi
  local installed
  # It fails when a name was never heard of on this machine; its answer about the others counts all the same.
  installed=" $(dpkg-query -W -f='${db:Status-Abbrev}:${Package} ' "${wanted[@]}" 2>/dev/null || true) "
  for name in "${wanted[@]}"; do
    case "$installed" in
      *"ii :$name "*) ;;
      *) missing+=("$name") ;;
    esac
  done
  ((${#missing[@]} == 0)) && return

  local as_root=()
  if ((EUID != 0)); then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      echo "Packages are missing, and this user may not install them. Please run, as root:" >&2
      echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 69
    fi
  fi
  echo "Installing ${#missing[@]} packages: ${missing[*]}"
  local log code=0
  log=$(mktemp)
  # Tests start an etcd of their own. The service that the package brings would run on this machine from now on. One that is there already stays as its owner has it.
  local service=""
  if [[ " ${missing[*]} " == *" etcd-server "* ]] && systemctl show-environment >/dev/null 2>&1 && ! systemctl cat etcd.service >/dev/null 2>&1 &&
    "${as_root[@]}" systemctl mask etcd.service >"$log" 2>&1; then
    service=etcd.service
  fi
  # One list of somebody else's that cannot be fetched ends an update with an error, and hinders no installation.
  "${as_root[@]}" apt-get update -q >>"$log" 2>&1 || true
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$log" 2>&1 || code=$?
  if [[ -n "$service" ]]; then
    { "${as_root[@]}" systemctl unmask "$service" && "${as_root[@]}" systemctl disable "$service"; } >>"$log" 2>&1 || true
  fi
  if ((code != 0)); then
    tail -n 20 "$log" >&2
    echo "The packages could not be installed (whole log: $log). On Debian 12, Debian 13 and Ubuntu 24.04 these are needed: ${wanted[*]}" >&2
    exit 69
  fi
  rm -f "$log"
}

# On another system nothing is installed; what the build needs is looked for by name.
elrun_check_tools() {
  local missing=() tool
  for tool in c++ cmake ninja protoc grpc_cpp_plugin; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((${#missing[@]} == 0)) && return
  echo "Not found: ${missing[*]}. This is neither Debian nor Ubuntu; please install what there is called: $*" >&2
  exit 69
}
