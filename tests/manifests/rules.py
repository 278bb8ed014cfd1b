"""Rules that the schemas do not hold: those of operators' webhooks, and those that elrun needs. Each is a function that yields what is wrong."""

import re
import tempfile
from functools import lru_cache
from pathlib import Path

import commands
from manifests import SHELLS, pods_of, shell_text, words_of

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # DNS-1035
TRAINER_OWNS = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
PLAIN_RESOURCES = {"cpu", "memory", "ephemeral-storage", "storage"}
PAGES = {"/livez", "/healthz", "/readyz", "/statusz", "/metrics"}
LIVENESS_TIMEOUT = 10  # seconds: launcher/README.md, Admin endpoints
SHUTDOWN_TIMEOUT = 30  # seconds: --shutdown_timeout without an option
GRACE_MARGIN = 5       # seconds between the agent's SIGKILL to workers and the kubelet's to the container
EXPECTED_NOTES = ("OMP_NUM_THREADS is 1", "by PET_MASTER_ADDR")  # of what --dry_run prints; others tell of a mistake


class Tree:
    """All manifests of one check, and what the sources of elrun say of themselves."""

    def __init__(self, manifests, source, elrun):
        self.manifests, self.source, self.elrun = manifests, Path(source), elrun
        self.runtimes = {m.name: m for m in manifests if m.kind in ("ClusterTrainingRuntime", "TrainingRuntime")}
        self.pods = [pod for m in manifests for pod in pods_of(m, self.runtimes)]

    def metric_exists(self, name):
        said = (self.source / "launcher" / "http" / "metrics.cpp").read_text(encoding="utf-8")
        return any(f'"{name.removesuffix(ending)}"' in said for ending in ("", "_total", "_bucket", "_count", "_sum", "_info"))

    def names(self, kind):
        return {m.name for m in self.manifests if m.kind == kind}

    def variable_is_read(self, name):
        """Whether elrun or libelrun reads this variable of its own: a string of the sources, or an option's."""
        said = text_of(self.source)
        return f'"{name}"' in said or name.startswith("PET_") and f'.name = "{name[4:].lower()}"' in said


@lru_cache(maxsize=None)
def text_of(source):
    return "".join(path.read_text(encoding="utf-8", errors="replace") for folder in ("launcher", "rendezvous", "lib", "include")
                   for path in sorted((source / folder).rglob("*.[ch]pp")))


# --- one object -----------------------------------------------------------------------------------------------------------------

def names(manifest, tree):
    if manifest.kind in ("Service", "Job", "JobSet", "TrainJob", "PyTorchJob") and not LABEL.fullmatch(manifest.name):
        yield f"metadata.name: {manifest.name!r} cannot be a host's name: lower-case letters, digits and hyphens, a letter first"
    for pod in pods_of(manifest, tree.runtimes):
        for host in pod.names[-1:]:
            if len(host.split(".")[0]) > 63:
                yield f"metadata.name: the pod's name {host.split('.')[0]!r} has more than 63 characters"


def failure_policy(manifest, tree):
    specs = [manifest.spec] if manifest.kind == "Job" else []
    spec = manifest.spec if manifest.kind == "JobSet" else (manifest.spec.get("template") or {}).get("spec") or {}
    specs += [(job.get("template") or {}).get("spec") or {} for job in spec.get("replicatedJobs") or []]
    for job in specs:
        restart = ((job.get("template") or {}).get("spec") or {}).get("restartPolicy")
        if manifest.kind in ("Job", "JobSet") and restart not in ("Never", "OnFailure"):
            yield "restartPolicy: a Job's pods have Never or OnFailure"
        per_index = {"backoffLimitPerIndex", "maxFailedIndexes"} & set(job)
        if per_index and (job.get("completionMode") != "Indexed" or restart != "Never"):
            yield f"{sorted(per_index)[0]}: only with completionMode Indexed and restartPolicy Never"
        if "podFailurePolicy" not in job:
            continue
        if restart != "Never":
            yield f"podFailurePolicy: only with restartPolicy Never, and this is {restart}"
        if job.get("podReplacementPolicy", "Failed") != "Failed":
            yield "podFailurePolicy: only with podReplacementPolicy Failed"
        rules = job["podFailurePolicy"].get("rules") or []
        for rule in rules:
            yield from exit_code_rule(rule.get("onExitCodes") or {}, rule.get("action"), job)
        tried_again = [code for code in range(1, 128) if not any(ends_job(rule, code) for rule in rules)]
        if tried_again:
            yield f"podFailurePolicy: after {tried_again[0]} starting again does not help, be it the program's code or elrun's, and no rule ends the job"
        first = [condition.get("type") for rule in rules[:1] for condition in rule.get("onPodConditions") or []]
        if first != ["DisruptionTarget"] or rules[0].get("action") != "Ignore":
            yield "podFailurePolicy: the first rule ignores DisruptionTarget; else a drained node counts as a failure"


