"""Reference of the records that clusterctl writes as JSON, made from their pydantic models."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
import typing
from enum import Enum
from typing import TYPE_CHECKING, Any, get_args

from clusterctl.model.findings import Diagnosis
from clusterctl.model.results import ValidationRecord
from clusterctl.model.run_record import RunRecord
from clusterctl.nightly.records import Night
from pydantic import BaseModel, TypeAdapter

from site_pages import markdown

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """\
# Records

This page is made from the program's own models. Every report derives from one of these records.
`clusterctl report --schema` prints the JSON schema of a validation's record.
A record carries `schema_version`; a newer clusterctl reads the records of an older one.
"""
_RECORDS: tuple[tuple[type[BaseModel], str, str], ...] = (
    (
        ValidationRecord,
        "A validation",
        "`validation.json` in the folder of the run, and `clusterctl validate --format json`.",
    ),
    (RunRecord, "A provision", "`run.json` in the folder of the run, and `clusterctl provision --format json`."),
    (Diagnosis, "A diagnosis", "`clusterctl doctor --format json`."),
    (Night, "A night", "the record of `clusterctl nightly run`; the hook gets it on its standard input."),
)
_ENTRY = re.compile(r"^(\w+): +(.*(?:\n +.*)*)", re.MULTILINE)
_MARKUP = re.compile(r":(?:func|class|meth|mod):`~?([^`]+)`")


def page() -> str:
    """Return the whole page as Markdown."""
    seen: set[type] = set()
    lines = [_INTRODUCTION]
    for model, title, where in _RECORDS:
        lines += [f"## {title}", "", f"Where: {where}", ""]
        for part in _with_parts(model):
            if part not in seen:
                seen.add(part)
                lines += _section(part)
    return "\n".join(lines)


def models() -> list[type]:
    """Return every model of the page, for a test that each field stands there."""
    return list(dict.fromkeys(part for model, _, _ in _RECORDS for part in _with_parts(model)))


def fields(model: type) -> dict[str, Any]:
    """Return a model's fields with their annotations; a model is pydantic's or a dataclass."""
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return typing.get_type_hints(model)


def _with_parts(model: type) -> Iterator[type]:
    """Give a model and those of its fields, each once, outer ones first."""
    queue, seen = [model], {model}
    while queue:
        current = queue.pop(0)
        yield current
        for annotation in fields(current).values():
            for part in _models_of(annotation):
                if part not in seen:
                    seen.add(part)
                    queue.append(part)


def _models_of(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_of(inner)


def _section(model: type) -> list[str]:
    text, entries = _described(model)
    comments = _comments(model)
    schema = TypeAdapter(model).json_schema(mode="serialization")
    rows = []
    for name in fields(model):
        words = entries.get(name) or comments.get(name, "")
        shown = _shown(schema["properties"][name], schema.get("$defs", {}))
        rows.append(
            (markdown.code(name, f"{model.__name__}.{name}"), shown, _default(schema["properties"][name]), words)
        )
    return [f"### {model.__name__}", "", text, "", *markdown.table(("field", "type", "default", "meaning"), rows)]


def _described(model: type) -> tuple[str, dict[str, str]]:
    """Return a model's docstring without its list of attributes, and that list."""
    text, _, attributes = inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:\n")
    entries = {name: _words(words) for name, words in _ENTRY.findall(textwrap.dedent(attributes))}
    return _words(text, paragraphs=True), entries


def _words(text: str, *, paragraphs: bool = False) -> str:
    text = re.sub(r"\bNone\b", "null", _MARKUP.sub(r"`\1`", text).replace("``", "`"))
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")) if paragraphs else " ".join(text.split())


def _comments(model: type) -> dict[str, str]:
    """Return the comment that stands behind each field in the source."""
    source = textwrap.dedent(inspect.getsource(model))
    lines = source.splitlines()
    body = ast.parse(source).body[0]
    found = {}
    for statement in body.body if isinstance(body, ast.ClassDef) else ():
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            rest = lines[(statement.end_lineno or 1) - 1].encode()[statement.end_col_offset :].decode()
            _, mark, words = rest.partition("# ")
            if mark and not words.startswith("noqa"):
                found[statement.target.id] = markdown.escaped(words.strip())
    return found


def _shown(schema: dict[str, Any], parts: dict[str, Any]) -> str:  # noqa: PLR0911 - one return for each kind of type
    """Return a type of the JSON schema in words, with links to the models."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        part = parts.get(name, {})
        return _choices(part["enum"]) if "enum" in part else f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_shown(option, parts) for option in schema["anyOf"])
    if "const" in schema:
        return markdown.code(json.dumps(schema["const"]))
    if "enum" in schema:
        return _choices(schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_shown(schema['items'], parts)}" if schema.get("items") else "list"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"map of {_shown(inner, parts)}" if isinstance(inner, dict) else "map"
    return {"date-time": "time (ISO 8601)"}.get(schema.get("format", ""), str(kind))


def _choices(values: list[Any]) -> str:
    return ", ".join(markdown.code(str(value.value if isinstance(value, Enum) else value)) for value in values)


def _default(schema: dict[str, Any]) -> str:
    return markdown.code(json.dumps(schema["default"])) if "default" in schema else ""
