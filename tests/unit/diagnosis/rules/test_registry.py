"""All rules together, and a rule that a contributor adds as one module."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import pytest
from clusterctl.diagnosis import rules
from clusterctl.diagnosis.rules import registry
from clusterctl.remote import login_probe
from doctor_view import NODES, failing, seen, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from doctor_view import Record


MODULE = '''
"""A rule that a contributor adds."""

from clusterctl.model.findings import Finding

ORDER = 15


def findings(view):
    """Return nodes whose name is too long."""
    for name, node in view.nodes.items():
        if len(node.hostname) > 20:
            yield Finding("long name", "error", (name,), "its name is long", "give it a short name")


def notes(view):
    """Return one sentence."""
    yield "A note of the new rule."
'''


@pytest.fixture
def add_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Put a module with a rule beside those of the package."""

    def add(text: str) -> None:
        (tmp_path / "toy_rule.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
        registry.doctor_rules.cache_clear()

    yield add
    registry.doctor_rules.cache_clear()
    sys.modules.pop("clusterctl.diagnosis.rules.toy_rule", None)


def worst(record: Record) -> None:
    record.update(hostname="node3-in-the-second-rack-of-the-hall", names=[])


def test_a_new_module_is_all_that_a_new_rule_takes(add_rule: Callable[[str], None]) -> None:
    view = seen(node3=worst)
    view = dataclasses.replace(failing(view, ("node1", "node2", "refused")), pinned="fabric_cidr is wrong")
    before = told(view)
    assert [check for check, _, _ in before] == ["ssh", "network"]
    add_rule(MODULE)
    assert [check for check, _, _ in told(view)] == ["ssh", "long name", "network"]
    assert registry.notes(view) == ("A note of the new rule.",)
    assert told(seen()) == []


def test_a_rule_without_its_place_is_a_mistake_of_its_module(add_rule: Callable[[str], None]) -> None:
    add_rule(MODULE.replace("ORDER = 15", ""))
    with pytest.raises(AttributeError, match=r"toy_rule.*ORDER"):
        registry.diagnose(seen())


def test_every_rule_has_a_place_of_its_own() -> None:
    places = [rule.order for rule in registry.doctor_rules()]
    assert len(places) >= 5
    assert len(set(places)) == len(places)


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
