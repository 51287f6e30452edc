"""The JSON schema of the record of a validation: generated from the model, shipped as a file beside this module."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from clusterctl.model.results import ValidationRecord

FILE = f"validation-{ValidationRecord.model_fields['schema_version'].default}.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def text() -> str:
    """Return the shipped schema."""
    return resources.files(__name__).joinpath(FILE).read_text(encoding="utf-8")


def generated() -> dict[str, Any]:
    """Return the schema of a record as clusterctl writes it: every field is required, and other fields are refused."""
    schema = ValidationRecord.model_json_schema(mode="serialization")
    return {"$schema": _DIALECT, "$id": f"urn:clusterctl:{FILE.removesuffix('.json')}", **schema}


def rendered() -> str:
    """Return the text of the file; a test says how to write it after a change of the model."""
    return json.dumps(generated(), indent=1, sort_keys=True) + "\n"
