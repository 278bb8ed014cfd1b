"""The elrun command lines of manifests, as the real elrun understands them: each is run with --dry_run, which starts nothing, in the environment that
its operator gives it."""

import json
import re
import subprocess
from pathlib import Path

from manifests import PROGRAMS, shell_text, words_of

SUBCOMMANDS = {"store", "status", "doctor", "install", "drain", "ckpt", "chaos"}
REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
CANNOT_START = (0, 66, 127)  # the program is not on this machine; all else was understood


def shell_lines(text):
    """Commands of a script, a line that ends with a backslash joined with the next."""
    return [line.strip() for line in text.replace("\\\n", " ").split("\n") if line.strip() and not line.strip().startswith("#")]


def runs_elrun(container):
    """Whether this container's process is an agent."""
    words, text = words_of(container), shell_text(container)
    if text is not None:
        return any(re.search(rf"(^|[\s/;&|])({'|'.join(PROGRAMS)})(\s|$)", line) for line in shell_lines(text))
    if is_own_image(container):
        return not words or words[0] not in SUBCOMMANDS
    return bool(words) and Path(words[0]).name in PROGRAMS and (len(words) < 2 or words[1] not in SUBCOMMANDS)


def is_own_image(container):
    return not container.get("command") and re.search(r"(^|/)elrun(:|@|$)", container.get("image", "")) is not None


def environment_of(pod, container, directory):
    """What the container's process finds, with values of this machine in place of what only a cluster knows."""
    secrets = {volume["name"] for volume in pod.spec.get("volumes") or [] if "secret" in volume}
    mounts = [mount["mountPath"] for mount in container.get("volumeMounts") or [] if mount.get("name") in secrets]
    variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for entry in container.get("env") or []:
        value = entry.get("value")
        if "valueFrom" in entry:
            value = {"status.podIP": "10.0.0.3"}.get((entry["valueFrom"].get("fieldRef") or {}).get("fieldPath"), "of-the-cluster")
        value = REFERENCE.sub(lambda match: variables.get(match[1], match[0]), value or "")
        for path in mounts:
            if value.startswith(path + "/"):
                secret = Path(directory) / "secret"
                secret.write_text("0123456789abcdef0123456789abcdef")
                value = str(secret)
        variables[entry["name"]] = value
    if container.get("name") == pod.main or not pod.main:
        variables |= pod.environment
    gpus = resource_of(container, "nvidia.com/gpu")
    if gpus:
        variables["NVIDIA_VISIBLE_DEVICES"] = ",".join(f"GPU-{number}" for number in range(gpus))
    return variables


def resource_of(container, name):
    resources = container.get("resources") or {}
    return int((resources.get("limits") or {}).get(name, (resources.get("requests") or {}).get(name, 0)))


def unknown_references(container, variables):
    """`$(NAME)` of a name that nobody sets stays as it is; a shell then runs it as a command."""
    texts = words_of(container) + [entry.get("value") or "" for entry in container.get("env") or []]
    return sorted({match[1] for text in texts for match in re.finditer(r"(?<!\$)\$\(([A-Za-z_][A-Za-z0-9_]*)\)", text) if match[1] not in variables})


def arguments_of(container, variables):
    """What stands behind `elrun`, or what keeps this from being known."""
    def put_in(text):
        return REFERENCE.sub(lambda match: variables.get(match[1], match[0]), text)

    text = shell_text(container)
    if text is None:
        words = [put_in(word) for word in words_of(container)]
        return (words if is_own_image(container) else words[1:]), None
    last = put_in(shell_lines(text)[-1])
    for earlier in shell_lines(text)[:-1]:
        found = re.fullmatch(r"export ((?:\w+=\S+\s*)+)", put_in(earlier))
        last = f"{earlier}; {last}" if found and "$(" not in earlier and "`" not in earlier else last
    if "$(" in last or "`" in last:
        return None, f"`{last}`: the shell runs what stands in $(...) as a command"
    if re.search(r"[;|&<>]", re.sub(r"^export [^;]*; |'[^']*'|\"[^\"]*\"", "", last)):
        return None, f"`{last}`: something stands behind elrun; with `exec` there is nothing that could run it"
    script = re.sub(r"(^|; )exec (\S+)(.*)$", r"\1printf '%s\\0'\3", last)
    done = subprocess.run(["/bin/bash", "--norc", "-c", script], env={"PATH": "/nonexistent", **variables}, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return None, f"`{last}`: {done.stderr.strip()}"
    return [word for word in done.stdout.split("\0")[:-1] if word or done.stdout != "\0"], None


def dry_run(elrun, arguments, variables, directory):
    """What `elrun` makes of its arguments, as --dry_run prints it; or why it refuses them."""
    if arguments and arguments[0] in SUBCOMMANDS:
        return {}, subcommand_problem(elrun, arguments)
    done = subprocess.run([elrun, "--dry_run", *arguments], env={"PATH": "/usr/bin:/bin", **variables}, cwd=directory, capture_output=True, text=True,
                          timeout=60)
    if done.returncode not in CANNOT_START or not done.stdout.startswith("{"):
        return None, f"elrun ends with {done.returncode}: {' '.join((done.stderr or done.stdout).split())}"
    return json.loads(done.stdout), None


def subcommand_problem(elrun, arguments):
    """These know no --dry_run: that there is one of this name, and that its help names each option."""
    name = arguments[0] if arguments else ""
    done = subprocess.run([elrun, name, "--help"], capture_output=True, text=True, timeout=60)
    if name not in SUBCOMMANDS or done.returncode != 0 or not done.stdout.startswith(f"usage: elrun {name}"):
        return f"elrun has no subcommand {name}"
    unknown = [word.partition("=")[0] for word in arguments if word.startswith("--") and word.partition("=")[0] not in done.stdout.split()]
    return f"elrun {name} has no option {unknown[0]}" if unknown else None


def option(arguments, name, variables, default=None):
    """The value of an option as given, or by its variable."""
    value = variables.get("PET_" + name.upper(), default)
    for number, word in enumerate(arguments):
        plain, equals, rest = word.partition("=")
        if plain.lstrip("-").replace("-", "_") == name and plain.startswith("--"):
            value = rest if equals else (arguments[number + 1] if number + 1 < len(arguments) else "")
    return value