def ends_job(rule, code):
    codes = rule.get("onExitCodes") or {}
    return rule.get("action") == "FailJob" and codes and (code in (codes.get("values") or [])) == (codes.get("operator") == "In")


def exit_code_rule(codes, action, job):
    values = codes.get("values") or []
    containers = (((job.get("template") or {}).get("spec") or {}).get("containers")) or []
    # Of an init container that a network failure ends with 1 another pod can help.
    if codes and codes.get("containerName") not in [container.get("name") for container in containers]:
        yield f"podFailurePolicy: the codes are of a container, and containerName {codes.get('containerName')} is none"
    if values != sorted(set(values)):
        yield f"podFailurePolicy: the values {values} have to be sorted, each once"
    if 0 in values and codes.get("operator") == "In":
        yield "podFailurePolicy: 0 is no failure"
    for value in values:
        if value >= 128 and action in ("FailJob", "FailIndex") and codes.get("operator") == "In":
            yield f"podFailurePolicy: after {value} starting again may help; {action} is for codes below 128"


def pytorchjob(manifest, tree):
    if manifest.kind != "PyTorchJob":
        return
    replicas = manifest.spec.get("pytorchReplicaSpecs") or {}
    for kind, spec in replicas.items():
        containers = (((spec or {}).get("template") or {}).get("spec") or {}).get("containers") or []
        if not any(container.get("name") == "pytorch" for container in containers):
            yield f"{kind}: the operator refuses a replica without a container that is called pytorch"
        if (spec or {}).get("restartPolicy") != "ExitCode":
            yield f"{kind}: restartPolicy: ExitCode; else a failure after which starting again does not help, such as an error of the program, is tried again for ever"
    if (replicas.get("Master") or {}).get("replicas", 1) != 1:
        yield "Master: there is exactly one"
    if "Master" in replicas and "elasticPolicy" in manifest.spec:
        yield "elasticPolicy: the operator counts Workers alone, so with a Master there is one pod too many; leave the Master out"


def trainer(manifest, tree):
    if manifest.kind == "TrainJob":
        reference = manifest.spec.get("runtimeRef") or {}
        if reference.get("name") not in tree.runtimes:
            yield f"runtimeRef: there is no runtime {reference.get('name')}; there are {', '.join(sorted(tree.runtimes))}"
        if "trainer" not in manifest.spec:
            yield "trainer: without it Trainer sets none of the variables that tell a pod its job"
        env = (manifest.spec.get("trainer") or {}).get("env") or []
    elif manifest.kind == "ClusterTrainingRuntime":
        jobs = ((manifest.spec.get("template") or {}).get("spec") or {}).get("replicatedJobs") or []
        found = [job for job in jobs if job.get("name") == "node"]
        labels = (((found[0].get("template") or {}).get("metadata") or {}).get("labels") or {}) if found else {}
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
            yield "replicatedJobs: Trainer needs one called node, with the label trainer.kubeflow.org/trainjob-ancestor-step: trainer"
        pods = [((job.get("template") or {}).get("spec") or {}).get("template") or {} for job in found]
        containers = [c for pod in pods for c in (pod.get("spec") or {}).get("containers") or [] if c.get("name") == "node"]
        if found and not containers:
            yield "replicatedJobs: Trainer puts image, command and variables into a container called node"
        env = [entry for container in containers for entry in container.get("env") or []]
    else:
        return
    for entry in env:
        if entry.get("name") in TRAINER_OWNS:
            yield f"env: {entry['name']} is Trainer's own, and a TrainJob with it is refused"


