"""The CustomResourceDefinitions of MPIJob and PyTorchJob, made of the published schemas in tests/data/schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).resolve().parents[1] / "data" / "schemas"
KINDS = {
    "MPIJob": ("v2beta1", "mpijob-v2beta1.yaml"),
    "PyTorchJob": ("v1", "pytorchjob-v1.yaml"),
}
_INT_OR_STRING = {"x-kubernetes-int-or-string": True}


def definition(kind: str) -> dict[str, Any]:
    """Return the definition of a kind, with Kubernetes' own PodSpec in the place of the reference to it."""
    version, file = KINDS[kind]
    pods = json.loads((SCHEMAS / "kubernetes-podspec.json").read_text(encoding="utf-8"))["$defs"]
    schema = structural(yaml.safe_load((SCHEMAS / file).read_text(encoding="utf-8")), pods)
    schema["properties"]["metadata"] = {"type": "object"}
    schema["properties"]["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.kubeflow.org",
            # The group is protected only below k8s.io.
        },
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def structural(schema: Any, pods: dict[str, Any]) -> Any:
    """Return a schema as a CustomResourceDefinition takes it: one type each, and no reference."""
    if isinstance(schema, list):
        return [structural(part, pods) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return structural(pods[name], pods)
    types = schema.get("type")
    several = [one for one in types if one != "null"] if isinstance(types, list) else []
    options = schema.get("anyOf") or schema.get("oneOf") or []
    if len(several) > 1 or any("string" in str(one.get("type")) for one in options):
        return dict(_INT_OR_STRING)
    left_out = {"default", "additionalProperties"} if "properties" in schema else {"default"}
    known = {
        name: {key: structural(value, pods) for key, value in part.items()}
        if name == "properties"
        else structural(part, pods)
        for name, part in schema.items()
        if name not in left_out and name != "description"
    }
    if several:
        known["type"] = several[0]
    if known.get("format") not in {None, "int32", "int64"}:
        del known["format"]
    return known
