"""What can be said of the Dockerfile without a container engine.

    python3 tests/manifests/image.py [--tree TREE] [--work FOLDER]

Its form: releases are named, packages are those that the build needs, the image has a number for a user, and starts without a shell. That .dockerignore
lets in what the build reads: the files that it lets in are copied into FOLDER, and the Dockerfile's own cmake line configures the build there. Mistakes
are planted, and each has to be found.
"""

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

NOT_NEEDED = {"ccache", "catch2"}  # of the packages of tests/support/packages.sh: for tests, and to build again


def instructions(text):
    """(name, rest) of each instruction, lines that go on joined; comments are left out."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [tuple(line.strip().split(None, 1)) for line in text.split("\n") if line.strip()]


def stages_of(text):
    stages = []
    for name, rest in instructions(text):
        if name == "FROM":
            stages.append((rest.split(), []))
        else:
            stages[-1][1].append((name, rest))
    return stages


def inherited(stages, name):
    """All instructions of a stage and of those that it is made from."""
    for (image, *more), found in stages:
        if more[1:] == [name]:
            return inherited(stages, image) + found
    return []


def form_problems(text, tree):
    stages = stages_of(text)
    names = [more[1] for (_, *more), _ in stages if more[:1] == ["AS"]]
    for (image, *_), found in stages:
        if image not in names and image != "scratch" and (":" not in image or image.endswith(":latest")):
            yield f"FROM {image}: a release is named, and not latest"
        for kind, rest in found:
            if kind == "RUN" and "apt-get install" in rest:
                for needed in ("--no-install-recommends", " -y ", "rm -rf /var/lib/apt/lists/*", "apt-get update"):
                    if needed not in rest:
                        yield f"apt-get install without {needed.strip()}"
            if kind == "ADD":
                yield "ADD: COPY does what is said"
            source = re.match(r"--from=(\S+)", rest)
            if kind == "COPY" and source and source[1] not in names:
                yield f"COPY: there is no stage {source[1]}"
    installed = set(re.findall(r"[a-z0-9+.-]+", " ".join(rest for _, found in stages for kind, rest in found if kind == "RUN" and "apt-get install" in rest)))
    listed = re.search(r"elrun_packages=\(([^)]*)\)", (tree / "tests/support/packages.sh").read_text())[1].split()
    for package in sorted(set(listed) - NOT_NEEDED - installed):
        yield f"apt-get install: {package} is missing, which tests/support/packages.sh installs"
    last = inherited(stages, names[-1])
    if stages[-1][0][0] not in names or not any(image == "scratch" for (image, *_), _ in stages):
        yield "the image is made FROM scratch"
    users = [rest for kind, rest in last if kind == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield "USER: a number that is not 0: Kubernetes cannot tell who a name is (runAsNonRoot)"
    for kind in ("ENTRYPOINT", "CMD"):
        given = [rest for name, rest in last if name == kind]
        if not given or not given[-1].startswith("[") or not all(isinstance(word, str) for word in json.loads(given[-1])):
            yield f"{kind}: a list of words, for there is no shell"
    if any(kind == "RUN" for kind, _ in last):
        yield "RUN: the image has no shell"
    version = re.search(r"project\(elrun VERSION (\S+)", (tree / "CMakeLists.txt").read_text())[1]
    if f'image.version="{version}"' not in text:
        yield f"LABEL: the version is not {version}, the project's"


def let_in(tree, rules):
    """The files that .dockerignore leaves: the last rule that fits a file, or a folder that it is in, decides."""
    names = []
    if shutil.which("git"):
        names = subprocess.run(["git", "-C", str(tree), "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, text=True).stdout.split("\0")[:-1]
    names = names or [os.path.relpath(Path(folder) / f, tree) for folder, _, files in os.walk(tree) for f in files]
    for name in names:
        parts, decided = name.split("/"), True
        for rule in rules:
            wanted = rule.removeprefix("!")
            paths = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
            if any(fnmatch.fnmatch(path, wanted) if "/" in wanted and "**" not in wanted else fits(path, wanted) for path in paths):
                decided = rule.startswith("!")
        if decided and (tree / name).is_file():
            yield name


def fits(path, rule):
    if rule.startswith("**/"):
        return fnmatch.fnmatch(path.rsplit("/", 1)[-1], rule[3:])
    return "/" not in path and fnmatch.fnmatch(path, rule)


def build_problems(text, ignored, tree, work):
    """The first cmake line of the Dockerfile, in a folder that has the files that the engine would be sent; not where something else is wrong already."""
    files = list(let_in(tree, [line for line in ignored.split("\n") if line.strip() and not line.startswith("#")]))
    sent = {name.split("/")[0] for name in files}
    problems = [f".dockerignore: {name} is sent, and not needed" for name in sorted(sent & {"docs", "tests", ".git", ".ci"})]
    for folder in re.findall(r"add_subdirectory\((\w+)", (tree / "CMakeLists.txt").read_text()):
        if folder not in sent | {"tests"}:
            problems.append(f".dockerignore: {folder} is not sent, and the build reads it")
    runs = [part.strip() for kind, rest in instructions(text) if kind == "RUN" for part in rest.split("&&")]
    configure, build = [r for r in runs if r.startswith("cmake -C")], [r for r in runs if r.startswith("cmake --build")]
    if len(configure) != 1 or len(build) != 1:
        problems.append("RUN: one cmake line configures, one builds")
    for option in re.findall(r"-D(\w+)=", " ".join(configure)):
        if not re.search(rf"(option|set)\({option} ", (tree / "cmake/Options.cmake").read_text()):
            problems.append(f"cmake: the build has no option {option}")
    if problems:
        yield from problems
        return
    shutil.rmtree(work, ignore_errors=True)
    for name in files:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / name, work / name)
    done = subprocess.run(shlex.split(configure[0]), cwd=work, capture_output=True, text=True)
    if done.returncode != 0:
        yield f"`{configure[0]}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"
        return
    target = re.search(r"--target (\S+)", build[0])[1]
    if "elrun_static is left out" in done.stdout:
        print(f"{target}: this system has no archives of gRPC, so it is not asked for")
        return
    known = subprocess.run(["cmake", "--build", "build", "--target", "help"], cwd=work, capture_output=True, text=True)
    if not re.search(rf"\b{target}\b", known.stdout):
        yield f"the build has no target {target}"


FORM = [
    ("debian:bookworm-slim", "debian", "a release is named"),
    ("--no-install-recommends ", "", "apt-get install without --no-install-recommends"),
    (" libgrpc++-dev", "", "libgrpc++-dev is missing"),
    ("USER 1000:1000\n", "", "USER: a number"),
    ("USER 1000:1000", "USER elrun", "USER: a number"),
    ('ENTRYPOINT ["/usr/local/bin/elrun"]', "ENTRYPOINT /usr/local/bin/elrun", "ENTRYPOINT: a list of words"),
    ("--from=build /image/elrun", "--from=builder /image/elrun", "there is no stage builder"),
    ("STOPSIGNAL SIGTERM", "RUN ldconfig", "the image has no shell"),
    ('version="0.1.0"', 'version="0.0.9"', "the version is not"),
    ("FROM scratch AS common", "FROM debian:bookworm-slim AS common", "FROM scratch"),
]
BUILD = [
    ("Dockerfile", "-DELRUN_BUILD_TESTS=OFF", "-DELRUN_TESTS=OFF", "the build has no option ELRUN_TESTS"),
    (".dockerignore", "!rendezvous\n", "", "rendezvous is not sent"),
    (".dockerignore", "**/build*", "!tests", "tests is sent"),
]


def main():
    options = argparse.ArgumentParser(description="Checks the Dockerfile without a container engine.")
    options.add_argument("--tree", default=Path(__file__).parents[2], type=Path)
    options.add_argument("--work", required=True, type=Path)
    options = options.parse_args()
    tree, work = options.tree.resolve(), options.work.resolve()
    texts = {name: (tree / name).read_text() for name in ("Dockerfile", ".dockerignore")}

    def form(text):
        return list(form_problems(text, tree))

    def build(texts):
        return list(build_problems(texts["Dockerfile"], texts[".dockerignore"], tree, work))

    problems, missed = form(texts["Dockerfile"]) + build(texts), []
    for old, new, expected in FORM:
        if old not in texts["Dockerfile"] or not any(expected in found for found in form(texts["Dockerfile"].replace(old, new, 1))):
            missed.append(f"{new!r} in place of {old!r} was not found; expected: {expected}")
    for name, old, new, expected in BUILD:
        if old not in texts[name] or not any(expected in found for found in build({**texts, name: texts[name].replace(old, new, 1)})):
            missed.append(f"{name}: {new!r} in place of {old!r} was not found; expected: {expected}")
    shutil.rmtree(work, ignore_errors=True)
    print("\n".join(problems + missed + [f"{len(problems)} problems; {len(FORM) + len(BUILD)} planted mistakes, {len(missed)} not found"]))
    return 1 if problems or missed else 0


if __name__ == "__main__":
    sys.exit(main())