def service(manifest, tree):
    if manifest.kind != "Service":
        return
    if manifest.spec.get("clusterIP") != "None":
        yield "clusterIP: pods find each other by a headless service, so `clusterIP: None`"
    if manifest.spec.get("publishNotReadyAddresses") is not True:
        yield "publishNotReadyAddresses: nodes meet before they are ready, so `true`"


def secret(manifest, tree):
    if manifest.kind != "Secret":
        return
    for name, value in {**(manifest.body.get("data") or {}), **(manifest.body.get("stringData") or {})}.items():
        if value:
            yield f"{name}: a secret that stands in a public file is none; leave it empty, elrun refuses an empty token"


def disruption_budget(manifest, tree):
    if manifest.kind != "PodDisruptionBudget":
        return
    if not isinstance(manifest.spec.get("minAvailable"), int):
        yield "minAvailable: an integer; of pods of a job Kubernetes takes neither a percentage nor maxUnavailable"
    if manifest.spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "unhealthyPodEvictionPolicy: AlwaysAllow, or a pod that never becomes ready keeps its node from being drained"


def prometheus_rule(manifest, tree):
    if manifest.kind != "PrometheusRule":
        return
    for group in manifest.spec.get("groups") or []:
        for rule in group.get("rules") or []:
            for metric in re.findall(r"\belrun_\w+", str(rule.get("expr", ""))):
                if not tree.metric_exists(metric):
                    yield f"{rule.get('alert')}: an agent has no metric {metric}"


def matches(selector, labels):
    wanted = selector.get("matchLabels") or {}
    if not all(labels.get(name) == value for name, value in wanted.items()):
        return False
    for rule in selector.get("matchExpressions") or []:
        value, values = labels.get(rule["key"]), rule.get("values") or []
        if not {"In": value in values, "NotIn": value not in values, "Exists": value is not None, "DoesNotExist": value is None}[rule["operator"]]:
            return False
    return True


def selectors(manifest, tree):
    found = {"PodDisruptionBudget": manifest.spec.get("selector"), "NetworkPolicy": manifest.spec.get("podSelector"), "PodMonitor": manifest.spec.get("selector"),
             "Service": {"matchLabels": manifest.spec.get("selector") or {}}}.get(manifest.kind)
    if manifest.kind not in ("PodDisruptionBudget", "NetworkPolicy", "PodMonitor", "Service"):
        return
    chosen = [pod for pod in tree.pods if matches(found or {}, pod.labels)]
    if not chosen:
        yield f"selector: {found} matches no pod of these manifests"
    if not found or not any(found.values()):
        yield "selector: it is empty, and matches every pod of the namespace"
    for endpoint in manifest.spec.get("podMetricsEndpoints") or []:
        for pod in chosen:
            ports = {port.get("name") for container in pod.spec.get("containers") or [] for port in container.get("ports") or []}
            if endpoint.get("port") not in ports:
                yield f"podMetricsEndpoints: {pod.owner.kind} {pod.owner.name} ({pod.owner.where}) has no port called {endpoint.get('port')}"
        if endpoint.get("path", "/metrics") != "/metrics":
            yield f"podMetricsEndpoints: an agent has no page {endpoint['path']}"


# --- pods -----------------------------------------------------------------------------------------------------------------------

def containers_of(pod):
    return (pod.spec.get("initContainers") or []) + (pod.spec.get("containers") or [])


def volumes(pod, tree):
    declared, used = {volume.get("name") for volume in pod.spec.get("volumes") or []}, set()
    for container in containers_of(pod):
        for mount in container.get("volumeMounts") or []:
            used.add(mount.get("name"))
            if mount.get("name") not in declared:
                yield f"{container.get('name')}: volumeMounts: there is no volume {mount.get('name')}"
    for name in sorted(declared - used):
        yield f"volumes: nobody mounts {name}"
    for volume in pod.spec.get("volumes") or []:
        for kind, field, what in (("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"), ("secret", "secretName", "Secret"), ("configMap", "name", "ConfigMap")):
            if kind in volume and volume[kind].get(field) not in tree.names(what):
                yield f"volumes: {volume.get('name')}: no manifest here makes the {what} {volume[kind].get(field)}"


