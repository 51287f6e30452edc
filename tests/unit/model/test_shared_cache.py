from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from clusterctl.model import shared_cache
from clusterctl.model.shared_cache import EntryName, Envelope, Statement
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import artifact_key

INPUTS = {"platform": "debian-12", "configure": ["--prefix=/usr/local/ä"], "recipe": 1, "none": None, "yes": True}


def record(**changed: Any) -> dict[str, Any]:
    key = shared_cache.key_of(INPUTS)
    own = {"name": "demo", "version": "1.0", "key": key, "inputs": INPUTS, "sha256": "ab" * 32, "size": 7}
    return {**own, **changed}


def test_the_key_is_the_collections() -> None:
    assert shared_cache.key_of(INPUTS) == artifact_key(INPUTS)


def test_a_statement_survives_its_bytes() -> None:
    statement = shared_cache.statement_of_pack(record())
    assert Statement.parse(statement.to_bytes()) == statement
    envelope = Envelope(statement.to_bytes(), "signature")
    assert Envelope.parse(envelope.to_bytes()) == envelope


@pytest.mark.parametrize(
    "changed",
    [
        {"sha256": "cd" * 32},
        {"size": 8},
        {"size": True},
        {"size": -1},
        {"sha256": "../../etc/passwd"},
        {"name": "demo-1.0-0123456789abcdef"},
        {"platform": "debian-13"},
        {"key": "0123456789abcdef"},
        {"schema": 2},
        {"kind": "wheel"},
        {"record": []},
    ],
)
def test_a_statement_whose_parts_contradict_each_other_is_refused(changed: dict[str, Any]) -> None:
    fields = json.loads(shared_cache.statement_of_pack(record()).to_bytes())
    with pytest.raises(ValueError, match=r"."):
        Statement.parse(json.dumps({**fields, **changed}).encode())


@pytest.mark.parametrize("changed", [{"inputs": {"platform": "debian-12"}}, {"version": "2.0"}, {"name": "x/y"}])
def test_a_signed_record_of_something_else_is_refused(changed: dict[str, Any]) -> None:
    fields = json.loads(shared_cache.statement_of_pack(record()).to_bytes())
    fields["record"] |= changed
    with pytest.raises(ValueError, match=r"."):
        Statement.parse(json.dumps(fields).encode())


@pytest.mark.parametrize("text", ["", "pack/", "pack/../x", "pack/a/b", "wheel/x", "pack/.x", "pack/x\n", "x"])
def test_no_name_leads_elsewhere(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an entry"):
        EntryName.parse(text)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"schema": 1}', b'{"schema": 2}', b"\xff", b"[" * 100_000, b'{"schema": 1, "entries": 7}'],
)
def test_bytes_of_another_form_are_refused(data: bytes) -> None:
    for read in (Statement.parse, Envelope.parse, shared_cache.index_names):
        with pytest.raises(ValueError, match=r"."):
            read(data)
