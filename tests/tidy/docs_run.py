"""Runs the commands of documents, and compares what they print with what the documents say they print.

    python3 tests/tidy/docs_run.py --build build [--tree TREE] DOCUMENT...

A fenced block is told by its info string:

    ```console run        commands are run, in order, in one shell per document
    ```console ci         commands are a stage of .ci/run, which runs them: too long for this test
    ```console dry        what follows `elrun` is a valid command line: it is run with --dry_run, in place of where it belongs
    ```console elsewhere  not run: needs what no test machine has (two machines, a data set, another system), or is the build itself
    ```cpp file=NAME      the block is written to NAME, for the commands behind it; so is any other language

A `console` block without a second word is an error, so each was decided on. In a console block a line that begins with `$ ` is a command; it goes on in
the next line where it ends with a backslash. Other lines are its output, standard error too; a command without such lines may print anything.
Each command has to end with 0. In expected output `...` stands for anything, alone on a line for any number of lines; what is different in every
run is compared as such: times of day, durations in ms and s, process ids, run ids, the drawn part of a node's name, a generation's lineage.

The shell begins in a new folder that has the tree's files by links, and the build as `build`. A port 29400 is replaced by a free one.
"""

import argparse
import os
import random
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from markdown import read  # noqa: E402

PORT = "29400"
DIFFERENT = [(re.compile(pattern), by) for pattern, by in (
    (r"\b\d\d:\d\d:\d\d(\.\d+)?\b", "TIME"),
    (r"\b\d+(\.\d+)? ms\b", "DURATION"),
    (r"\b\d+\.\d+ s\b", "DURATION"),
    (r"\b(pid|agent|process) \d+\b", r"\1 PID"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "RUN"),
    (r"\b[A-Za-z0-9.-]+\.[0-9a-f]{10}\b", "NODE"),
    (r"@[0-9a-f]{8}\b", "@LINEAGE"),
    (r"\s+", " "),
)]
NOTICE = re.compile(r"bash: line \d+: +\d+ Killed ")  # of jobs in the background, at a moment of bash's choice


def plain(line):
    for pattern, by in DIFFERENT:
        line = pattern.sub(by, line)
    return line.strip()


def matches(expected, actual):
    """Whether the lines that a document shows are those that came, `...` being anything."""
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += "[^\n]*".join(re.escape(part) for part in plain(line).split("...")) + "\n"
    return re.fullmatch(pattern, "".join(plain(line) + "\n" for line in actual)) is not None


def commands_of(block):
    """(line, command, expected lines) of a console block."""
    found = []
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            found.append((number, line[2:], []))
        elif found and not found[-1][2] and found[-1][1].endswith("\\"):
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}", [])
        elif found:
            found[-1][2].append(line)
        elif line.strip():
            raise SystemExit(f"line {number}: output without a command; a command begins with `$ `")
    return found


