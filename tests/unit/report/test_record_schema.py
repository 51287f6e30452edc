from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from clusterctl.cli.report import schema_text
from clusterctl.model.results import CheckResult, ValidationRecord
from report_records import CHECKS, record, records


def test_the_schema_is_one_itself() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize("one", records())
def test_records_are_as_the_schema_says(one: ValidationRecord) -> None:
    data = json.loads(one.model_copy(update={"checks": tuple(map(readable, one.checks))}).model_dump_json())
    jsonschema.validate(data, json.loads(schema_text()), format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data.pop("verdict"), id="a field is gone"),
        pytest.param(lambda data: data.update(schema_version=3), id="another schema"),
        pytest.param(lambda data: data.update(colour="red"), id="an unknown field"),
        pytest.param(lambda data: data["checks"][0].update(verdict="GOOD"), id="an unknown verdict"),
    ],
)
def test_the_schema_refuses_what_is_no_record(damage: Any) -> None:
    data = json.loads(record(CHECKS[:1]).model_dump_json())
    damage(data)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(schema_text()))


def readable(check: CheckResult) -> CheckResult:
    """Without a lone surrogate, which no JSON of ours can hold."""
    return check.model_copy(update={"reason": "", "evidence": ()})