def ports(pod, tree):
    for container in containers_of(pod):
        for port in container.get("ports") or []:
            name = port.get("name", "p")
            if len(name) > 15 or not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or not re.search("[a-z]", name) or "--" in name:
                yield f"{container.get('name')}: ports: {name!r} is no name of a port: at most 15 lower-case letters, digits and single hyphens"


def resources(pod, tree):
    for container in containers_of(pod):
        for kind in ("limits", "requests"):
            for name in (container.get("resources") or {}).get(kind) or {}:
                if name not in PLAIN_RESOURCES and "/" not in name and not name.startswith("hugepages-"):
                    yield f"{container.get('name')}: resources.{kind}: there is no resource {name}"


def subdomain(pod, tree):
    name = pod.spec.get("subdomain")
    if pod.owner.kind != "Job" or name is None:
        return
    found = [m for m in tree.manifests if m.kind == "Service" and m.name == name]
    if not found:
        yield f"subdomain: without a headless service called {name} the names of pods lead nowhere"
    elif not any(matches({"matchLabels": m.spec.get("selector") or {}}, pod.labels) for m in found):
        yield f"subdomain: the service {name} selects {found[0].spec.get('selector')}, which these pods do not have"


def shell(pod, tree):
    for container in containers_of(pod):
        text, who = shell_text(container), container.get("name")
        if text is None:
            words = words_of(container)
            if words and words[0] in SHELLS:
                yield f"{who}: a shell without -c"
            continue
        if not commands.shell_lines(text):
            yield f"{who}: the shell is given nothing but a comment; a block that begins with >- is one line, write | in its place"
            continue
        if re.search(r"\\[ \t]+$", text, re.M):
            yield f"{who}: a backslash followed by blanks does not continue the line"
        lines = commands.shell_lines(text)
        if commands.runs_elrun(container) and not drains(container) and not re.match(r"exec\s+\S*(elrun|elrun_static|torchrun)(\s|$)", lines[-1]):
            yield f"{who}: the script ends with `exec elrun ...`; else the shell stays process 1 and swallows SIGTERM"
        if len(lines) > 1 and not re.match(r"set -\w*e", lines[0]) and not all(re.match(r"(export|cd|exec) ", line) for line in lines):
            yield f"{who}: the script begins with `set -e`; else elrun starts although a command before it failed"


def drains(container):
    """Whether a preStop hook asks elrun to leave, so that it does not matter who is process 1."""
    command = hook_of(container)
    return len(command) > 1 and Path(command[0]).name in commands.PROGRAMS and command[1] == "drain"


