"""The gate for a node's record: a sound record passes as it is, and whatever else a node says is refused or inert."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from clusterctl.model.facts import NodeFacts
from clusterctl.support import content
from doctor_view import record_of
from hostile import JSON
from hypothesis import given
from hypothesis import strategies as st

gate = content.module_util("node_record_gate")
probe = content.module_util("node_look.record")
# Without processes: the gate makes one line of a command line, and this machine may run anything.
REQUEST = {"resolve": ["localhost"], "job_user": "", "check_sudo": False}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIwwYGMGDwWPrygxQ4O3kv+UcH3baMHTl4kBu/CfhWR4"
MEMBER = {
    "user_key": KEY,
    "name": "node3",
    "address": "10.0.0.3",
    "port": 22,
    "host_keys": [KEY],
    "slots": 4,
    "aliases": ["n3"],
}


@pytest.fixture(scope="module")
def own() -> dict[str, Any]:
    """The record of this machine."""
    found: dict[str, Any] = json.loads(json.dumps(probe.collect(REQUEST)))
    return found


def test_the_record_of_a_real_machine_passes_as_it_is(own: dict[str, Any]) -> None:
    assert gate.passed(own) == own


def test_every_field_that_a_node_may_report_has_a_form(own: dict[str, Any]) -> None:
    assert set(own) == set(gate.FORMS)
    assert set(NodeFacts.model_fields) - {"clock"} == set(gate.FORMS)  # this machine compares the clocks by itself
    assert "clock" not in gate.passed({**own, "clock": {"offset_s": 9.0, "uncertainty_s": 0.0}})


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("pmix.site.prefix", "{{ lookup('pipe', 'id') }}", "an absolute path of plain characters"),
        ("pmix.site.prefix", "/usr; id", "an absolute path of plain characters"),
        ("cores", 1 << 40, "a whole number from 0 to 65536"),
        ("interfaces.0.addresses.0.address", 'fe80::1%x"\nssh-ed25519 AAAA', "an IP address"),
        ("interfaces.0.name", "eth0\nprte_launch_agent = /tmp/evil.sh", "the name of a network interface"),
        ("interfaces.0.name", "../../x", "the name of a network interface"),
        ("routes.0.destination", "0.0.0.0/0\n", "a network"),
        ("ssh.host_keys.0", f"{KEY}\n{KEY}", "a public key of ssh"),
        ("ssh.host_keys.0", f'command="id" {KEY}', "a public key of ssh"),
        ("ssh.port", "22", "a whole number from 0 to 65535"),
        ("ssh.port", 1 << 70, "a whole number from 0 to 65535"),
        ("hostname", "node1 node2", "a host name"),
        ("platform", "../../etc", "the id of a platform"),
        ("platform", "debian-12-x86_64", "the id of a platform"),
        ("platform", "debian-12-x86_64-glibc2.9999999999-py3.11", "the id of a platform"),
        ("platform", "debian-12-x86_64-glibc2.36-py3.9999999999", "the id of a platform"),
        ("cuda.driver_version", "535\n", "a version"),
        ("cuda.toolkit_version", "unknown", "a version that begins with a number"),
        ("cuda.toolkit_version", "9" * 5000, "a version that begins with a number"),
        ("cores", -1, "a whole number from 0"),
        ("cores", True, "a whole number from 0"),
        ("time", float("nan"), "a number from 0"),
        ("interfaces", {"0": {}}, "a list of at most 4096"),
        ("environment", {"A=B": "x"}, "the name of a variable"),
        ("kernel", "6.8\x1b[2J", "a word of letters"),
        ("problems.0", "x" * 30000, "a text of at most 20000 characters"),
    ],
)
def test_a_field_of_another_form_is_named(own: dict[str, Any], place: str, value: Any, words: str) -> None:
    record = copy.deepcopy(own)
    record["problems"] = ["one"]
    record["pmix"]["site"] = {"prefix": "/usr", "library": "/usr/lib/libpmix.so.2", "version": "5.0.1", "headers": ""}
    record["ssh"]["host_keys"] = [KEY]
    *way, last = place.split(".")
    holder: Any = record
    for step in way:
        holder = holder[int(step)] if step.isdigit() else holder[step]
    holder[int(last) if last.isdigit() else last] = value
    with pytest.raises(ValueError, match="which is not") as caught:
        gate.passed(record)
    assert words in str(caught.value)
    assert place.removesuffix(".A=B") in str(caught.value) or "environment" in place
    assert str(caught.value).isprintable()


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, its in value.items():
            yield from (key, *texts_of(its))
    elif isinstance(value, list):
        for its in value:
            yield from texts_of(its)


def places_of(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, (dict, list)):
        for key, its in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_of(its, (*way, key))
    elif isinstance(value, str):
        yield way


RECORD = record_of("node1")
PLACES = sorted(places_of(RECORD), key=str)


@given(st.sampled_from(PLACES), JSON)
def test_every_text_of_a_record_is_refused_or_inert(place: tuple[Any, ...], said: Any) -> None:
    record = copy.deepcopy(RECORD)
    holder: Any = record
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = said
    with contextlib.suppress(gate.RecordError):
        found = gate.passed(record)
        assert all(text.isprintable() or "\u00a0" in text for text in texts_of(found))
        json.dumps(found, allow_nan=False)


def test_a_member_has_a_form_too() -> None:
    assert gate.member(MEMBER) == MEMBER
    for key, value in (
        ("address", "10.0.0.3%\n"),
        ("aliases", ["a b"]),
        ("pmix", {"prefix": "{{ x }}"}),
        ("slots", "4"),
    ):
        with pytest.raises(ValueError, match=key):
            gate.member({**MEMBER, key: value})
