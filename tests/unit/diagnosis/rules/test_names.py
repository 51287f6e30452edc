from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusterctl.diagnosis.rules import registry
from doctor_view import failing, record_of, seen, told

if TYPE_CHECKING:
    from doctor_view import Change, Record


def resolving(name: str, *addresses: str) -> Change:
    def change(record: Record) -> None:
        entry = next(entry for entry in record["names"] if entry["name"] == name)
        entry.update(addresses=list(addresses), problem="" if addresses else "Name or service not known")

    return change


@pytest.mark.parametrize(
    ("change", "check", "severity", "words"),
    [
        (resolving("node3", "127.0.1.1"), "names", "error", "its own name leads to 127.0.1.1"),
        (resolving("node3"), "names", "error", "it cannot resolve its own name (Name or service not known)"),
        (resolving("node2"), "names", "error", "it cannot resolve the name of node2"),
        (
            resolving("node2", "10.0.0.4"),
            "names",
            "error",
            "the names node2 and node4 lead it to one address, 10.0.0.4",
        ),
        (resolving("node2", "127.0.0.1"), "names", "error", "the name node2 leads it to 127.0.0.1, which is itself"),
        (resolving("node2", "192.0.2.7"), "names", "warning", "the name node2 leads it to 192.0.2.7, which is not "),
    ],
)
def test_a_node_is_named_with_what_is_wrong(change: Change, check: str, severity: str, words: str) -> None:
    (found,) = registry.diagnose(seen(node3=change))
    assert (found.check, found.severity, found.hosts) == (check, severity, ("node3",))
    assert found.cause.startswith(words)
    assert found.cure


def test_two_names_of_one_machine() -> None:
    def change(record: Record) -> None:
        record.update({key: record_of("node2")[key] for key in ("hostname", "interfaces", "ssh", "names")})

    found = registry.diagnose(seen(node3=change))
    assert ("node2", "node3") in {one.hosts for one in found if "one and the same machine" in one.cause}


def test_machines_that_call_themselves_the_same() -> None:
    def change(record: Record) -> None:
        record.update(hostname="ubuntu", names=[])

    (found,) = registry.diagnose(seen(node2=change, node3=change))
    assert (found.check, found.hosts) == ("names", ("node2", "node3"))
    assert found.cause.startswith("all call themselves ubuntu")


def test_a_refused_login_between_two_names_both() -> None:
    assert told(failing(seen(), ("node1", "node2", "refused"))) == [("ssh", "error", ("node1", "node2"))]
