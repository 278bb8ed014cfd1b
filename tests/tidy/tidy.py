#!/usr/bin/env python3
"""Runs clang-tidy's checks (.clang-tidy) on the product's sources: `python3 tests/tidy/tidy.py [FOLDER ...]`, as in `tidy.py lib/job rendezvous`;
without a folder all, which takes some ten minutes on two cores. It needs a whole build in build/, for its commands and its generated headers.
`--changed` takes the folders in which a file changed since ELRUN_TIDY_BASE, else since this branch left origin/main, else since the last
commit; what is not committed counts. A check looks at one place of the code, so what it finds is in a file that changed, but for rare cases.
Exit code 1 where a check finds something.

The time goes into headers: 12 s for a source alone. So the sources of a folder are one translation unit, in which names of unnamed
namespaces can clash. A source whose name clashes goes into the folder's next unit. The static analyzer's checks are left to
`clang-tidy -p build FILE`: they take as long again.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["lib/*", "rendezvous", "rendezvous/*", "checkpoint", "launcher", "launcher/*", "samples/*"]
CHECKS = "--checks=-clang-analyzer-*,-bugprone-suspicious-include"  # of .clang-tidy all but these; a unit includes sources


def commands(build):
    """Each source of the product with the flags of its command that say where headers lie and what is defined."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        # A unit of the build includes its sources by their whole paths (cmake/Precompiled.cmake).
        sources = [file] if file.suffix == ".cpp" else []
        if file.suffix == ".cxx" and file.is_relative_to(build):
            sources = [pathlib.Path(path) for path in re.findall(r'#include "(/.*?\.cpp)"', file.read_text())]
        words = shlex.split(entry["command"])
        flags = [w for w in words if re.match(r"-(I|D)", w)]
        flags += [x for at, w in enumerate(words) if w == "-isystem" for x in (w, words[at + 1])]
        if any("PLANTED" in flag for flag in flags):  # the simulator's copies
            continue
        found |= {source: flags for source in sources if source.is_relative_to(ROOT) and not source.is_relative_to(build)}
    return found


def git(*words):
    """What git prints, or None where it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def base():
    """The commit whose differences to the tree are checked, or None for all there is."""
    if named := os.environ.get("ELRUN_TIDY_BASE"):
        return named
    left = git("merge-base", "HEAD", "origin/main")
    return left if left and left != git("rev-parse", "HEAD") else git("rev-parse", "--verify", "--quiet", "HEAD~1")


def changed(folders, since):
    """Of these folders those with a file that differs from the commit `since`. All, where git does not say, or the checks themselves differ."""
    names = since and git("diff", "--name-only", since, "--")
    new = git("ls-files", "--others", "--exclude-standard")
    if names is None or new is None:
        return folders
    files = {ROOT / name for name in [*names.splitlines(), *new.splitlines()]}
    if ROOT / ".clang-tidy" in files:
        return folders
    sources = {f for f in files if f.suffix in (".cpp", ".hpp", ".inl")}
    within = {max(inside, key=lambda d: len(d.parts)) for f in sources if (inside := [d for d in folders if f.is_relative_to(d)])}
    for header in (f"<elrun/{f.name}>" for f in sources if f.parent == ROOT / "include/elrun"):  # a public one is seen in the first folder that includes it
        within |= set([d for d in folders if any(header in f.read_text() for f in d.glob("**/*.?pp"))][:1])
    return [d for d in folders if d in within]


def clang(tool, unit, flags):
    return subprocess.run([*tool, str(unit), "--" if "tidy" in tool[0] else "-fsyntax-only", "-std=c++20", "-Wno-everything", *flags],
                          cwd=ROOT, capture_output=True, text=True)


def checked(name, sources, flags, folder):
    """What clang-tidy says of these sources, unit by unit."""
    unit = folder / f"{name.replace('/', '_')}.cpp"
    programs = [s for s in sources if re.search(r"^int main\(", s.read_text(), re.MULTILINE)]
    later = programs[1:]  # a unit has one main()
    sources = [s for s in sources if s not in later]
    while sources:
        rest, later = later, []
        while True:
            unit.write_text("".join(f'#include "{s}"\n' for s in sources))
            said = clang(["clang-tidy-14", f"--config-file={ROOT}/.clang-tidy", CHECKS, "--quiet"], unit, flags).stdout
            if " error: " not in said:
                break
            # A name clashes. Which source was clang in? Of the chain that leads to the first error, the one that the unit includes.
            while " error: " in (parsed := clang(["clang++-14"], unit, flags).stderr):
                lines = parsed.splitlines()
                error = next(at for at, line in enumerate(lines) if " error: " in line)
                line = next((int(m[1]) for text in reversed(lines[: error + 1]) if (m := re.search(re.escape(str(unit)) + r":(\d+)", text))), 0)
                if len(sources) == 1 or line == 0:
                    sys.exit(f"{parsed}\ntidy.py: clang++-14 does not compile {sources[0].relative_to(ROOT)}")
                rest.append(sources.pop(line - 1))
                unit.write_text("".join(f'#include "{s}"\n' for s in sources))
        yield said
        sources = rest


def main():
    build = ROOT / "build"
    if not (build / "compile_commands.json").exists():
        sys.exit("tidy.py: build first: bash tests/run.sh (CONTRIBUTING.md has the steps by hand)")
    for tool in ("clang++-14", "clang-tidy-14"):
        if not shutil.which(tool):
            sys.exit(f"tidy.py: {tool} is missing: apt-get install clang-14 clang-tidy-14")
    flags_of = commands(build)
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)

    words = [word for word in sys.argv[1:] if word != "--changed"]
    wanted = folders = [d for pattern in words or FOLDERS for d in sorted(ROOT.glob(pattern)) if d.is_dir()]
    if not folders:
        sys.exit(f"tidy.py: no folder {' '.join(words)} in {ROOT}")
    if "--changed" in sys.argv:
        since = base()
        wanted = changed(folders, since)
        print(f"tidy: {len(wanted)} folders have changed since {since}" if since else "tidy: all folders, for git knows no commit before", flush=True)
    libraries = {}
    for source in sorted(flags_of):
        within = [d for d in folders if source.is_relative_to(d)]
        if within:  # the innermost
            libraries.setdefault(max(within, key=lambda d: len(d.parts)), []).append(source)

    libraries = {library: sources for library, sources in libraries.items() if library in wanted}

    def check(library):
        sources = list(libraries[library])
        flags = list(dict.fromkeys(flag for s in sources for flag in flags_of[s]))
        said = "".join(checked(str(library.relative_to(ROOT)), sources, flags, folder))
        print(f"tidy: {library.relative_to(ROOT)}: {len(libraries[library])} sources\n{said}", end="", flush=True)
        return bool(said)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(check, sorted(libraries)))
    if any(found):
        sys.exit("tidy.py: please mend these, or say in .clang-tidy why a check is wrong")


if __name__ == "__main__":
    main()
