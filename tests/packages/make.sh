#!/usr/bin/env bash
# make.sh BUILD OUT: packs what is built, into OUT, and looks at what came of it: names, what each package needs, its files, and lintian's opinion where it
# is installed. Any user may do that.
set -euo pipefail
build=$1 out=$2
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
problems=0
problem() {
  echo "$*" >&2
  problems=1
}

grep -qs '^set(CPACK_GENERATOR "TGZ;DEB")' "$build/CPackConfig.cmake" || {
  echo "SKIPPED: this build makes no packages; its configuration says why"
  exit 77
}
rm -rf "$out"
mkdir -p "$out"
cpack --config "$build/CPackConfig.cmake" -B "$out" >"$out/cpack.log" 2>&1 || { cat "$out/cpack.log" >&2; exit 1; }
rm -rf "$out/_CPack_Packages"
cd "$out"

arch=$(dpkg --print-architecture) version=$(sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")$/\1/p' "$build/CPackConfig.cmake")
made=$(find . -name '*.deb' -o -name '*.tar.gz' | sort | tr '\n' ' ')
[[ $made == "./elrun-$version-linux-$(uname -m).tar.gz ./elrun_${version}_$arch.deb ./libelrun-dev_${version}_$arch.deb ./libelrun0_${version}_$arch.deb " ]] ||
  problem "these packages were made: $made"

# needs PACKAGE PATTERN: what it depends on.
needs() {
  local said
  said=$(dpkg-deb -f "$1"_*.deb Depends)
  [[ $said =~ ^$2$ ]] || problem "$1 depends on '$said', and not on what '$2' says"
}
needs elrun ''
needs libelrun0 'libc6 \(>= 2\.[0-9]+\), libgcc-s1 \(>= [0-9.]+\), libstdc\+\+6 \(>= [0-9.]+\)'
needs libelrun-dev "libelrun0 \\(= $version\\)"

# has PACKAGE FILE...: its files, folders and notices aside. All are root's, and none but root's to write.
has() {
  local package=$1 files foreign
  shift
  files=$(dpkg-deb --fsys-tarfile "$package"_*.deb | tar -t | grep -v -e '/$' -e '/third-party/' -e '/lintian/' -e '^\./usr/include/elrun/.*\.hpp$' | sort)
  [[ $files == "$(printf './usr/%s\n' "$@" share/doc/"$package"/{changelog.gz,copyright} | sort)" ]] || problem "$package has these files:"$'\n'"$files"
  foreign=$(dpkg-deb --fsys-tarfile "$package"_*.deb | tar -tv --numeric-owner | grep -v -E '^(l.{9}|.{5}-..-.) 0/0 ' || true)
  [[ -z $foreign ]] || problem "$package has files that are not root's alone:"$'\n'"$foreign"
}
triplet=$(gcc -print-multiarch)
has elrun bin/elrun share/man/man1/elrun.1.gz share/bash-completion/completions/elrun share/zsh/vendor-completions/_elrun
has libelrun0 "lib/$triplet/libelrun.so.0" "lib/$triplet/libelrun.so.$version"
has libelrun-dev "lib/$triplet/libelrun.so" "lib/$triplet"/cmake/elrun/elrun{Config,ConfigVersion,Targets}.cmake

# The tarball is unpacked as root over folders that exist: files alone, all of them root's, whoever made it.
only_files_of_root() {
  local foreign
  foreign=$(tar -tvzf "$1" --numeric-owner | grep -v -E '^-.{4}-..-. 0/0 ' || true)
  [[ -n $(tar -tzf "$1") && -z $foreign ]] || problem "$2 has folders, or files that are not root's alone:"$'\n'"${foreign:-none at all}"
}
only_files_of_root elrun-*.tar.gz "the tarball"
mkdir -p other/bin
echo program >other/bin/elrun
tar -czf other.tar.gz --owner=12345 --group=12345 other
cmake "-DCPACK_PACKAGE_FILES=$PWD/other.tar.gz" -P "$tree/cmake/packages/tarball.cmake"
only_files_of_root other.tar.gz "the tarball of another user"
[[ $(tar -xOzf other.tar.gz other/bin/elrun) == program ]] || problem "the tarball of another user has lost its file"
rm -rf other other.tar.gz

# What a shell completes.
tar -xzf elrun-*.tar.gz
top=$(find . -mindepth 1 -maxdepth 1 -type d)
said=$(bash -c '. "$1"; COMP_WORDS=(elrun --nn) COMP_CWORD=1; _elrun; echo "${COMPREPLY[*]}"' complete "$top/share/bash-completion/completions/elrun")
[[ $said == --nnodes ]] || problem "bash completes elrun --nn to '$said'"
if command -v man >/dev/null; then
  said=$(MANWIDTH=100 man --warnings -l "$top/share/man/man1/elrun.1" 2>&1 >/dev/null || true)
  [[ -z $said ]] || problem "man complains of elrun(1): $said"
fi
[[ -s $top/share/doc/elrun/LICENSE ]] || problem "the tarball has no licence"
rm -rf "$top"

if command -v lintian >/dev/null; then
  said=$(lintian --allow-root --fail-on error,warning --tag-display-limit 0 ./*.deb 2>&1) || problem "lintian:"$'\n'"$said"
fi
((problems == 0)) || exit 1
echo "made and looked at: $made"
