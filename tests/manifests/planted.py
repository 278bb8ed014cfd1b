"""Mistakes that were made once, in tutorials or by us: each is put into a manifest, and has to be found. A row: the file below samples/kubernetes, what
is replaced, by what, and what the check has to say. A row whose text is not in its file any more is an error."""

from manifests import load_all

FOLDER = "samples/kubernetes/"
V1, ELASTIC, V2, RUNTIME = "pytorchjob.yaml", "pytorchjob-elastic.yaml", "trainjob.yaml", "runtime.yaml"

PLANTED = [
    # What a schema holds.
    ("job.yaml", "apiVersion: batch/v1", "apiVersion: batch/v1beta1", "no API has the kind Job as batch/v1beta1; it is batch/v1"),
    ("job.yaml", "completionMode:", "completionsMode:", "completionsMode: no such field"),
    ("job.yaml", "parallelism: 4", "parallelism: four", 'spec.parallelism: "four" is no integer'),
    ("job.yaml", "parallelism: 4", "parallelism: 4\n  parallelism: 3", "the key 'parallelism' stands twice"),
    ("job.yaml", "httpGet: {path: /livez, port: elrun-metrics}", "httpGet: {path: /livez}", "httpGet.port: missing"),
    ("job.yaml", "- name: POD_IP", "- name: RUN", "env: RUN stands there twice"),
    ("job.yaml", "metadata:\n  name: train\nspec:\n  completionMode", "metadata:\n  title: train\nspec:\n  completionMode", "metadata.name: an object needs a name"),
    ("job.yaml", "      subdomain: train ", "     subdomain: train ", "parsing a block mapping"),
    (V2, "numProcPerNode: 8", "numProcPerNode: auto", "(trainer-v2.3.0-trainjobs)"),
    (V2, "  runtimeRef:", "  podTemplateOverrides: []\n  runtimeRef:", "spec.podTemplateOverrides: no such field (trainer-v2.3.0-trainjobs)"),
    ("README.md", "emptyDir: {}", "emptyDisk: {}", "volumes[0].emptyDisk: no such field"),
    # Names, and what they lead to.
    ("job.yaml", "name: elrun-metrics", "name: metrics-of-elrun", "'metrics-of-elrun' is no name of a port"),
    ("job.yaml", "kind: Job\nmetadata:\n  name: train", "kind: Job\nmetadata:\n  name: train.1", "'train.1' cannot be a host's name"),
    ("jobset.yaml", "metadata:\n  name: train", "metadata:\n  name: train-a-model-with-a-name-that-is-longer-than-that-of-any-host", "more than 63 characters"),
    ("disruption-budget.yaml", "app.kubernetes.io/name: train", "app.kubernetes.io/name: training", "matches no pod"),
    ("network-policy.yaml", "    matchLabels:\n      app.kubernetes.io/name: train", "    matchLabels: {}", "matches every pod of the namespace"),
    ("monitoring.yaml", "port: elrun-metrics", "port: metrics", "has no port called metrics"),
    ("monitoring.yaml", "elrun_restarts_total", "elrun_restart_total", "an agent has no metric elrun_restart_total"),
    ("job.yaml", "job-name: train", "job-name: training", "selects {'batch.kubernetes.io/job-name': 'training'}, which these pods do not have"),
    ("job.yaml", "subdomain: train", "subdomain: nodes", "without a headless service called nodes"),
    ("job.yaml", "clusterIP: None", "type: ClusterIP", "clusterIP: pods find each other by a headless service"),
    ("job.yaml", "publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "nodes meet before they are ready"),
    ("job.yaml", "claimName: checkpoints", "claimName: checkpoint", "no manifest here makes the PersistentVolumeClaim checkpoint"),
    ("job.yaml", "- {name: shm, mountPath: /dev/shm}", "- {name: dshm, mountPath: /dev/shm}", "there is no volume dshm"),
    ("job.yaml", "- {name: shm, mountPath: /dev/shm}", "", "nobody mounts shm"),
    ("job.yaml", "nvidia.com/gpu: 8", "nvidia.com: 8", "resources.limits: there is no resource nvidia.com"),
    ("secret.yaml", 'token: ""', "token: swordfish", "a secret that stands in a public file is none"),
    ("disruption-budget.yaml", "minAvailable: 3", "minAvailable: 75%", "minAvailable: an integer"),
    # How pods end.
    ("job.yaml", "restartPolicy: Never", "restartPolicy: OnFailure", "podFailurePolicy: only with restartPolicy Never"),
    ("job.yaml", "restartPolicy: Never", "restartPolicy: Always", "a Job's pods have Never or OnFailure"),
    ("job.yaml", "podReplacementPolicy: Failed", "podReplacementPolicy: TerminatingOrFailed", "only with podReplacementPolicy Failed"),
    ("job.yaml", "values: [1, 2,", "values: [2, 1,", "have to be sorted"),
    ("job.yaml", "values: [1, 2,", "values: [2,", "after 1 starting again does not help"),
    ("runtime.yaml", " 69, 70, 71,", " 69, 71,", "after 70 starting again does not help"),
    ("job.yaml", "127]", "127, 170]", "after 170 starting again may help"),
    ("job.yaml", "containerName: train", "containerName: node", "containerName node is none"),
    ("jobset.yaml", "containerName: train\n", "\n", "containerName None is none"),
    ("job.yaml", "type: DisruptionTarget\n            status: \"True\"\n      - action: FailJob", "type: Ready\n            status: \"False\"\n      - action: FailJob",
     "the first rule ignores DisruptionTarget"),
    ("runtime.yaml", "                      - type: DisruptionTarget\n", "                      - type: Ready\n", "the first rule ignores DisruptionTarget"),
    ("job.yaml", "      terminationGracePeriodSeconds: 110 ", "      activeDeadlineSeconds: 1000 ", "terminationGracePeriodSeconds is missing"),
    ("job.yaml", "terminationGracePeriodSeconds: 110", "terminationGracePeriodSeconds: 100", "100 is less than 105"),
    (V2, "- --nnodes=3:4", "- --shutdown_timeout=200\n      - --nnodes=3:4", "110 is less than 205"),
    # Probes.
    ("job.yaml", "path: /livez", "path: /health", "an agent has no page /health"),
    ("job.yaml", "httpGet: {path: /readyz, port: elrun-metrics}", "httpGet: {path: /readyz, port: 8080}", "readinessProbe: the container has no port 8080"),
    ("job.yaml", "timeoutSeconds: 10", "timeoutSeconds: 1", "timeoutSeconds has to be 10 at least"),
    ("job.yaml", "readinessProbe:", "startupProbe:", "readinessProbe is missing"),
    ("job.yaml", "- --health_port=29401", "- --health_port=9400", "the probes need --health_port with a containerPort, and it is 9400"),
    # What elrun is told.
    ("job.yaml", "--max_restarts=3", "--max_retries=3", "--max_retries: no such option"),
    ("job.yaml", "--rdzv_backend=c10d", "--rdzv_backend=zookeeper", "elrun ends with 64"),
    ("job.yaml", "- --nnodes=3:4", "- --nnodes=3:5", "elrun is told of 3 to 5 nodes, and there are 4 pods"),
    ("job.yaml", "            - --nnodes=3:4\n", "", "--nnodes is not given"),
    ("job.yaml", "--nproc_per_node=gpu", "--nproc_per_node=4", "4 workers for 8 GPUs"),
    ("job.yaml", "train-0.train:29400", "train-0:29400", "the nodes are to meet at train-0, which is none of these pods"),
    ("job.yaml", "train-0.train:29400", "train-0.train:29500", "the nodes meet at port 29500, which is no containerPort"),
    ("job.yaml", "- name: ELRUN_RDZV_TOKEN_FILE", "- name: ELRUN_TOKEN_FILE", "elrun reads no variable ELRUN_TOKEN_FILE"),
    ("job.yaml", "- name: ELRUN_RDZV_TOKEN_FILE\n              value: /etc/elrun/token", "- {name: MORE, value: x}", "the rendezvous is open"),
    ("job.yaml", "--rdzv_id=$(RUN)", "--rdzv_id=$(RUN_ID)", "nobody sets $(RUN_ID)"),
    ("job.yaml", "args: [install, /opt/elrun]", "args: [instal, /opt/elrun]", "elrun: elrun ends with 78"),
    (RUNTIME, "PET_HEALTH_PORT", "PET_HEALTHPORT", "elrun reads no variable PET_HEALTHPORT"),
    # Shells.
    ("tutorials/tutorial-3.yaml", "                - |\n                  exec", "                - >-\n                  # torchrun:\n                  exec", "nothing but a comment"),
    ("tutorials/tutorial-3.yaml", "--rdzv_endpoint=:23456", "--rdzv_endpoint=$(PYTORCH_JOB_MASTER_SERVICE_HOST):29400", "nobody sets $(PYTORCH_JOB_MASTER_SERVICE_HOST)"),
    ("tutorials/tutorial-3.yaml", "--save_steps 500", "--save_steps 500; echo done", "something stands behind elrun"),
    ("tutorials/tutorial-3.yaml", "exec /opt", "/opt", "the script ends with `exec elrun ...`"),
    ("tutorials/tutorial-4.yaml", "${PET_RDZV_ID} \\", "${PET_RDZV_ID} \\ ", "a backslash followed by blanks"),
    ("tutorials/tutorial-4.yaml", "    rdzvId: fashion-mnist\n", "", "--rdzv_id has no value and counts as not given"),
    ("tutorials/tutorial-2.yaml", "cd /workspace", "git clone https://example.com/t5 .", "the script begins with `set -e`"),
    ("tutorials/tutorial-5.yaml", "      workingDir:", "      lifecycle: {preStop: {exec: {command: [/opt/elrun/elrun, drian]}}}\n              workingDir:", "elrun has no subcommand drian"),
    ("tutorials/tutorial-5.yaml", "      workingDir:", "      lifecycle: {preStop: {exec: {command: [/opt/elrun/elrun, drain, --wait=5]}}}\n              workingDir:",
     "elrun drain has no option --wait"),
    ("job.yaml", "args: [install, /opt/elrun]", "args: [install, --overwrite, /opt/elrun]", "elrun install has no option --overwrite"),
    ("job.yaml", "args: [install, /opt/elrun]", "args: [ckpt, verify, --writers=4, /checkpoints]", "elrun ckpt has no option --writers"),
    # Operators.
    (V1, "- name: pytorch ", "- name: trainer ", "without a container that is called pytorch"),
    (V1, "restartPolicy: ExitCode", "restartPolicy: OnFailure", "Master: restartPolicy: ExitCode; else"),
    (V1, "Master:\n      replicas: 1", "Master:\n      replicas: 2", "Master: there is exactly one"),
    (V1, '  nprocPerNode: "8"', '  nprocPerNode: "8"\n  elasticPolicy: {maxReplicas: 4}', "with a Master there is one pod too many"),
    (V1, '  nprocPerNode: "8"', "  nprocPerNode: 8", "spec.nprocPerNode: 8 is no string"),
    (ELASTIC, "maxReplicas: 4", "maxReplicas: 2", "elrun ends with"),
    (V2, "name: elrun ", "name: torch ", "there is no runtime torch"),
    (V2, "    numNodes: 4", "    env: [{name: PET_NNODES, value: \"3:4\"}]\n    numNodes: 4", "PET_NNODES is Trainer's own"),
    (V2, "    numNodes: 4", "    numNodes: 3", "elrun is told of 3 to 4 nodes, and there are 3 pods"),
    (RUNTIME, "trainjob-ancestor-step: trainer", "trainjob-ancestor-step: train", "Trainer needs one called node"),
    (RUNTIME, "- name: node\n                      image", "- name: trainer\n                      image", "into a container called node"),
]


def run(tree, all_problems):
    """Each mistake alone; 0 when all are found."""
    missed = []
    for name, old, new, expected in PLANTED:
        file = FOLDER + name
        text = (tree / file).read_text(encoding="utf-8")
        if old not in text:
            missed.append(f"{name}: the text of a planted mistake is not there any more: {old!r}")
            continue
        manifests, parts, unread = load_all(tree, {file: text.replace(old, new, 1)})
        found = unread + list(all_problems(manifests, parts, lambda where, file=file: where.split(":")[0] == file))
        if not any(expected in problem for problem in found):
            missed.append(f"{name}: {new!r} in place of {old!r} was not found. Expected: {expected}; said:\n    " + "\n    ".join(found or ["nothing"]))
    print("\n".join(missed + [f"{len(PLANTED)} planted mistakes, {len(missed)} not found"]))
    return 1 if missed else 0