def hook_of(container):
    return (((container.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}).get("command") or []


def hooks(pod, tree):
    for container in pod.spec.get("containers") or []:
        command = hook_of(container)
        if command and Path(command[0]).name in commands.PROGRAMS:
            wrong = commands.subcommand_problem(tree.elrun, command[1:])
            if wrong:
                yield f"{container.get('name')}: preStop: {wrong}"


def grace_and_probes(pod, tree):
    for container in pod.spec.get("containers") or []:
        if not commands.runs_elrun(container):
            continue
        who, grace = container.get("name"), pod.spec.get("terminationGracePeriodSeconds")
        if grace is None:
            yield f"{who}: terminationGracePeriodSeconds is missing: it has to be longer than --shutdown_timeout"
        declared = {port.get("name"): port.get("containerPort") for port in container.get("ports") or []}
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            probe = container.get(kind) or {}
            get = probe.get("httpGet") or {}
            if get and get.get("port") not in declared and get.get("port") not in declared.values():
                yield f"{who}: {kind}: the container has no port {get.get('port')}"
            if get and get.get("path") not in PAGES:
                yield f"{who}: {kind}: an agent has no page {get.get('path')}"
        for kind in ("livenessProbe", "readinessProbe"):
            if kind not in container:
                yield f"{who}: {kind} is missing"
        if container.get("livenessProbe") and container["livenessProbe"].get("timeoutSeconds", 1) < LIVENESS_TIMEOUT:
            yield f"{who}: livenessProbe: timeoutSeconds has to be {LIVENESS_TIMEOUT} at least"


def environment(pod, tree):
    for container in containers_of(pod):
        for entry in container.get("env") or []:
            name = entry.get("name", "")
            if name.startswith(("ELRUN_", "PET_", "TORCHELASTIC_", "TORCH_ELASTIC_")) and not tree.variable_is_read(name):
                yield f"{container.get('name')}: env: elrun reads no variable {name}"


def command_lines(pod, tree):
    """What elrun itself says of each command line, and whether that is what the manifest is about."""
    for container in containers_of(pod):
        who = container.get("name")
        with tempfile.TemporaryDirectory(prefix="elrun-manifests-") as directory:
            variables = commands.environment_of(pod, container, directory)
            unknown = commands.unknown_references(container, variables)
            if unknown:
                yield f"{who}: nobody sets $({unknown[0]}); it stays as it stands there"
            if container.get("command") is None and container.get("args") is None or not (commands.runs_elrun(container) or commands.is_own_image(container)):
                continue
            arguments, wrong = commands.arguments_of(container, variables)
            plan = None
            if not wrong:
                plan, wrong = commands.dry_run(tree.elrun, arguments, variables, directory)
            if wrong:
                yield f"{who}: {wrong}"
            elif plan:
                yield from (f"{who}: {problem}" for problem in plan_problems(plan, arguments, variables, pod, container))


def plan_problems(plan, arguments, variables, pod, container):
    if plan["nodes"]["max"] != pod.count:
        yield f"elrun is told of {plan['nodes']['min']} to {plan['nodes']['max']} nodes, and there are {pod.count} pods"
    gpus, workers = commands.resource_of(container, "nvidia.com/gpu"), plan["workers"]["value"]
    if gpus and workers != gpus:
        yield f"{workers} workers for {gpus} GPUs"
    meeting = plan["meeting"]
    if not meeting.get("token"):
        yield "the rendezvous is open: give it a token (ELRUN_RDZV_TOKEN_FILE leads to a file of a mounted secret)"
    declared = {port.get("containerPort") for port in container.get("ports") or []}
    host, _, port = (meeting.get("endpoint") or "").rpartition(":")
    if host and pod.names and host not in pod.names:
        yield f"the nodes are to meet at {host}, which is none of these pods ({', '.join(pod.names[:2])}, ...)"
    if port and int(port) not in declared | ({29500} if pod.main == "node" else set()):
        yield f"the nodes meet at port {port}, which is no containerPort"
    health = commands.option(arguments, "health_port", variables)
    if health is None or int(health.rpartition(":")[2] or 0) not in declared:
        yield f"the probes need --health_port with a containerPort, and it is {health}"
    seconds = plan["failures"]["seconds"]["between_signal_and_kill"]
    if pod.spec.get("terminationGracePeriodSeconds", 0) < seconds + GRACE_MARGIN:
        yield f"terminationGracePeriodSeconds {pod.spec.get('terminationGracePeriodSeconds')} is less than {seconds + GRACE_MARGIN:.0f} (--shutdown_timeout and {GRACE_MARGIN} s)"
    for note in plan.get("notes", []):
        if not any(said in note for said in EXPECTED_NOTES):
            yield f"elrun notes: {note}"


OBJECT_RULES = [names, failure_policy, pytorchjob, trainer, service, secret, disruption_budget, prometheus_rule, selectors]
POD_RULES = [volumes, ports, resources, subdomain, shell, hooks, grace_and_probes, environment, command_lines]


def problems(tree, concerns):
    """What is wrong with those objects whose file `concerns` says yes to."""
    for manifest in (m for m in tree.manifests if concerns(m.where)):
        for rule in OBJECT_RULES:
            yield from (f"{manifest.where}: {manifest.kind} {manifest.name}: {problem}" for problem in rule(manifest, tree))
    for pod in (p for p in tree.pods if concerns(p.owner.where)):
        for rule in POD_RULES:
            yield from (f"{pod.where}: {problem}" for problem in rule(pod, tree))
