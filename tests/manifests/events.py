"""Makes the table "tutorial x event" in samples/kubernetes/README.md: runs tutorial_pods_test (as root, some five minutes), and puts what it prints between two comments there.

    python3 tests/manifests/events.py [--build build] [--from LOG ...]

With --from it takes the rows from what that test printed before, and runs nothing.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

BEGIN, END = "<!-- made by tests/manifests/events.py: begin -->", "<!-- end -->"
HEAD = ["| tutorial | event | seen after | re-formed after | steps lost | exit code | restarts counted by Kubernetes |", "|---|---|---|---|---|---|---|"]


def rows_of(text):
    """The cells of each line `ROW | tutorial | event | seen | re-formed | lost | exit code | restarts |`."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("ROW |")]


def table(rows):
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") for row in sorted(rows, key=lambda row: row[0])]
    return "\n".join([BEGIN, "", *HEAD, *lines, "", END])


def put_in(readme, text):
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"samples/kubernetes/README.md has no place for the table: a line {BEGIN}, and behind it {END}")
    return before + text + after


def run(build, tree):
    environment = os.environ | {"ELRUN_BIN": str(build / "bin"), "ELRUN_SOURCE": str(tree)}
    done = subprocess.run([build / "tests" / "tutorial_pods_test"], env=environment, stdout=subprocess.PIPE, text=True, timeout=3600)
    if done.returncode != 0 or "SKIPPED:" in done.stdout:
        print(done.stdout)
        raise SystemExit("tutorial_pods_test failed, or left something out: the table stays as it is")
    return done.stdout


def main():
    options = argparse.ArgumentParser(description="Makes the table of events in samples/kubernetes/README.md.")
    options.add_argument("--build", default=Path("build"), type=Path)
    options.add_argument("--from", dest="logs", nargs="+", type=Path)
    options = options.parse_args()
    tree = Path(__file__).resolve().parents[2]
    text = "\n".join(log.read_text() for log in options.logs) if options.logs else run(options.build.resolve(), tree)
    rows = rows_of(text)
    if {row[0] for row in rows} != set("012345") or any(len(row) != 7 for row in rows):
        raise SystemExit("the rows of some tutorial are missing")
    readme = tree / "samples/kubernetes/README.md"
    readme.write_text(put_in(readme.read_text(), table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
