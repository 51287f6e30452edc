"""The JSON schema of the record of a validation, made from its model."""

from __future__ import annotations

import json

from clusterctl.model.results import ValidationRecord

NAME = f"validation-{ValidationRecord.model_fields['schema_version'].default}"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def text() -> str:
    """Return the schema of a record as clusterctl writes it: every field is required, and other fields are refused."""
    schema = ValidationRecord.model_json_schema(mode="serialization")
    document = {"$schema": _DIALECT, "$id": f"urn:clusterctl:{NAME}", **schema}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
