"""API schemas as their projects publish them, and a strict check against them: a field that a schema does not know is an error, as for an API
server that is asked with `--validate=strict`."""

import json
import re
from pathlib import Path

import yaml

METADATA = {"name", "generateName", "namespace", "labels", "annotations", "finalizers"}
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
OPEN = {"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
CORE = "kubernetes-core-openapi-subset.json"
# What a schema may say. The first line is checked; the rest does not restrict a value, but for rules in CEL, which are not checked.
KEYWORDS = {"type", "properties", "additionalProperties", "required", "items", "minItems", "maxItems", "minProperties", "enum", "pattern", "minLength", "maxLength", "minimum",
            "maximum", "nullable", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-map-keys",
            "x-kubernetes-patch-merge-key", "description", "default", "format", "title", "x-kubernetes-list-type", "x-kubernetes-map-type",
            "x-kubernetes-patch-strategy", "x-kubernetes-group-version-kind", "x-kubernetes-unions", "x-kubernetes-validations",
            "x-kubernetes-embedded-resource"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


class Schemas:
    """Every schema below a folder. One kind can have several, of different releases: a manifest has to be valid for each of them."""

    def __init__(self, folder):
        self.definitions = json.loads((Path(folder) / CORE).read_text())["definitions"]
        self.kinds = {}  # (apiVersion, kind) -> [(name of the source, schema)]
        for definition in self.definitions.values():
            for known in definition.get("x-kubernetes-group-version-kind", []):
                version = "/".join(part for part in (known["group"], known["version"]) if part)
                self.kinds[version, known["kind"]] = [("core", definition)]
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        for path in sorted(Path(folder).glob("*.yaml")):
            for crd in yaml.load_all(path.read_text(), loader):
                spec = crd["spec"]
                for version in spec["versions"]:
                    key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                    self.kinds.setdefault(key, []).append((path.stem, version["schema"]["openAPIV3Schema"]))

    def problems(self, document):
        """What is wrong with a whole object, by each schema of its kind."""
        key = document.get("apiVersion"), document.get("kind")
        if key not in self.kinds:
            others = sorted({version for version, kind in self.kinds if kind == key[1]})
            yield f"no API has the kind {key[1]} as {key[0]}" + (f"; it is {' or '.join(others)}" if others else "")
            return
        if not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
            yield "metadata.name: an object needs a name"
        else:
            for field in sorted(set(document["metadata"]) - METADATA):
                yield f"metadata.{field}: no such field"
        body = {name: value for name, value in document.items() if name != "metadata"}
        for source, schema in self.kinds[key]:
            schema = {**schema, "required": [name for name in schema.get("required", []) if name != "metadata"]}
            for problem in self.check(body, schema, ""):
                yield problem if source == "core" else f"{problem} ({source})"

    def problems_of_part(self, value, name):
        """What is wrong with a part of an object, such as a PodSpec."""
        yield from self.check(value, self.definitions[f"io.k8s.api.core.v1.{name}"], "")

    def check(self, value, schema, path):
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/definitions/")
            if name in (QUANTITY, INT_OR_STRING):
                schema = {"x-kubernetes-int-or-string": True}
            else:
                schema = self.definitions[name]
                if name in OPEN:
                    schema = {"type": "object", "properties": {n: schema["properties"][n] for n in METADATA}}
        where = path or "the object"
        if value is None and schema.get("nullable"):
            return
        if schema.get("x-kubernetes-int-or-string"):
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                yield f"{where}: {json.dumps(value)} is neither a number nor a string"
            elif isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
                yield f"{where}: {value!r} does not match {schema['pattern']}"
            return
        if set(schema) - KEYWORDS:
            raise NotImplementedError(f"{where}: the schema says {sorted(set(schema) - KEYWORDS)}, which this check does not know")
        kind = schema.get("type")
        if kind and (not isinstance(value, TYPES[kind]) or isinstance(value, bool) != (kind == "boolean")):
            yield f"{where}: {json.dumps(value, default=str)} is no {kind}"
            return
        yield from scalar_problems(value, schema, where)
        if isinstance(value, dict):
            yield from self.check_object(value, schema, path)
        if isinstance(value, list):
            yield from self.check_list(value, schema, path)

    def check_object(self, value, schema, path):
        for name in schema.get("required", []):
            if name not in value:
                yield f"{path + '.' if path else ''}{name}: missing"
        if len(value) < schema.get("minProperties", 0):
            yield f"{path}: {schema['minProperties']} fields at least"
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, field in value.items():
            inside = f"{path}.{name}" if path else str(name)
            if not isinstance(name, str):
                yield f"{inside}: the name of a field is a string"
            elif name in known:
                yield from self.check(field, known[name], inside)
            elif isinstance(others, dict):
                yield from self.check(field, others, inside)
            elif not others and known and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{inside}: no such field"

    def check_list(self, value, schema, path):
        if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
            yield f"{path}: {len(value)} entries, from {schema.get('minItems', 0)} to {schema.get('maxItems', 'any number')} are allowed"
        for number, entry in enumerate(value):
            yield from self.check(entry, schema.get("items", {}), f"{path}[{number}]")
        # Of a list that is a map, one key stands once: two environment variables of one name are a mistake.
        keys = schema.get("x-kubernetes-list-map-keys") or schema.get("x-kubernetes-patch-merge-key", "").split()
        seen = [tuple(str(entry.get(key)) for key in keys) for entry in value if keys and isinstance(entry, dict)]
        for entry in sorted({entry for entry in seen if seen.count(entry) > 1}):
            if all(part != "None" for part in entry):
                yield f"{path}: {', '.join(entry)} stands there twice"


def scalar_problems(value, schema, where):
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {json.dumps(value)} is none of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where}: {value!r} does not match {schema['pattern']}"
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{where}: {value!r} has {len(value)} characters"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            yield f"{where}: {value} is not from {schema.get('minimum', 'any')} to {schema.get('maximum', 'any')}"
