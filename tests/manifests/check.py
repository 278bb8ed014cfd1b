"""Every manifest of the tree, also those in documents, is one that a cluster takes, and says of elrun what elrun understands.

    python3 tests/manifests/check.py --schemas FOLDER --elrun build/bin/elrun [--tree TREE] [--planted | --embedded | FILE...]

Checked are the API schemas of FOLDER (strictly: a field that is not known is an error), the rules that schemas do not hold (rules.py), and each command
line of elrun by the real elrun with --dry_run. A block of a document that begins with ```yaml is a manifest; ```yaml PodSpec is a part of one.
With --planted, mistakes are put into the manifests one by one (planted.py), and each has to be found. With --embedded, the lines that put elrun into a job
that runs today are put into one (embedded.py). FILE: manifests of yours; then these alone are judged, and may name what the tree's manifests make.
"""

import argparse
import sys
from pathlib import Path


def main():
    options = argparse.ArgumentParser(description="Checks Kubernetes manifests without a cluster.")
    options.add_argument("--schemas", required=True, type=Path)
    options.add_argument("--elrun", required=True, type=Path)
    options.add_argument("--tree", default=Path(__file__).parents[2], type=Path)
    options.add_argument("--planted", action="store_true")
    options.add_argument("--embedded", action="store_true")
    options.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = options.parse_args()
    try:
        import yaml  # noqa: F401
    except ImportError:
        print("SKIPPED: this Python has no yaml (python3-yaml)")
        return 77
    if not (options.schemas / "kubernetes-core-openapi-subset.json").exists():
        print(f"SKIPPED: there are no API schemas in {options.schemas}; ELRUN_K8S_SCHEMAS names their folder")
        return 77

    import embedded
    import planted
    from manifests import load_all
    from rules import Tree, problems
    from schemas import Schemas

    schemas, elrun, source = Schemas(options.schemas), options.elrun.resolve(), options.tree.resolve()
    manifests, parts, unread = load_all(source, more=options.files)

    judged = {}

    def all_problems(manifests, parts, concerns=lambda where: True):
        valid = []  # the rules take the shape of an object for granted
        for manifest in manifests:
            if id(manifest.body) not in judged:  # an object of a text that did not change is the same one
                judged[id(manifest.body)] = manifest.body, list(schemas.problems(manifest.body))
            wrong = judged[id(manifest.body)][1]
            valid += [] if wrong else [manifest]
            yield from (f"{manifest.where}: {manifest.kind} {manifest.name}: {problem}" for problem in wrong if concerns(manifest.where))
        for where, name, value in (part for part in parts if concerns(part[0])):
            yield from (f"{where}: {name}: {problem}" for problem in schemas.problems_of_part(value, name))
        yield from problems(Tree(valid, source, elrun), concerns)

    if options.planted:
        return planted.run(source, all_problems)
    if options.embedded:
        return embedded.run(source, manifests, parts, all_problems, elrun)
    yours = {str(path) for path in options.files}
    found = unread + list(all_problems(manifests, parts, lambda where: not yours or where in yours))
    counted = f"{len(yours)} files" if yours else f"{len(manifests)} manifests and {len(parts)} parts"
    print("\n".join(found + [f"{counted}, {len(found)} problems"]))
    return 1 if found or not manifests else 0


if __name__ == "__main__":
    sys.exit(main())
