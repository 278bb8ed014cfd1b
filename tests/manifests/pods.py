"""What the pods of each job in samples/kubernetes are started with, as one JSON document: name, environment and options of elrun, as its operator gives them.

    python3 tests/manifests/pods.py --elrun build/bin/elrun [--tree TREE]

tests/process/manifest_pods_test.cpp starts them in network namespaces, with another program in place of theirs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def place_of(pod, index):
    """The index-th pod of a template: its host's name, the name by which others find it, and the variables that only it has."""
    if pod.owner.kind == "PyTorchJob":
        rank = index if pod.path == "Master" or "Master" not in pod.owner.spec["pytorchReplicaSpecs"] else index + 1
        own = {"RANK": str(rank), "PET_NODE_RANK": str(rank)} if "RANK" in pod.environment else {}
        host = f"{pod.owner.name}-{pod.path.lower()}-{index}"
        return host, host, own
    own = {name: str(index) for name in ("JOB_COMPLETION_INDEX", "PET_NODE_RANK") if name in pod.environment}
    return pod.names[index].split(".")[0], pod.names[index], own


def replicas_of(pod):
    return pod.owner.spec["pytorchReplicaSpecs"][pod.path].get("replicas", 1) if pod.owner.kind == "PyTorchJob" else pod.count


def main():
    options = argparse.ArgumentParser(description="Prints what pods are started with.")
    options.add_argument("--elrun", required=True, type=Path)
    options.add_argument("--tree", default=Path(__file__).parents[2], type=Path)
    options = options.parse_args()
    try:
        import yaml  # noqa: F401
    except ImportError:
        print("SKIPPED: this Python has no yaml (python3-yaml)")
        return 77
    import commands
    from manifests import load_all, pods_of

    manifests = load_all(options.tree.resolve())[0]
    runtimes = {m.name: m for m in manifests if m.kind == "ClusterTrainingRuntime"}
    jobs = []
    for manifest in manifests:
        if manifest.kind not in ("Job", "JobSet", "TrainJob", "PyTorchJob"):
            continue
        # Training Operator's services have a name for a pod that is ready; the others publish all.
        job = {"manifest": manifest.where, "kind": manifest.kind, "published_when_ready": manifest.kind == "PyTorchJob", "pods": []}
        for pod in pods_of(manifest, runtimes):
            container = next(c for c in pod.spec["containers"] if commands.runs_elrun(c))
            for index in range(replicas_of(pod)):
                host, name, own = place_of(pod, index)
                with tempfile.TemporaryDirectory() as directory:
                    variables = commands.environment_of(pod, container, directory) | own
                    arguments, wrong = commands.arguments_of(container, variables)
                    plan = None if wrong else commands.dry_run(options.elrun.resolve(), arguments, variables, directory)[0]
                if wrong or not plan:
                    raise SystemExit(f"{manifest.where}: {wrong or 'elrun refuses its command line'}")
                program = next(number for number, word in enumerate(arguments) if word.endswith(".py"))
                job["pods"].append({"host": host, "name": name, "environment": variables, "options": arguments[:program], "workers": plan["workers"]["value"]})
                job["nodes_min"] = plan["nodes"]["min"]
        jobs.append(job)
    print(json.dumps(jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
