#!/usr/bin/env bash
# configure.sh TREE WORK CMAKE GENERATOR COMPILER: elrun's tree by itself, configured as no other test has it, and built nowhere.
set -euo pipefail
tree=$1 work=$2 cmake=$3 generator=$4 compiler=$5
problems=0
problem() {
  echo "$*" >&2
  problems=1
}

rm -rf "$work"
mkdir -p "$work/build"
# An OpenSSL of its own, which is the system's by other names.
own_openssl=""
if crypto=$("$compiler" -print-file-name=libcrypto.a) && [[ $crypto == /* && -d /usr/include/openssl ]]; then
  own_openssl=$work/openssl
  mkdir -p "$own_openssl/lib" "$own_openssl/include"
  ln -s "${crypto%/*}"/lib{crypto,ssl}.* "$own_openssl/lib"
  ln -s /usr/include/openssl "$own_openssl/include/openssl"
fi
# Left by an earlier configuration, which made packages.
echo 'set(CPACK_GENERATOR "TGZ")' | tee "$work/build/CPackConfig.cmake" >"$work/build/CPackSourceConfig.cmake"
# For another processor: nothing that was built is run. A system whose archives of gRPC no program links with: the static program is left out. Headers go to another folder than include. A sanitizer comes by
# CMake's own flags.
"$cmake" -S "$tree" -B "$work/build" -G "$generator" -DCMAKE_CXX_COMPILER="$compiler" -DELRUN_BUILD_TESTS=OFF -DELRUN_BUILD_SAMPLES=OFF -DELRUN_WITH_CUDA=OFF \
  -DELRUN_ARCHIVES_LINK=OFF -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_FLAGS=-fsanitize=address ${own_openssl:+"-DOPENSSL_ROOT_DIR=$own_openssl"} -DCMAKE_INSTALL_INCLUDEDIR=inc/elrun-0 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

for config in "$work/build"/CPack{,Source}Config.cmake; do
  [[ ! -e $config ]] || problem "without elrun_static packages are made: $(grep -H CPACK_GENERATOR "$config")"
done
grep -q '^-- elrun: there are no manual page' "$work/log" || problem "a build for another processor would run a program of its own"
grep -q '^-- elrun: there is no target package' "$work/log" || problem "the configuration does not say that there is no target package"
"$cmake" --build "$work/build" --target help >"$work/targets"
! grep -q '^package' "$work/targets" || problem "there is a target package without anything to pack"

for targets in elrunTargets elrunStoreTargets; do
  named=$(find "$work/build/CMakeFiles/Export" -name "$targets.cmake" -exec sed -n 's/^ *INTERFACE_INCLUDE_DIRECTORIES "\(.*\)"$/\1/p' {} +)
  [[ $named == '${_IMPORT_PREFIX}/inc/elrun-0' ]] || problem "$targets.cmake, which find_package reads, has headers in '$named', and not in the folder where they are installed"
done

strict=$(grep -rhoE --include=build.ninja --include=link.txt '[^ ]*-z,defs' "$work/build" || true)
[[ -z $strict ]] || problem "a shared library may have no undefined names, those of a sanitizer's runtime neither: $strict"

if [[ -n $own_openssl ]]; then
  linked=$(grep -rhoE --include=build.ninja --include=link.txt '[^ ]*/libcrypto\.[a-z.0-9]+' "$work/build" | sort -u | grep -v "^$own_openssl/" || true)
  [[ -z $linked ]] || problem "besides the OpenSSL that CMake was told to take, this is linked: $linked"
  grep -q "^-- elrun: libelrun carries $own_openssl/lib/libcrypto.a and " "$work/log" || problem "libelrun does not carry the OpenSSL that CMake was told to take"
fi

((problems == 0)) || exit 1
rm -rf "$work"
