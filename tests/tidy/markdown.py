"""What both tests of the documents need: the tree's *.md files, and their lines with what is code told apart."""

import os
import re
from pathlib import Path

FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})(.*)$")


def files_below(tree, *endings):
    """Every file below `tree` that ends so, but for builds, hidden folders and what a build has downloaded or made.
    A folder that another test removes meanwhile is no error: its files are gone."""
    found = []
    for folder, names, files in os.walk(tree):
        names[:] = sorted(n for n in names if not n.startswith((".", "build")) and n != "__pycache__")
        found += [Path(folder) / f for f in sorted(files) if f.endswith(endings)]
    return found


def documents(tree):
    return files_below(tree, ".md")


class Block:
    """A fenced block: its info string, the line on which it begins (1 is the first), and its lines."""

    def __init__(self, info, line):
        self.info, self.line, self.lines = info, line, []


def read(path, content=None):
    """The lines of a document as (number, text), without code; and its fenced blocks. `content` stands for what the file holds."""
    text, blocks, block, fence, indent = [], [], None, "", 0
    before = ""  # an indented line is code only where a paragraph does not go on
    for number, line in enumerate((content or path.read_text(encoding="utf-8")).splitlines(), 1):
        match = FENCE.match(line)
        if block is None and match:
            indent, fence, block = len(match[1]), match[2], Block(match[3].strip(), number)
            blocks.append(block)
        elif block is not None and match and match[2].startswith(fence) and not match[3].strip():
            block = None
        elif block is not None:
            block.lines.append(line[indent:] if not line[:indent].strip() else line)
        elif line.startswith("    ") and not before.strip():
            continue  # `before` stays: the next line of the same code
        else:
            text.append((number, line))
            before = line
            continue
        before = ""
    if block is not None:
        raise SystemExit(f"{path}:{block.line}: a fenced block that does not end")
    return text, blocks
