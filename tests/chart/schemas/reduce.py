"""Reduce a Kubernetes API server's OpenAPI to strict schemas of the kinds that the chart renders.

    kubectl get --raw /openapi/v2 | python tests/chart/schemas/reduce.py > tests/chart/schemas/v1.20.json

kubernetes-validate carries the last dozen versions only; the oldest one that the chart promises comes from a
server of that version.
"""

import json
import sys
from typing import Any

KINDS = {
    "ConfigMap": "v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PersistentVolumeClaim": "v1",
    "Pod": "v1",
    "PodDisruptionBudget": "policy/v1beta1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "StatefulSet": "apps/v1",
}
# Types that the API reads from text or a number, which OpenAPI calls text.
TEXT_OR_NUMBER = ("IntOrString", "Quantity")


def strict(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """One definition without prose that refuses keys it does not name."""
    if name.endswith(TEXT_OR_NUMBER):
        return {"type": ["string", "number"]}
    kept = {key: value for key, value in schema.items() if not key.startswith(("description", "x-kubernetes"))}
    if "properties" in kept:
        kept["properties"] = {key: strict("", value) for key, value in kept["properties"].items()}
        kept["additionalProperties"] = False
    return kept


def references(schema: Any) -> set[str]:
    """The definitions that a schema names."""
    if isinstance(schema, dict):
        own = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
        return own.union(*(references(value) for key, value in schema.items() if key != "$ref"))
    return set().union(*(references(item) for item in schema)) if isinstance(schema, list) else set()


def reduce(document: dict[str, Any]) -> dict[str, Any]:
    """The kinds' names by `apiVersion Kind`, and all definitions that they reach."""
    definitions: dict[str, Any] = document["definitions"]
    kinds = {}
    for name, schema in definitions.items():
        for gvk in schema.get("x-kubernetes-group-version-kind", []):
            version = "/".join(part for part in (gvk["group"], gvk["version"]) if part)
            if KINDS.get(gvk["kind"]) == version:
                kinds[f"{version} {gvk['kind']}"] = name
    wanted, reached = set(kinds.values()), {}
    while wanted:
        name = wanted.pop()
        reached[name] = strict(name, definitions[name])
        wanted |= references(reached[name]) - set(reached)
    return {"kinds": kinds, "definitions": reached}


if __name__ == "__main__":
    json.dump(reduce(json.load(sys.stdin)), sys.stdout, sort_keys=True, separators=(",", ":"))
    sys.stdout.write("\n")
