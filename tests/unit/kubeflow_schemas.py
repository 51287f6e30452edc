"""Validators of Kubeflow's resources: the published schemas, without room for unknown fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import referencing
import referencing.jsonschema
import yaml

SCHEMAS = Path(__file__).resolve().parents[1] / "data" / "schemas"


def strict(schema: Any) -> Any:
    """Refuse what a schema does not name, as 'kubectl --validate=strict' does; the cluster itself would drop it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    known = {name: strict(value) for name, value in schema.items()}
    if "properties" in known and "additionalProperties" not in known:
        known["additionalProperties"] = False
    return known


def validator(name: str) -> Any:
    pods = strict(json.loads((SCHEMAS / "kubernetes-podspec.json").read_text(encoding="utf-8")))
    schema = strict(yaml.safe_load((SCHEMAS / name).read_text(encoding="utf-8")))
    schema["properties"]["metadata"] = {"type": "object"}
    resource = referencing.Resource.from_contents(pods, default_specification=referencing.jsonschema.DRAFT202012)
    registry = referencing.Registry().with_resource("kubernetes-podspec.json", resource)
    return jsonschema.Draft202012Validator(schema, registry=registry)


PYTORCHJOB, MPIJOB = validator("pytorchjob-v1.yaml"), validator("mpijob-v2beta1.yaml")
