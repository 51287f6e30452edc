"""Machine checks: an exception is an error, and corrected ones count beside other nodes alone."""

from __future__ import annotations

from clusterctl.diagnosis.rules import gpus, machine
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Counter, Hardware, HardwareLooks


def view(kind: str, name: str, *grown: int, boots: tuple[str, str] = ("b", "b")) -> View:
    """Return nodes whose counter grew by so much within a minute."""
    looks = {}
    for number, count in enumerate(grown, start=1):
        first, now = (
            Hardware(schema_version=1, time=at, boot_id=boot, counters=(Counter(kind, "", name, 1000 + value),))
            for at, boot, value in ((100.0, boots[0], 0), (160.0, boots[1], count))
        )
        looks[f"node{number}"] = HardwareLooks(now=now, first=first)
    return View(hosts=(), nodes={}, hardware=looks)


def told(name: str, *grown: int, boots: tuple[str, str] = ("b", "b")) -> list[tuple[str, tuple[str, ...], str]]:
    found = machine.machine_checks(view("machine check", name, *grown, boots=boots))
    return [(one.severity, one.hosts, one.cause) for one in found]


def test_an_exception_is_an_error_also_on_a_node_alone() -> None:
    ((severity, hosts, cause),) = told("machine check exceptions", 64)
    assert (severity, hosts) == ("error", ("node1",))
    assert cause.startswith("64 machine check exceptions in 60 s")
    assert told("machine check exceptions", 0, 0) == []
    assert told("machine check exceptions", 64, boots=("a", "b")) == []


def test_corrected_errors_count_beside_other_nodes() -> None:
    ((severity, hosts, cause),) = told("threshold interrupts", 1, 40, 2, 1)
    assert (severity, hosts) == ("warning", ("node2",))
    assert "40 threshold interrupts in 60 s, and 1 are the median" in cause
    assert told("threshold interrupts", 30, 40, 20, 35) == []
    assert told("threshold interrupts", 0, 9, 0, 0) == []
    assert told("threshold interrupts", 0, 4000) == []  # of two that differ, neither is the odd one
    assert told("machine check polls", 12, 12, 6000) != []


def test_corrected_errors_of_a_gpu_count_beside_other_gpus() -> None:
    name = "corrected ECC errors"
    (found,) = gpus.health(view("gpu", name, 3, 900, 0))
    assert (found.check, found.severity, found.hosts) == ("ecc", "warning", ("node2",))
    assert list(gpus.health(view("gpu", name, 500, 900, 700))) == []
    assert list(gpus.health(view("gpu", name, 0, 99, 0))) == []
