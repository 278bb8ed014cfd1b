"""Manifests: where they are, and what they say of pods, whatever kind brings the pods into being."""

import re
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tidy"))
from markdown import documents, files_below, read  # noqa: E402


class Loader(yaml.SafeLoader):
    """A key that stands twice is an error; YAML 1.1's dates and `on` stay what they are for an API server, too."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@dataclass
class Manifest:
    """One object: `where` is its file, and the line in it if that is a document."""

    where: str
    body: dict

    @property
    def kind(self):
        return self.body.get("kind", "")

    @property
    def name(self):
        return (self.body.get("metadata") or {}).get("name", "")

    @property
    def spec(self):
        return self.body.get("spec") or {}


@dataclass
class Pod:
    """A template of pods, and what its kind adds to it."""

    owner: Manifest
    path: str
    spec: dict
    labels: dict
    count: int = 1  # of pods
    main: str = ""  # the container that gets the operator's environment; empty: none
    environment: dict = field(default_factory=dict)
    names: list = field(default_factory=list)  # by which other pods of the job find these: `train-0.train`

    @property
    def where(self):
        return f"{self.owner.where}: {self.owner.kind} {self.owner.name}: {self.path}"


@lru_cache(maxsize=None)
def load(text, where):
    """The objects of a file, and what keeps it from being read. They are shared, and nobody changes them: a planted mistake is in another text."""
    try:
        return [Manifest(where, body) for body in yaml.load_all(text, Loader) if body is not None], []
    except yaml.YAMLError as error:
        return [], [f"{where}: {' '.join(str(error).split())}"]


@lru_cache(maxsize=None)
def blocks_of(path, content):
    return read(path, content)[1]


def load_all(tree, instead=None, more=()):
    """Objects of all files and of all `yaml` blocks in documents; parts of objects (`yaml PodSpec`) as (where, name, value); problems.
    `instead`: a file's name in the tree, to the text that is taken in place of what it holds. `more`: files that lie elsewhere."""
    manifests, parts, problems, instead = [], [], [], instead or {}
    for path in more:
        found, wrong = load(path.read_text(encoding="utf-8"), str(path))
        manifests, problems = manifests + found, problems + wrong
    for path in files_below(tree, ".yaml", ".yml"):
        name = str(path.relative_to(tree))
        found, wrong = load(instead.get(name) or path.read_text(encoding="utf-8"), name)
        manifests, problems = manifests + found, problems + wrong
    for path in documents(tree):
        name = str(path.relative_to(tree))
        for block in blocks_of(path, instead.get(name)):
            kind, *words = block.info.split() or [""]
            if kind not in ("yaml", "yml"):
                continue
            found, wrong = load("\n".join(block.lines), f"{name}:{block.line}")
            problems += wrong
            if words:
                parts += [(manifest.where, words[0], manifest.body) for manifest in found]
            else:
                manifests += found
    for manifest in manifests:
        if not isinstance(manifest.body, dict) or not manifest.kind:
            problems.append(f"{manifest.where}: this is no object with apiVersion and kind; a part of one says so: ```yaml PodSpec")
    return [m for m in manifests if isinstance(m.body, dict) and m.kind], parts, problems


def template_of(owner, path, template, **more):
    metadata = template.get("metadata") or {}
    return Pod(owner, path, template.get("spec") or {}, dict(metadata.get("labels") or {}), **more)


def pods_of_job(owner, path, template, name, count, **more):
    """Of a batch/v1 Job: `name` is the Job's, the pods of an Indexed one are called name-0, name-1, ..."""
    pod = template_of(owner, path, template, count=count, **more)
    pod.labels |= {"batch.kubernetes.io/job-name": name}
    subdomain = pod.spec.get("subdomain", pod.names[0] if pod.names else "")
    pod.names = [f"{name}-{index}.{subdomain}" for index in range(min(count, 64))] if subdomain else []
    pod.environment = {"JOB_COMPLETION_INDEX": "1"} | pod.environment
    return pod


