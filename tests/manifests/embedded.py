"""The lines by which elrun gets into an image that is not rebuilt (samples/kubernetes/README.md), put into the PyTorchJob of Kubeflow's guide: they are as
few as the document says, and elrun understands what the operator then tells it. What is left to say is about exit codes, probes and ports, which the lines leave out."""

import re
import tempfile
from pathlib import Path

import yaml

import commands
from manifests import Manifest, blocks_of

DOCUMENT, HEADING = "samples/kubernetes/README.md", "## Into an image that must not be rebuilt"
LINES = 9
TODAY = ("containers:", "- name: pytorch", "command:")  # begin the lines of the block that every job has already
LEFT_OUT = ("restartPolicy: ExitCode", "livenessProbe is missing", "readinessProbe is missing", "the probes need --health_port", "the nodes meet at port 13456, which is no containerPort")

GUIDE = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: pytorch-simple
spec:
  nprocPerNode: "1"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: &node
        spec:
          containers:
            - name: pytorch
              image: docker.io/kubeflowkatib/pytorch-mnist:v1beta1-45c5727
              command: [python3, /opt/pytorch-mnist/mnist.py, --epochs=1]
    Worker: {replicas: 1, restartPolicy: OnFailure, template: *node}
"""


def put_in(spec, part):
    """The pod's `spec` with the lines in it, as a person edits it."""
    container, lines = dict(spec["containers"][0]), dict(part["containers"][0])
    words = container.pop("command")[1:]
    return {**spec, **part, "containers": [{**container, **lines, "args": words}]}


def with_empty_secrets(body):
    """As the kubelet starts it where nobody has filled the secrets, such as that of secret.yaml."""
    if isinstance(body, list):
        return [with_empty_secrets(part) for part in body]
    if not isinstance(body, dict):
        return body
    if "secretKeyRef" in (body.get("valueFrom") or {}):
        return {"name": body["name"], "value": ""}
    return {key: with_empty_secrets(value) for key, value in body.items()}


def own_interpreter(elrun, text):
    """Whether the variable that the document names for an environment that is not on PATH leads elrun to its Python."""
    found = re.search(r"`\{name: (\w+), value: /opt/venv/bin/python\}` in `env`", text)
    if not found:
        return [f"{DOCUMENT} does not say how an environment that is not on PATH is found"]
    with tempfile.TemporaryDirectory(prefix="elrun-manifests-") as directory:
        python = Path(directory) / "bin" / "python"
        python.parent.mkdir()
        python.write_text("#!/bin/sh\n", encoding="utf-8")
        python.chmod(0o755)
        (Path(directory) / "train.py").touch()
        plan, wrong = commands.dry_run(elrun, ["train.py"], {found[1]: str(python)}, directory)
        taken = (plan or {}).get("program", {}).get("path")
    return [] if taken == str(python) else [f"with {found[1]} elrun takes {taken}: {wrong}"]


def run(tree, manifests, parts, all_problems, elrun):
    text = (tree / DOCUMENT).read_text(encoding="utf-8")
    first = text[: text.index(HEADING)].count("\n")
    block = next(b for b in blocks_of(tree / DOCUMENT, text) if b.line > first and b.info == "yaml PodSpec")
    new = [line for line in block.lines if not line.strip().startswith(TODAY)]
    wrong = [] if len(new) == LINES else [f"{DOCUMENT} says that nine lines are new, and these are {len(new)}"]
    body = yaml.safe_load(GUIDE)
    for replica in body["spec"]["pytorchReplicaSpecs"].values():
        replica["template"] = {"spec": put_in(replica["template"]["spec"], yaml.safe_load("\n".join(block.lines)))}

    def problems_of(body):
        return list(all_problems([*manifests, Manifest("guide", body)], [], lambda where: where == "guide"))

    said = problems_of(body)
    wrong += [problem for problem in said if not any(known in problem for known in LEFT_OUT)]
    wrong += [f"nobody said: {known}" for known in LEFT_OUT if not any(known in problem for problem in said)]
    if not any("ELRUN_RDZV_TOKEN is set and empty" in problem for problem in problems_of(with_empty_secrets(body))):
        wrong.append("with a secret that is empty the rendezvous is open, and nobody said so")
    wrong += own_interpreter(elrun, text)
    print("\n".join(wrong + [f"{len(new)} lines in the PyTorchJob of Kubeflow's guide, {len(wrong)} problems"]))
    return 1 if wrong else 0