class Shell:
    """A bash that runs one command after the other, and ends with all that it started."""

    END = "the-command-has-ended"

    def __init__(self, folder, environment, deadline):
        self.deadline = deadline
        self.rest = b""  # what came behind the end of the last command: bash tells of jobs when it likes
        self.process = subprocess.Popen(["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True)

    def run(self, command):
        """What it printed, and its exit code; None when it did not end in time."""
        self.process.stdin.write(f"{command}\nprintf '\\n{self.END} %d\\n' $?\n".encode())
        self.process.stdin.flush()
        output, self.rest = self.rest, b""
        while True:
            end = re.search(rf"\n{self.END} (\d+)\n".encode(), output)
            if end:
                self.rest = output[end.end():]
                return output[:end.start()].decode(errors="replace"), int(end[1])
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return output.decode(errors="replace"), None
            piece = os.read(self.process.stdout.fileno(), 65536)
            output += piece
            if not piece:
                return output.decode(errors="replace"), None

    def close(self):
        # Agents are in the shell's process group and end their workers, also when they are killed.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        self.process.wait()


def free_port():
    """Below the ports that Linux gives to connections and to those who ask for any, and below those that free_port() of
    tests/support/spawn.cpp gives to tests: nobody takes it before the document does."""
    while True:
        port = random.randint(12000, 19999)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return str(port)
            except OSError:
                pass


def dry(command, environment, folder):
    """The problem with an elrun command line, or nothing. What stands before `elrun` (srun, mpirun) is not run."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    names = [i for i, word in enumerate(words) if word in ("elrun", "torchrun", "build/bin/elrun")]
    if not names:
        return None
    words = ["elrun", *words[names[0] + 1:]]
    if len(words) > 1 and words[1] in ("store", "status", "doctor", "install", "drain", "chaos"):
        words = ["elrun", words[1], "--help"]  # these know no --dry_run
    else:
        words[1:1] = ["--dry_run"]
    for word in words:
        if word.endswith(".py") and not (folder / word).exists():
            (folder / word).parent.mkdir(parents=True, exist_ok=True)
            (folder / word).write_text("")
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return None if done.returncode == 0 else f"`{shlex.join(words)}` ended with {done.returncode}:\n{done.stdout}"


def run(document, tree, build, limit, show):
    """Problems of one document, as text."""
    folder = Path(tempfile.mkdtemp(prefix="elrun-docs-"))
    for entry in tree.iterdir():
        if not entry.name.startswith((".", "build")):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").symlink_to(build)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ELRUN_", "PET_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_"))}
    environment.update(PATH=f"{build}/bin:{environment['PATH']}", LC_ALL="C.UTF-8")
    for name in ("OMP_NUM_THREADS", "KUBERNETES_SERVICE_HOST"):
        environment.pop(name, None)
    ci = (tree / ".ci" / "run").read_text() if (tree / ".ci" / "run").exists() else None
    port = free_port()
    shell = Shell(folder, environment, time.monotonic() + limit)
    problems, count = [], 0
    try:
        for block in read(document)[1]:
            kind, *words = block.info.split() or [""]
            how = words[0] if words else ""
            where = f"{document.relative_to(tree)}:{block.line}"
            if how.startswith("file="):
                (folder / how[5:]).write_text("\n".join(block.lines) + "\n")
            if kind != "console":
                continue
            if how not in ("run", "ci", "dry", "elsewhere"):
                problems.append(f"{where}: a console block says how it is checked: run, ci, dry or elsewhere")
            for number, command, expected in commands_of(block):
                where = f"{document.relative_to(tree)}:{number}"
                count += 1
                if how == "ci" and ci is not None and command.split("#")[0].strip() not in ci:
                    problems.append(f"{where}: .ci/run does not run `{command}`")
                elif how == "dry":
                    problem = dry(command, environment, folder)
                    problems += [f"{where}: {problem}"] if problem else []
                elif how == "run":
                    output, code = shell.run(command.replace(PORT, port))
                    shown = [line for line in re.sub(rf"(?<=:){port}\b", PORT, output).rstrip("\n").split("\n") if not NOTICE.match(line)]
                    if show:
                        print("\n".join([f"$ {command}"] + shown))
                    if code is None:
                        return problems + [f"{where}: `{command}` did not end; so far it said\n{output}"], count
                    if code != 0:
                        problems.append(f"{where}: `{command}` ended with {code}:\n{output}")
                    elif expected and not matches(expected, shown):
                        problems.append(f"{where}: `{command}` printed\n" + "\n".join(shown) + "\nwhere the document says\n" + "\n".join(expected))
    finally:
        shell.close()
        shutil.rmtree(folder, ignore_errors=True)
    return problems, count


def main():
    options = argparse.ArgumentParser(description="Runs the commands of documents.")
    options.add_argument("--build", required=True, type=Path)
    options.add_argument("--tree", default=Path(__file__).parents[2], type=Path)
    options.add_argument("--limit", default=250, type=float, help="seconds for one document")
    options.add_argument("--show", action="store_true", help="print what the commands print, to copy it into a document")
    options.add_argument("documents", nargs="+", type=Path)
    options = options.parse_args()
    tree, build, failed, all_commands = options.tree.resolve(), options.build.resolve(), 0, 0
    for document in options.documents:
        begin = time.monotonic()
        problems, count = run((tree / document).resolve(), tree, build, options.limit, options.show)
        print("\n\n".join(problems + [f"{document}: {count} commands, {len(problems)} problems, {time.monotonic() - begin:.1f} s"]))
        failed += len(problems)
        all_commands += count
    return 1 if failed or not all_commands else 0


if __name__ == "__main__":
    sys.exit(main())