def pods_of_jobset(owner, spec, name, path, **more):
    for job in spec.get("replicatedJobs") or []:
        inner = (job.get("template") or {}).get("spec") or {}
        count = inner.get("parallelism", 1)
        pod = pods_of_job(owner, f"{path}{job.get('name')}", inner.get("template") or {}, f"{name}-{job.get('name')}-0", count, names=[name], **more)
        pod.labels |= {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": job.get("name")}
        yield pod


def torch_environment(nodes, workers, master, port):
    """What Trainer gives the container `node` (reference: its torch plugin)."""
    return {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(workers), "PET_NODE_RANK": "1", "PET_MASTER_ADDR": master, "PET_MASTER_PORT": port}


def pods_of_trainjob(manifest, runtimes):
    """The runtime's pods with what the TrainJob puts into them."""
    runtime = runtimes.get((manifest.spec.get("runtimeRef") or {}).get("name"))
    if runtime is None:
        return
    trainer = manifest.spec.get("trainer") or {}
    nodes = trainer.get("numNodes", (runtime.spec.get("mlPolicy") or {}).get("numNodes", 1))
    for pod in pods_of_jobset(manifest, (runtime.spec.get("template") or {}).get("spec") or {}, manifest.name, ""):
        pod.count, pod.main = nodes, "node"
        pod.names = [f"{manifest.name}-node-0-{index}.{manifest.name}" for index in range(min(nodes, 64))]
        containers = []
        for container in pod.spec.get("containers") or []:
            if container.get("name") == "node":
                container = {**container, **{name: trainer[name] for name in ("image", "command", "args") if name in trainer}}
                container["env"] = (container.get("env") or []) + (trainer.get("env") or [])
                container["resources"] = trainer.get("resourcesPerNode", container.get("resources"))
            containers.append(container)
        pod.spec = {**pod.spec, "containers": containers}
        pod.environment |= torch_environment(nodes, trainer.get("numProcPerNode", 1), pod.names[0], "29500")
        yield pod


def pods_of_pytorchjob(manifest):
    """Training Operator 1.8: its environment says `nodes` without the Master where there is an elasticPolicy."""
    replicas, elastic = manifest.spec.get("pytorchReplicaSpecs") or {}, manifest.spec.get("elasticPolicy")
    counts = {kind: (spec or {}).get("replicas", 1) for kind, spec in replicas.items()}
    name, workers, total = manifest.name, counts.get("Worker", 0), sum(counts.values())
    names = [f"{name}-{kind.lower()}-{index}" for kind, count in counts.items() for index in range(min(count, 64))]
    common = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": str(manifest.spec.get("nprocPerNode", "auto")), "PET_NNODES": str(total)}
    if "Master" in replicas:
        common |= {"MASTER_ADDR": f"{name}-master-0", "MASTER_PORT": "23456", "PET_MASTER_ADDR": f"{name}-master-0", "PET_MASTER_PORT": "23456",
                   "WORLD_SIZE": str(total)}
    if elastic is not None:
        common |= {"PET_NNODES": f"{elastic.get('minReplicas', workers)}:{elastic.get('maxReplicas', workers)}",
                   "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d"), "PET_RDZV_ENDPOINT": f"{name}-worker-0:{elastic.get('rdzvPort', 23456)}"}
        common |= {variable: str(elastic[key]) for key, variable in (("rdzvId", "PET_RDZV_ID"), ("maxRestarts", "PET_MAX_RESTARTS")) if key in elastic}
        common |= {"PET_STANDALONE": ""} if elastic.get("standalone") else {}
    for kind, spec in replicas.items():
        rank = str(0 if kind == "Master" else 1)
        count = total if elastic is None else elastic.get("maxReplicas", workers)
        pod = template_of(manifest, kind, (spec or {}).get("template") or {}, count=count, main="pytorch", names=names,
                          environment=common | ({"RANK": rank, "PET_NODE_RANK": rank} if "Master" in replicas else {}))
        pod.labels |= {"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": kind.lower()}
        yield pod


def pods_of(manifest, runtimes):
    """Every template of pods in an object."""
    kind, spec = manifest.kind, manifest.spec
    if kind == "Job":
        yield pods_of_job(manifest, "template", spec.get("template") or {}, manifest.name, spec.get("parallelism", 1))
    elif kind == "JobSet":
        yield from pods_of_jobset(manifest, spec, manifest.name, "")
    elif kind == "ClusterTrainingRuntime":
        for pod in pods_of_jobset(manifest, (spec.get("template") or {}).get("spec") or {}, "JOB", ""):
            pod.environment |= torch_environment(2, 1, "JOB-node-0-0.JOB", "29500")
            yield pod
    elif kind == "TrainJob":
        yield from pods_of_trainjob(manifest, runtimes)
    elif kind == "PyTorchJob":
        yield from pods_of_pytorchjob(manifest)
    elif kind == "Pod":
        yield template_of(manifest, "pod", manifest.body)


SHELLS = {"sh", "bash", "dash", "ash", "/bin/sh", "/bin/bash", "/usr/bin/bash"}
PROGRAMS = {"elrun", "elrun_static", "torchrun"}


def words_of(container):
    return [str(word) for word in (container.get("command") or []) + (container.get("args") or [])]


def shell_text(container):
    """The text that a container hands to a shell, or nothing."""
    words = words_of(container)
    if words and words[0] in SHELLS:
        for number, word in enumerate(words[1:], 1):
            if re.fullmatch(r"-[a-z]*c[a-z]*", word):
                return words[number + 1] if number + 1 < len(words) else ""
    return None
