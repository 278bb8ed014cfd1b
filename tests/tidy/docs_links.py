"""Links of the tree's documents lead somewhere: files exist, and so do the headings that #anchors name. No network.

    python3 tests/tidy/docs_links.py [TREE]

Behind `<!-- messages -->` stands a table of elrun's messages: each `part` of one in its first column is in a source file.

Where a document starts elrun by Open MPI's `mpirun -npernode`, it says `--bind-to none`: else all workers of a machine share one core.

Looked at are inline links, [label]: definitions, images, and every file of this tree that a document names in words
(`tests/run.sh`, rendezvous/README.md). A web address is not asked whether it answers.
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).parent))
from markdown import documents, read  # noqa: E402

INLINE = re.compile(r"!?\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
NAMED = re.compile(r"(?<![\w./$<>{}*~:=-])((?:[\w.-]+/)+[\w.-]+\.(?:md|cpp|hpp|inl|cu|cuh|sh|py|cmake|proto)|[\w-]+\.md)(?![\w/*{<])")
CODE = re.compile(r"(`+)(.+?)\1")


def anchors_of(path):
    """The names that GitHub gives a document's headings."""
    seen, names = {}, set()
    for _, line in read(path)[0]:
        heading = HEADING.match(line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[2]).replace("`", "")
            name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            names.add(name if name not in seen else f"{name}-{seen[name]}")
            seen[name] = seen.get(name, 0) + 1
        names.update(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return names


def problems_of(path, tree):
    anchors = {}
    for number, line in read(path)[0]:
        where = f"{path.relative_to(tree)}:{number}"
        plain = CODE.sub("", line)
        targets = INLINE.findall(plain) + INLINE.findall(line) + DEFINITION.findall(plain)
        for target in dict.fromkeys(targets):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue  # the web
            name, _, anchor = unquote(target).partition("#")
            file = (tree / name.lstrip("/") if name.startswith("/") else path.parent / name).resolve() if name else path
            if tree != file and tree not in file.parents:
                yield f"{where}: {target} leads out of the tree"
            elif not file.exists():
                yield f"{where}: {target} does not exist"
            elif anchor:
                if file not in anchors:
                    anchors[file] = anchors_of(file) if file.suffix == ".md" else set()
                if anchor not in anchors[file]:
                    yield f"{where}: {target}: {file.relative_to(tree)} has no heading #{anchor}"
        for name in NAMED.findall(INLINE.sub("", line)):
            if not name.endswith(".md") and Path(name).stem.isupper():
                continue  # stands for a name: tests/AREA.cmake
            if "/" not in name and name in (other.name for other in documents(tree)):
                continue  # one of several folders' README.md, MEASURED.md
            if not any((folder / name).exists() for folder in (path.parent, tree, tree / "tests", tree / "include")):
                yield f"{where}: there is no {name}, neither beside this document nor in the tree"


def said_by(tree):
    """What the sources may print: their text, with literals that the compiler joins in one piece."""
    files = [file for folder in ("launcher", "rendezvous", "lib", "checkpoint") for file in sorted((tree / folder).rglob("*.cpp"))]
    return re.sub(r'"\s*\n\s*"', "", "".join(file.read_text(encoding="utf-8") for file in files))


def messages_not_said(path, tree):
    table, marked = path.read_text(encoding="utf-8").splitlines(), False
    said = ""
    for number, line in enumerate(table, 1):
        marked = marked and not line.startswith("#") or line == "<!-- messages -->"
        if marked and line.startswith("| `"):
            said = said or said_by(tree)
            for part in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                if part not in said:
                    yield f"{path.relative_to(tree)}:{number}: no source says `{part}`; what does it say now?"


def bound_workers(path, tree):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for options in re.findall(r"\bmpirun\b([^`]*?)-npernode\b", line):
            if "--bind-to none" not in options:
                yield f"{path.relative_to(tree)}:{number}: mpirun -npernode without --bind-to none: it would bind elrun and its workers to one core or socket"


def main():
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    found = documents(tree)
    problems = [problem for path in found for check in (problems_of, messages_not_said, bound_workers) for problem in check(path, tree)]
    print("\n".join(problems + [f"{len(found)} documents, {len(problems)} problems"]))
    return 1 if problems or not found else 0


if __name__ == "__main__":
    sys.exit(main())
