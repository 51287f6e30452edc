"""All rules together, and rules that a contributor adds: a function, and a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from clusterctl.diagnosis.rules import registry, storage
from clusterctl.diagnosis.rules.engines import ReadingLimit, ReadingLimits
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.findings import Finding
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from clusterctl.remote import login_probe
from doctor_view import NODES, Record, failing, seen, told


def worst(record: Record) -> None:
    record.update(hostname="node3-in-the-second-rack-of-the-hall", names=[])


def long_names(view: View) -> Iterator[Finding]:
    for name, node in view.nodes.items():
        if len(node.hostname) > 20:
            yield Finding("long name", "error", (name,), "its name is long", "give it a short name")


def test_a_function_in_its_place_is_a_new_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    view = seen(node3=worst)
    view = dataclasses.replace(failing(view, ("node1", "node2", "refused")), pinned="fabric_cidr is wrong")
    assert [check for check, _, _ in told(view)] == ["ssh", "network"]
    monkeypatch.setattr(registry, "RULES", (*registry.RULES[:2], long_names, *registry.RULES[2:]))
    monkeypatch.setattr(registry, "NOTES", (lambda _view: ("A note of the new rule.",), *registry.NOTES))
    assert [check for check, _, _ in told(view)] == ["ssh", "long name", "network"]
    assert registry.notes(view) == ("A note of the new rule.",)
    assert told(seen()) == []


def test_a_row_is_a_new_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        ReadingLimit("error", "bays", lambda it: it.number("bays") > 8, "{device} has {bays} bays", "close '{device}'"),
    )
    monkeypatch.setattr(storage, "ARRAYS", ReadingLimits("bays", "array", rows))
    look = Hardware(
        schema_version=1, time=0.0, readings=[HardwareReading("array", f"md{bays}", "bays", bays) for bays in (8, 9)]
    )
    found = registry.diagnose(View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(look)}))
    assert found == (Finding("bays", "error", ("node1",), "md9 has 9 bays", "close 'md9'"),)


def test_a_healthy_cluster_has_nothing() -> None:
    assert registry.diagnose(seen()) == ()
    assert registry.notes(seen()) == ()


def without_everything(record: Record) -> None:
    for entry in record["artifacts"]:
        entry.update(target="", version="", key="", ok=False, problem=f"{entry['link']} does not exist")
    record["libraries"] = []


def test_nodes_that_were_never_provisioned_get_a_few_lines() -> None:
    view = seen(**dict.fromkeys(NODES, without_everything))
    reports = {
        name: login_probe.LoginReport(failures=(login_probe.LoginFailure("x", "refused", ""),) * 2, stopped_early=True)
        for name in NODES
    }
    view = dataclasses.replace(view, logins=reports)
    assert told(view) == [("ssh", "error", NODES)]
    assert registry.notes(view) == (
        "Never provisioned: node[1-4]; the cluster's software was not examined there.",
        "Logins from node[1-4]: stopped after two were refused.",
    )


# --- A file system that is almost full is told once: by the rule of disks where clusterctl writes there ---


SIZE = 100 << 30


def full(free: int, disk_free: int) -> list[tuple[str, str]]:
    """Tell what is found where / has so much left by the look at the hardware, and by the facts."""
    readings = tuple(
        HardwareReading("filesystem", "/", name, value)
        for name, value in (("size in bytes", SIZE), ("free bytes", free), ("read-only", False), ("remote", False))
    )

    def change(record: dict[str, object]) -> None:
        record["disk"] = [{"path": "/usr/local", "free_bytes": disk_free, "total_bytes": SIZE}]

    look = HardwareLooks(Hardware(schema_version=1, time=1.0, readings=readings))
    view = dataclasses.replace(seen(node3=change), hardware={"node3": look})
    return [(one.check, one.cause) for one in registry.diagnose(view)]


def test_a_root_disk_that_is_almost_full_is_found() -> None:
    assert full(900 << 20, 20 << 30) == [("file systems", "/ has less than 1 % of its space free")]
    assert full(2 << 30, 20 << 30) == []


def test_it_is_told_once_where_the_rule_of_disks_tells_it() -> None:
    assert [check for check, _ in full(900 << 20, 900 << 20)] == ["disk"]
